"""``horovodrun`` for scripts that call it: its options, run as those of ``collectives run``.

`collectives run --as-horovod bash script.sh` starts the script with a folder first on its ``PATH``
that has a program of this name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from collectives import __version__
from collectives.errors import ArgumentError
from collectives.launch import session
from collectives.text.words import shown

NAME = "horovodrun"

# Options with a value, and those of `collectives run` that mean the same.
PASSED = {"-np": "-n", "--num-proc": "-n", "-H": "-H", "--hosts": "-H"}
PASSED |= {"-hostfile": "--hostfile", "--hostfile": "--hostfile"}
PASSED |= {"--min-np": "--min-np", "--min-num-proc": "--min-np"}
PASSED |= {"--max-np": "--max-np", "--max-num-proc": "--max-np"}
PASSED |= {"--slots-per-host": "--slots", "--slots": "--slots"}
PASSED |= {"--elastic-timeout": "--elastic-timeout", "--reset-limit": "--reset-limit"}
PASSED |= {"--host-discovery-script": "--host-discovery-script", "--mpi-args": "--mpiexec-args"}

# Options with a value that the ranks read from a variable.
VARIABLES = {
    "--timeline-filename": "HOROVOD_TIMELINE",
    "--fusion-threshold-mb": "HOROVOD_FUSION_THRESHOLD",
    "--stall-check-warning-time-seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "--stall-check-shutdown-time-seconds": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "--log-level": "COLLECTIVES_LOG",
}
LEVELS = {"trace": "debug", "fatal": "error"}  # that this library does not have

# Options without an effect: the number of their values, and the reason.
TUNED = "collectives tune measures, and calls learn"
ADDRESSES = "the addresses are those by which ssh reaches the hosts"
IDLE = {
    "--verbose": (0, "see --log-level"),
    "--disable-cache": (0, "no checks are cached"),
    "--start-timeout": (1, "COLLECTIVES_TIMEOUT limits waits"),
    "--network-interfaces": (1, ADDRESSES),
    "--network-interface": (1, ADDRESSES),
    "--cycle-time-ms": (1, "submissions run without cycles"),
    "--cache-capacity": (1, "no names are cached"),
    "--autotune-log-file": (1, TUNED),
    "--autotune-warmup-samples": (1, TUNED),
    "--autotune-steps-per-sample": (1, TUNED),
    "--autotune-bayes-opt-max-samples": (1, TUNED),
    "--autotune-gaussian-process-noise": (1, TUNED),
    "--blacklist-cooldown-range": (2, "a host is asked again as soon as it is listed"),
    "--stall-check": (0, "waits are always watched"),
    "--tcp": (0, "shared memory and UCX carry the data"),
    "--binding-args": (1, "give arguments of mpirun in --mpi-args"),
    "--num-nccl-streams": (1, "NCCL has one stream here"),
    "--thread-affinity": (1, "threads are not bound"),
    "--gloo-timeout-seconds": (1, "COLLECTIVES_TIMEOUT limits waits"),
    "--log-with-timestamp": (0, "the log has its own form"),
    "--log-without-timestamp": (0, "the log has its own form"),
    "--log-hide-timestamp": (0, "the log has its own form"),
    "--no-log-hide-timestamp": (0, "the log has its own form"),
    "-prefix-timestamp": (0, "collectives run --prefix prints the rank"),
    "--prefix-output-with-timestamp": (0, "collectives run --prefix prints the rank"),
}
for _name, _reason in {
    "hierarchical-allreduce": "the algorithm of a call is chosen by size and hosts",
    "torus-allreduce": "the algorithm of a call is chosen by size and hosts",
    "hierarchical-allgather": "the algorithm of a call is chosen by size and hosts",
    "autotune": TUNED,
    "timeline-mark-cycles": "submissions run without cycles",
    "mpi-threads-disable": "mpi4py sets the level of threads",
}.items():
    IDLE |= {f"--{_name}": (0, _reason), f"--no-{_name}": (0, _reason)}

# Options that ask for something that is done in another way.
REFUSED = {
    "--output-filename": "redirect the output, or see collectives run --prefix",
    "--config-file": "give the options themselves",
    "-p": "write the Port of the hosts to ~/.ssh/config",
    "--ssh-port": "write the Port of the hosts to ~/.ssh/config",
    "-i": "write the IdentityFile of the hosts to ~/.ssh/config",
    "--ssh-identity-file": "write the IdentityFile of the hosts to ~/.ssh/config",
    "--jsrun": "give jsrun in --mpiexec of collectives run",
    "-cb": "see collectives doctor",
    "--check-build": "see collectives doctor",
}


class Translated(NamedTuple):
    """Words of ``horovodrun`` in those of ``collectives run``."""

    words: list[str]
    variables: dict[str, str]
    idle: list[str]  # options without an effect, with the reason


def translate(given: Sequence[str]) -> Translated:
    """Translate the words after ``horovodrun``. Local."""
    left = list(given)
    made = Translated(["run", "--as-horovod"], {}, [])
    uses_mpi = False
    while left and left[0].startswith("-") and left[0] not in ("-m", "-c", "--"):
        name, equals, value = left.pop(0).partition("=")
        if equals:
            left.insert(0, value)
        if name in REFUSED:
            raise ArgumentError(f"{name} has no meaning here: {REFUSED[name]}")
        if name in IDLE:
            values, reason = IDLE[name]
            del left[:values]
            made.idle.append(f"{name} has no effect here: {reason}")
        elif name in ("--mpi", "--gloo"):
            uses_mpi = name == "--mpi"
        elif name == "--no-stall-check":
            made.variables["HOROVOD_STALL_CHECK_DISABLE"] = "1"
        elif name not in PASSED and name not in VARIABLES:
            raise ArgumentError(f"{shown(name)} is no option of {NAME}")
        elif not left:
            raise ArgumentError(f"{name} needs a value")
        elif name in PASSED:
            made.words.extend([PASSED[name], left.pop(0)])
            uses_mpi = uses_mpi or name == "--mpi-args"
        else:
            value = left.pop(0)
            if name == "--fusion-threshold-mb":
                value += "M"
            elif name == "--log-level":
                value = LEVELS.get(value.lower(), value.lower())
            made.variables[VARIABLES[name]] = value
    return made._replace(words=[*made.words, *([] if uses_mpi else ["--no-mpi"]), *left])


def main(given: Sequence[str]) -> int:
    """Replace this process by `collectives run`; return the exit status if there is no program."""
    if list(given) in (["-v"], ["--version"]):
        print(f"{NAME} of collectives {__version__}")
        return 0
    try:
        made = translate(given)
    except ArgumentError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    for text in made.idle:
        print(f"{NAME}: {text}", file=sys.stderr, flush=True)
    os.environ.update(made.variables)
    return os.execv(sys.executable, [sys.executable, "-m", "collectives", *made.words])


def run(command: Sequence[str]) -> int:
    """Run a command that finds ``horovodrun`` on its PATH; return its exit status. Local."""
    with tempfile.TemporaryDirectory(prefix="collectives-") as folder:
        program = Path(folder, NAME)
        python = shlex.quote(sys.executable)
        program.write_text(f'#!/bin/sh\nexec {python} -m {__name__} "$@"\n')
        program.chmod(0o755)
        os.environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
        if shutil.which(command[0]) is None:
            raise ArgumentError(f"there is no command {shown(command[0])} to run")
        return session.stand_in(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
