"""The verdict on a reader's text: the algorithm that it registers, proven, and data to play it.

`verdict` runs the text in this process, which is right for texts of the course. What a reader has
typed runs in a child process with a time limit (`judged`).
"""

from __future__ import annotations

import contextlib
import json
import linecache
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from collectives.algorithms import Algorithm, get, names, unregister
from collectives.algorithms.spec import COLLECTIVES
from collectives.explorer.catalogue import data
from collectives.text.words import count

FILE = "your text"  # as errors name it
LONGEST = 20_000  # characters of a text
SECONDS = 20  # for a verdict; a quiet machine needs less than one
BYTES = 2**31  # of memory


def verdict(text: str, ranks: Sequence[int]) -> dict[str, Any]:
    """Return the data of the algorithm that a text registers last, on some numbers of ranks. Local.

    If there is none, the entry ``"error"`` says why, and ``"line"`` where, if that is known.
    """
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    try:
        with _registered() as rows:
            exec(compile(text, FILE, "exec"), {"__name__": "your_text"})
            if not rows():
                return {"error": "no algorithm is registered: put @algorithm above a generator"}
            row = rows()[-1]
            found = data(row, ranks)
    except (Exception, SystemExit) as error:
        return _failed(error)
    return {"name": row.name, "collective": row.collective.name, **found}


@contextlib.contextmanager
def _registered() -> Iterator[Any]:
    """Yield a function that returns what is registered meanwhile, and remove it at the end."""
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


def _failed(error: BaseException) -> dict[str, Any]:
    """Return what an exception says, and in which line of the text it was raised."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    line = error.lineno if isinstance(error, SyntaxError) else None
    for each, file in zip(lines, files, strict=True):
        if file == FILE:
            line = each
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    found = {"error": f"{type(error).__name__}: {words}"}
    return found if line is None else {**found, "line": line}


def judged(text: str, ranks: Sequence[int], seconds: float = SECONDS) -> dict[str, Any]:
    """Return the verdict on a text that is not trusted, from a child process. Local."""
    if len(text) > LONGEST:
        return {"error": f"the text has {count(len(text), 'character')}, and may have {LONGEST:,}"}
    command = [sys.executable, "-c", "from collectives.explorer import verdict; verdict.main()"]
    words = json.dumps({"text": text, "ranks": list(ranks)})
    try:
        done = subprocess.run(
            command, input=words, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"there is no verdict after {seconds:g} s: does the generator end?"}
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2][:500]
        return {"error": f"the process that checks the text ended early: {last or done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.rpartition("\n")[2])
    return found


def _limit() -> None:
    """Limit the memory and the time of this process, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (2 * SECONDS, 2 * SECONDS))


def main() -> None:
    """Read a text from standard input, and print the verdict in the last line."""
    _limit()
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        found = verdict(asked["text"], asked["ranks"])
    print("\n" + json.dumps(found), end="")
