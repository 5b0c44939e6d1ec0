"""Start programs under the launcher of an environment, with a deadline. Standard library only."""

from __future__ import annotations

import codecs
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Thread
from typing import IO, Any, AnyStr

# Texts of launchers that die of themselves. They say nothing about the program, so the launch is
# repeated.
LAUNCHER_DIED = (
    "assert (!closed) failed",  # MPICH 5, in a few launches of a hundred on a busy machine
    # Open MPI 5, when a launcher with the same process number was killed and its files are there.
    "The PMIx server's listener thread failed to start",
)
LAUNCHES = 3

# Seconds for a program. The slowest takes 30 on a quiet machine, and has taken 200 at a load of 18.
PATIENCE = 400.0
DEADLINE_PASSED = 124  # the exit status that `timeout` has for it


class Result:
    """The exit status and the output of a program.

    Attributes
    ----------
    status : int
        DEADLINE_PASSED if it was killed for that.
    out, err : str
        ``err`` is empty where the two were joined.
    seconds : float
        Wall-clock time.
    """

    def __init__(self, status: int, out: str, err: str, seconds: float) -> None:
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def __repr__(self) -> str:
        return f"exit status {self.status} after {self.seconds:.1f} s\n{self.out}\n{self.err}"

    @property
    def launcher_died(self) -> bool:
        """True if the launcher died of itself, and not because of the program."""
        return self.status != 0 and any(
            words in text for words in LAUNCHER_DIED for text in (self.out, self.err)
        )


def environment_of(python: str | Path) -> Path:
    """Return the folder with the programs of an interpreter's virtual environment."""
    return Path(python).absolute().parent


@cache
def mpiexec(bin: Path) -> tuple[str, ...]:
    """Return the launcher of an environment, and the options that it needs on this machine."""
    path = bin / "mpiexec"
    text = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    if "Open MPI" not in text:
        return (str(path),)
    options = ["--oversubscribe"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    return (str(path), *options)


def command_line(
    python: str | Path, ranks: int, arguments: Sequence[str | Path], survive: bool = False
) -> list[str]:
    """Return the command that starts a Python program on so many ranks.

    If they are to survive, Open MPI's launcher does not end them when one of them dies. That of
    MPICH does, whatever it is told.
    """
    launcher = list(mpiexec(environment_of(python)))
    if survive and len(launcher) > 1:
        launcher.append("--enable-recovery")
    if ranks > len(os.sched_getaffinity(0)):
        # Both spin for whole time slices where they do not know that they should not.
        if "--oversubscribe" in launcher:
            launcher += ["--mca", "mpi_yield_when_idle", "1"]
        else:
            launcher += ["-genv", "MPIR_CVAR_ENABLE_HEAVY_YIELD", "1"]
    return [*launcher, "-n", str(ranks), str(python), *map(str, arguments)]


def run(
    command: Sequence[str | Path],
    *,
    deadline: float = PATIENCE,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    echo: bool = False,
    label: str = "",
) -> Result:
    """Run a command; kill it and all that it started when the deadline passes.

    Parameters
    ----------
    command : list of str
    deadline : float
        Seconds; with `echo`, those since the last output.
    env : mapping, optional
        Variables to add to those of this process.
    cwd : path, optional
    echo : bool
        Whether the output is shown while it comes; stderr is joined to it then.
    label : str
        Begins each line that is shown.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if echo else subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )
    killed = False

    def kill() -> None:
        nonlocal killed
        killed = True
        # Launchers take their ranks along if they are asked, and have a moment.
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                return
            time.sleep(1)

    out, err = "", ""
    try:
        if echo:
            out = _show(process, deadline, kill, label)
        else:
            out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        kill()
        try:
            out, err = process.communicate(timeout=5)
        except subprocess.TimeoutExpired as left:  # by a process that has left the session
            out, err = (_text(each) for each in (left.output, left.stderr))
    except BaseException:
        kill()
        raise
    status = DEADLINE_PASSED if killed else process.wait()
    return Result(status, out, err, time.monotonic() - began)


def _text(said: bytes | str | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


def _show(process: subprocess.Popen[str], deadline: float, kill: object, label: str) -> str:
    """Copy the output to ours until it ends, or until nothing comes for `deadline` seconds."""
    assert process.stdout is not None
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    fd, said, shown = process.stdout.fileno(), "", 0
    while select.select([fd], [], [], deadline)[0]:
        chunk = os.read(fd, 1 << 16)
        said += decode(chunk, not chunk)
        # Lines of several programs at once are shown when they are whole.
        end = len(said) if not (label and chunk) else said.rfind("\n") + 1
        if end > shown:
            sys.stdout.write("".join(label + line for line in said[shown:end].splitlines(True)))
            sys.stdout.flush()
            shown = end
        if not chunk:
            break
    else:
        kill()  # type: ignore[operator]
    return said


def line_of(job: subprocess.Popen[AnyStr], stream: IO[AnyStr] | None = None) -> AnyStr:
    """Return the next line of a job's output, or of its other stream; kill it if none comes."""
    stream = stream or job.stdout
    assert stream is not None
    read = stream.readline
    found: list[AnyStr] = []
    reader = Thread(target=lambda: found.append(read()), daemon=True)
    reader.start()
    reader.join(PATIENCE)
    if not found:
        job.kill()
        raise TimeoutError(f"the job has printed no line in {PATIENCE:g} s")
    return found[0]


def launch(command: Sequence[str | Path], **options: Any) -> Result:
    """Run a command that has a launcher in it; repeat it if it was the launcher that died.

    The `options` are those of `run`.
    """
    for number in range(1, LAUNCHES + 1):
        result = run(command, **options)
        if not result.launcher_died:
            break
        print(f"mpiexec died of itself, launch {number} of {LAUNCHES}:\n{result}")
    return result


def on_ranks(
    python: str | Path,
    ranks: int,
    *arguments: str | Path,
    deadline: float = PATIENCE,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    echo: bool = False,
    survive: bool = False,
    prefix: Sequence[str] = (),
) -> Result:
    """Launch a Python program on so many ranks. The launcher's command stands behind `prefix`."""
    command = [*prefix, *command_line(python, ranks, arguments, survive)]
    return launch(command, deadline=deadline, env=env, cwd=cwd, echo=echo)
