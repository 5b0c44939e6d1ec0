"""The verdict on a reader's text: the algorithm that it registers, proven, and data to play it.

`verdict` runs the text in this process, which is safe for texts of the course. The text of a reader
runs in a child process with limits (`judged`).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import json
import linecache
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO, Any, NoReturn

from collectives.algorithms import Algorithm, get, names, unregister
from collectives.algorithms.spec import COLLECTIVES
from collectives.explorer.catalogue import data
from collectives.text.words import count

FILE = "your text"  # the name in errors
LONGEST = 20_000  # characters of a text
SECONDS = 20  # for a verdict; an idle machine needs less than one
BYTES = 2**31  # of memory
PRINTED = 2**24  # maximum bytes of a text's output, and of a verdict
SHOWN = 2_000  # characters of its output that a verdict has


def verdict(text: str, ranks: Sequence[int], file: str = FILE) -> dict[str, Any]:
    """Return the data of the algorithm that a text registers, on some numbers of ranks. Local.

    If there is none, the entry ``"error"`` has the reason, and ``"line"`` its line, if known. The
    entry ``"printed"`` is the end of what the text has printed. `file` is the name of the text.
    """
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    output = _Output()
    with contextlib.redirect_stdout(output):
        found = _found(text, ranks, file)
    return {**found, "printed": output.end} if output.end else found


def _found(text: str, ranks: Sequence[int], file: str) -> dict[str, Any]:
    """Return a verdict without what the text has printed."""
    try:
        with _registered() as rows:
            exec(compile(text, file, "exec"), {"__name__": "your_text", "input": _refuse_to_ask})
            if not rows():
                return {"error": "no algorithm is registered: put @algorithm above a generator"}
            [row, *others] = rows()
            if others:
                registered = count(len(rows()), "algorithm")
                return {"error": f"{registered} are registered: put @algorithm above one generator"}
            found = data(row, ranks)
    except (Exception, SystemExit) as error:
        return _failed(error, file)
    return {"name": row.name, "collective": row.collective.name, **found}


class _Output(io.TextIOBase):
    """Keeps the end of what is printed."""

    end = ""
    length = 0

    def write(self, text: str) -> int:
        self.end = (self.end + text)[-SHOWN:]
        self.length += len(text)
        if self.length > PRINTED:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return len(text)


def _refuse_to_ask(prompt: object = "") -> NoReturn:
    raise RuntimeError("input() cannot ask anybody here: write the value into the text")


@contextlib.contextmanager
def _registered() -> Iterator[Any]:
    """Yield a function that returns the algorithms registered since, and remove them at the end."""
    before = set(_every())

    def rows() -> list[Algorithm]:
        return [row for row in _every() if row not in before]

    try:
        yield rows
    finally:
        for row in rows():
            unregister(row.collective.name, row.name)


def _every() -> list[Algorithm]:
    return [get(collective, name) for collective in COLLECTIVES for name in names(collective)]


def _failed(error: BaseException, file: str) -> dict[str, Any]:
    """Return the text of an exception, and the line of the program that has raised it."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == file:
            line = frame.lineno
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        words = f"the text has printed more than {PRINTED:,} bytes"
    found = {"error": f"{type(error).__name__}: {words}".removesuffix(": ")}
    return found if line is None else {**found, "line": line}


def judged(text: str, ranks: Sequence[int], seconds: float = SECONDS) -> dict[str, Any]:
    """Return the verdict on a text that is not trusted, from a child process. Local."""
    if len(text) > LONGEST:
        return {"error": f"the text has {count(len(text), 'character')}, and may have {LONGEST:,}"}
    command = [sys.executable, "-c", "from collectives.explorer import verdict; verdict.main()"]
    # OpenBLAS takes 42 MB of addresses per thread (VmPeak of `import numpy`, NumPy 2, 2026-11-25).
    # By default it has a thread for each core, and the limit of memory is the child's.
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    words = json.dumps({"text": text, "ranks": list(ranks)}).encode()
    # Files can be limited in size, and do not block the reader if a process is left behind, as
    # pipes do.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=env, start_new_session=True
        ) as child:
            end = partial(_end, child)
            atexit.register(end)
            try:
                child.communicate(words, timeout=seconds)
            except subprocess.TimeoutExpired:
                return {
                    "error": f"there is no verdict after {seconds:g} s: does the generator end?"
                }
            finally:
                end()
                atexit.unregister(end)
        with contextlib.suppress(ValueError):
            if child.returncode == 0:
                found: dict[str, Any] = json.loads(_last_line(out))
                return found
        last = _last_line(err)[:500] or f"exit status {child.returncode}"
    return {"error": f"the process that checks the text ended early: {last}"}


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child, and all processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip().rpartition("\n")[2]


def _limit() -> None:
    """Limit the memory, the time and the output of this process, where the system can."""
    if hasattr(signal, "alarm"):
        signal.alarm(2 * SECONDS)  # if the parent process has ended
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        for kind, most in (
            (resource.RLIMIT_AS, BYTES),
            (resource.RLIMIT_CPU, 2 * SECONDS),
            (resource.RLIMIT_FSIZE, PRINTED),
        ):
            resource.setrlimit(kind, (most, most))


def main() -> None:
    """Read a text from standard input, and print the verdict in the last line."""
    _limit()
    asked = json.load(sys.stdin)
    own = os.getpid()
    out, sys.stdout = sys.stdout, sys.stderr  # a text may print to stdout
    found = verdict(asked["text"], asked["ranks"])
    if os.getpid() == own:  # not a copy that the text has forked
        print("\n" + json.dumps(found), end="", file=out, flush=True)
    os._exit(0)  # without waiting for threads of the text, or calling its exit functions
