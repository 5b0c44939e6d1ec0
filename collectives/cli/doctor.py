"""``collectives doctor``: what is installed, whether it fits together, and what to do if not."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
import warnings
from importlib import metadata
from typing import Any

from collectives import __version__, _core, profile
from collectives.cli import launcher, run
from collectives.errors import CollectivesError

__all__ = ["add_parser"]

PROBE_SECONDS = 60

# The two ranks, and what begins the lines in which they say who they are, and what they share.
# Nothing of it is imported here, for it needs NumPy.
PROGRAM = "from collectives.cli import probe; probe.main()"
PROBE, MEMORY = "probe: ", "memory: "

SECONDS = r"\d*\.?\d+([eE][+-]?\d+)?"

VARIABLES = {
    "COLLECTIVES_TIMEOUT": (SECONDS, "a positive number of seconds"),
    "COLLECTIVES_VALIDATE": (r"[01]?", "0 or 1"),
    "COLLECTIVES_SEGMENT": (r"\d+", "a number of bytes"),
    "COLLECTIVES_TUNE": (
        r"(0|probe|online|probe,online|online,probe)?",
        "0, probe, online, or both with a comma",
    ),
    "COLLECTIVES_SHM": (r"(auto|memfd|file|0)?", "auto, memfd, file or 0"),
    "COLLECTIVES_SHM_LIMIT": (r"0*[1-9]\d*", "a positive number of bytes"),
    "COLLECTIVES_SHM_LANE": (r"0*[1-9]\d*", "a positive number of bytes"),
    "COLLECTIVES_SHM_SPINS": (r"0*[1-9]\d*", "a positive number of looks"),
    "COLLECTIVES_SHM_STORES": (r"(auto|cached|streamed)?", "auto, cached or streamed"),
    "COLLECTIVES_STALL_WARNING": (SECONDS, "a positive number of seconds"),
}
# Those of them whose value is told where ranks are tried.
TOLD_LATER = ("COLLECTIVES_SHM", "COLLECTIVES_STALL")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor", help="say whether everything fits together", description=__doc__
    )
    run.add_launch(parser)
    parser.set_defaults(main=main)


class _Findings:
    """What was found: facts go to stdout as they come, problems are counted."""

    def __init__(self) -> None:
        self.problems = 0

    def fact(self, name: str, text: str) -> None:
        print(f"{name:13} {text}", flush=True)

    def problem(self, name: str, text: str, remedy: str) -> None:
        self.problems += 1
        print(f"{name:13} PROBLEM: {text}\n{'':13} remedy: {remedy}", flush=True)


def main(options: argparse.Namespace) -> int:
    """Look at everything; return 1 if something is wrong."""
    findings = _Findings()
    _software(findings)
    _host(findings)
    _variables(findings)
    _profile(findings)
    _mpi(findings, options)
    if findings.problems:
        plural = "s" * (findings.problems > 1)
        print(f"\n{findings.problems} problem{plural} found.")
        return 1
    print("\nNo problem found.")
    return 0


def _software(findings: _Findings) -> None:
    findings.fact("collectives", f"{__version__}, kernels for {_core.kernels_isa()}")
    findings.fact("python", f"{platform.python_version()}, {sys.executable}")
    for name in ("numpy", "mpi4py"):
        try:
            findings.fact(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            findings.problem(name, "is not installed", f"pip install {name}")


def _host(findings: _Findings) -> None:
    usable = len(os.sched_getaffinity(0))
    text = f"{usable} usable of {os.cpu_count()}, {launcher.physical_cores()} without hyper-threads"
    findings.fact("cores", text)
    try:
        disk = shutil.disk_usage("/dev/shm")
    except OSError as error:
        findings.problem("/dev/shm", str(error), "mount a tmpfs there; MPI uses it within a host")
        return
    mib = disk.free / 2**20
    text = f"{mib:.0f} MiB free of {disk.total / 2**20:.0f}"
    if mib < 32:
        findings.problem(
            "/dev/shm",
            f"{text}, and MPI may die in it",
            "delete old files; docker run --shm-size=1g",
        )
    else:
        findings.fact("/dev/shm", text)


def _variables(findings: _Findings) -> None:
    for name, (pattern, wanted) in VARIABLES.items():
        value = os.environ.get(name)
        if value is None:
            if not name.startswith(TOLD_LATER):
                findings.fact(name.removeprefix("COLLECTIVES_").lower(), f"{name} is not set")
        elif not re.fullmatch(pattern, value) or (pattern == SECONDS and float(value) <= 0):
            findings.problem(
                name.removeprefix("COLLECTIVES_").lower(),
                f"{name} is {value!r}",
                f"set it to {wanted}, or unset it",
            )
        else:
            findings.fact(name.removeprefix("COLLECTIVES_").lower(), f"{name}={value}")


def _profile(findings: _Findings) -> None:
    """Say which profile is used, and whether it can be."""
    file = profile.path()
    if file is None:
        findings.fact("profile", "none, as COLLECTIVES_PROFILE says")
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        known = profile.read(file)
    if known is not None:
        parts = [
            f"{'shared memory' if each.transport == 'shm' else each.library}, {each.date}"
            for each in known.sections
        ]
        findings.fact("profile", "; ".join([file, *parts]))
    elif caught:
        text, _, remedy = str(caught[0].message).partition(". ")
        findings.problem("profile", text, remedy)
    else:
        findings.fact("profile", f"none in {file}; `collectives tune` writes it")


def _mpi(findings: _Findings, options: argparse.Namespace) -> None:
    """Look at the library, its launcher, and two ranks at work; stop at what is missing."""
    try:
        lib = launcher.library()
    except CollectivesError as error:
        text, _, remedy = str(error).rpartition("; ")
        findings.problem("MPI", text, remedy)
        return
    chosen = [f"{k}={os.environ[k]}" for k in ("MPI4PY_MPIABI", "MPI4PY_LIBMPI") if k in os.environ]
    how = f"by {', '.join(chosen)}" if chosen else "by mpi4py's search"
    findings.fact("MPI", f"{lib.name}, {lib.path or 'file unknown'}, found {how}")
    if launcher.inside():
        findings.fact("launcher", "this is a rank already: call doctor outside mpiexec for a probe")
        return
    try:
        starter = launcher.find(lib, options.mpiexec)
    except CollectivesError as error:
        text, _, remedy = str(error).rpartition(". ")
        findings.problem("launcher", text or str(error), remedy)
        return
    findings.fact("launcher", f"{starter.path}, of the same family")
    _first_on_path(findings, starter)
    _probe(findings, starter, options.mpiexec_args)


def _first_on_path(findings: _Findings, starter: launcher.Launcher) -> None:
    """Warn of the trap: the mpiexec that one gets by typing its name."""
    typed = shutil.which("mpiexec")
    if typed is None or os.path.realpath(typed) == os.path.realpath(starter.path):
        return
    family = launcher.family_of(typed)
    if family != starter.library.family:
        findings.problem(
            "PATH",
            f"mpiexec is {typed}, that of {launcher.NAMES[family]}, which cannot start ranks of "
            f"{starter.library.name}",
            f"use `collectives run`, or put {os.path.dirname(starter.path)} first on PATH",
        )


def _probe(findings: _Findings, starter: launcher.Launcher, extra: str) -> None:
    from collectives.cli import child

    program = launcher.rank_program(PROGRAM)
    status, output = child.capture(starter.command(2, program, extra), PROBE_SECONDS)
    lines = sorted(line for line in output.splitlines() if line.startswith(PROBE))
    for line in lines:
        findings.fact("probe", line.removeprefix(PROBE))
    facts = [line.removeprefix(MEMORY) for line in output.splitlines() if line.startswith(MEMORY)]
    if facts:
        _memory(findings, json.loads(facts[0]))
    if status == 0 and len(lines) == 2 and all(line.endswith("right") for line in lines) and facts:
        return
    if status == 124:
        text = f"two ranks did not end within {PROBE_SECONDS} s"
        remedy = "look for a firewall on the loopback interface, or a launcher that asks something"
    elif any("WRONG" in line for line in lines):
        text, remedy = "an allreduce was wrong", "report it, with this output"
    else:
        said = output.strip().splitlines() or ["no output"]
        errors = [line for line in said if re.match(r"[\w.]*(Error|Exception): ", line)]
        text = f"two ranks failed with exit status {status}: {(errors or said)[-1]}"
        remedy = "mend that, then try: collectives run -n 2 -c 'import collectives as c; c.size()'"
        if child.HYDRA.decode() in output:
            remedy = "mpiexec itself failed, as MPICH's does under load: try again"
    findings.problem("probe", text, remedy)


def _memory(findings: _Findings, facts: dict[str, Any]) -> None:
    """Say what the two ranks share, how fast that is, and what follows from it."""
    from collectives.cli import state
    from collectives.words import size_text

    settings = facts["settings"]
    if facts["warning"]:
        remedy = "docker run --shm-size=1g; start all ranks of a host in one container"
        if "COLLECTIVES_" in facts["warning"]:
            remedy = "set that variable to something else, or unset it"
        findings.problem("shared memory", facts["warning"], remedy)
    elif "kind" not in facts:
        off = settings["kind"] == "0"
        why = "COLLECTIVES_SHM is 0" if off else "the two ranks are on different hosts"
        findings.fact("shared memory", f"none: {why}")
    else:
        findings.fact(
            "shared memory",
            f"{facts['ranks']} ranks share {size_text(facts['nbytes'])} ({facts['kind']}), "
            f"{facts['lanes']} lanes of {size_text(facts['lane_bytes'])} for each",
        )
        findings.fact("flags", state.text([facts["round_trip"]]))
        alone, at_once = (facts["copied"] / facts[f"copy_{how}"] for how in ("alone", "at_once"))
        findings.fact(
            "copies",
            f"past the cache: {alone / 1e9:.1f} GB/s by one rank, {at_once / 1e9:.1f} GB/s by each "
            f"of two at once",
        )
        findings.fact("affinity", f"{facts['cores']} cores for {facts['ranks']} ranks")
    for name, value, variable in (
        ("memory", settings["kind"], "SHM"),
        ("lane", size_text(settings["lane_bytes"]), "SHM_LANE"),
        ("limit", f"{size_text(settings['limit_bytes'])} for each process", "SHM_LIMIT"),
        ("stores", settings["stores"], "SHM_STORES"),
        ("a wait", f"yields after {settings['spins']} looks", "SHM_SPINS"),
        ("a wait", f"is reported after {settings['stall_warning']:g} s", "STALL_WARNING"),
        ("a wait", f"is an error after {settings['timeout']:g} s", "TIMEOUT"),
    ):
        findings.fact("setting", f"{name:7} {value:30} COLLECTIVES_{variable}")
