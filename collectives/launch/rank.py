"""The program of a rank that no MPI has started: it works for `spawn`, or runs a program.

Ranks start this file by its path. It imports nothing of the package, so that the function of a rank
only waits for its own imports.

::

    rank.py PARENT spawn TASK ANSWER     the numbers of a process, and of two open files
    rank.py PARENT run program.py ...    or -m module, or -c code
    rank.py PARENT lines program.py ...  the same, and each line is written as soon as it ends
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main() -> None:
    """Run the task or the program of the arguments. Local."""
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # not with PYTHONSAFEPATH
        del sys.path[0]
    _, parent, kind, *words = sys.argv
    _end_with(int(parent))
    if kind != "run":
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="utf-8", line_buffering=True)  # type: ignore[union-attr]
    if kind == "spawn":
        _work(*map(int, words))
    else:
        _run(words)


def _end_with(parent: int) -> None:
    """Have the kernel end this process with the one that has started it."""
    import ctypes

    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _run(words: list[str]) -> None:
    """Run a program as the ranks of `collectives run` do under MPI."""
    import runpy

    here = os.path.dirname(os.path.abspath(__file__))
    program = os.path.join(os.path.dirname(here), "process", "program.py")
    sys.argv[:] = [program, *words]
    sys.path.insert(0, "")  # the runner replaces it
    runpy.run_path(program, run_name="__main__")


def _work(task: int, answer: int) -> None:
    """Call the function of a task; write the result, or the error, as the answer."""
    rank = os.getpid()
    try:
        function, args, keywords = _task(task)
        try:
            result = function(*args, **keywords)
        finally:
            if os.getpid() != rank:  # a child of it, which has no answer
                _end_child()
    except SystemExit as error:
        status = "" if error.code is None else repr(error.code)
        _fail(answer, error, "exit", f"called sys.exit({status})")
    except KeyboardInterrupt as error:
        _fail(answer, error, "exit", "was interrupted")
    except BaseException as error:
        _fail(answer, error, "error", _traceback(error))
    try:
        data = _dumps(result)
    except BaseException as error:
        _fail(answer, error, "unpicklable", f"{type(error).__name__}: {error}")
    _write(answer, "result", "", data)


def _end_child() -> NoReturn:
    """End a process that the function has forked."""
    error = sys.exc_info()[1]
    if error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1 if error is not None else 0)


def _task(number: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the function and its arguments; make this process similar to the caller."""
    import pickle

    with open(f"/proc/self/fd/{number}", "rb") as file:  # with a position of its own
        sys.path[:], sys.argv[:], sources = pickle.load(file)
        if sources:
            import linecache

            linecache.cache.update(sources)
        function, args, keywords = pickle.load(file)
    os.close(number)
    # Names that the caller's `__main__` has defined can be pickled from one rank to another.
    if getattr(function, "__module__", None) == "__main__":
        names = getattr(function, "__globals__", {}).items()
        mine = vars(sys.modules["__main__"])
        mine.update((name, value) for name, value in names if not name.startswith("__"))
    return function, args, keywords


def _dumps(obj: Any) -> bytes:
    import cloudpickle

    data: bytes = cloudpickle.dumps(obj)
    return data


def _traceback(error: BaseException) -> str:
    """Return the text of an error's traceback, from the function on."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    report = sys.modules.get("collectives.process.report")
    if report is not None:
        text: str = report.shortened(type(error), error, trace)
        return text
    import traceback

    return "".join(traceback.format_exception(type(error), error, trace))


def _fail(answer: int, error: BaseException, kind: str, text: str) -> NoReturn:
    """Answer with an error, inform the ranks that wait for this one, and end."""
    import pickle

    data, reason = b"", ""
    if kind == "error":
        try:
            data = _dumps(error)
            if type(pickle.loads(data)) is not type(error):
                data, reason = b"", "it becomes another one"
        except Exception as problem:
            data, reason = b"", f"{type(problem).__name__}: {problem}"
    _write(answer, kind, text, data, reason)
    with contextlib.suppress(BaseException):
        _leave(f"{type(error).__name__}: {error}")
    os._exit(1)


def _leave(text: str) -> None:
    """Leave the communicators of this rank as one that ends because of an error."""
    core = sys.modules.get("collectives._core")
    abort = sys.modules.get("collectives.process.abort")
    if core is not None:
        core.give_up_all(text)
        core.take_leave_all()
    if abort is not None:
        abort.run_before_end()
    sys.stdout.flush()
    sys.stderr.flush()


def _write(answer: int, kind: str, text: str, data: bytes, reason: str = "") -> None:
    import pickle

    with open(answer, "wb") as file:
        pickle.dump((kind, text, reason), file)
        file.write(data)


if __name__ == "__main__":
    main()
