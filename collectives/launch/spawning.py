"""`spawn`: a function on several ranks, from any Python program, and its results."""

from __future__ import annotations

import io
import linecache
import math
import operator
import os
import pickle
import sys
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple, ParamSpec, TypeVar, overload

from collectives.errors import (
    ArgumentError,
    CommunicatorError,
    PeerAbortedError,
    PeerLostError,
    RankError,
    StallError,
)
from collectives.process import environment
from collectives.process.waiting import Wait
from collectives.text.words import spans

if TYPE_CHECKING:
    from collectives.launch import local

P = ParamSpec("P")
T = TypeVar("T")

MOST = 4096  # ranks of one host
WITHOUT_FILE = "<dynamic-code>"  # as cloudpickle 3.1.3 calls the file of all code
LOOK = 0.5  # seconds between two checks whether this process was stopped

# A rank raises these because another one has failed.
CONSEQUENCES = (PeerAbortedError, PeerLostError)


class Failure(NamedTuple):
    """The failure of a rank that did not return: the error, its traceback, and a line of text."""

    rank: int
    error: BaseException
    trace: str
    words: str
    host: str = ""  # if ranks may be on several
    follows: bool = False  # whether the rank itself said that the error follows from another rank's


@overload
def spawn(
    function: Callable[..., T], n: int, *args: Any, timeout: float | None, **keywords: Any
) -> list[T]: ...
@overload
def spawn(function: Callable[P, T], n: int, *args: P.args, **keywords: P.kwargs) -> list[T]: ...
def spawn(  # type: ignore[misc]  # the function may have a `timeout`, too, but cannot get one
    function: Callable[..., T], n: int, *args: Any, timeout: float | None = None, **keywords: Any
) -> list[T]:
    """Call a function on `n` ranks of this host, and return the results in the order of the ranks.
    Local.

    The ranks are new Python processes. In the function, `world` and the functions on the default
    communicator work without MPI. The function may be defined in a script, which needs no
    ``if __name__ == "__main__"``, in a notebook or at the prompt. The output of the ranks appears
    in `sys.stdout` and `sys.stderr` line by line, each line after the number of its rank. No rank
    outlives this call or this process.

    Parameters
    ----------
    function : callable
        Called as ``function(*args, **keywords)`` on each rank. It is sent with the names that it
        uses of a script or a notebook. A function of a module is imported from there.
    n : int
        Number of ranks.
    *args, **keywords : object
        The arguments, the same on all ranks.
    timeout : float, optional
        Seconds until all ranks must have ended. There is no limit by default. The function does not
        get it.

    Returns
    -------
    list
        The result of each rank.

    Raises
    ------
    ArgumentError
        If an argument has an invalid value, or cannot be pickled. No rank has been started.
    CommunicatorError
        If this process is a rank itself.
    Exception
        The exception of the function, if it raised one on a rank. The other ranks are ended.
        The cause of the exception is a `RankError` that has the rank, its traceback and the other
        ranks that failed. If several ranks failed, the first error that is not the consequence of
        another one is raised.
    RankError
        If a result or an exception cannot be pickled.
    PeerLostError
        If a rank ended before it returned: because of a signal, or by `sys.exit`.
    StallError
        If `timeout` has passed. The ranks are ended.

    Notes
    -----
    If ``OMP_NUM_THREADS`` is not set, the ranks share the cores: each has the value
    ``max(1, cores // n)``. Their standard input is empty.

    Examples
    --------
    >>> import collectives as cc
    >>> def total(x):
    ...     return cc.allreduce_object(x * cc.rank())
    >>> cc.spawn(total, 4, 10)
    [60, 60, 60, 60]
    """
    n = checked(function, n, timeout)
    task = pickled(function, args, keywords)
    import tempfile  # like cloudpickle, not needed by programs that do not call this

    from collectives.launch import local

    variables = local.variables()
    variables.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // n)))
    with tempfile.TemporaryFile() as made, open(local.apart(os.dup(made.fileno())), "wb") as file:
        _write(file, task)
        with local.Children(n) as job:
            job.start(["spawn"], variables, task=file.fileno())
            results, failures = _outcomes(job, n, timeout)
    if failures:
        raise cause(failures, n)
    return [results[number] for number in range(n)]


def checked(function: Any, n: Any, timeout: float | None) -> int:
    """Check the arguments and this process; return the number of ranks. Local."""
    if not callable(function):
        raise ArgumentError(f"function is {function!r}, and must be callable")
    try:
        number = operator.index(n)
    except TypeError:
        number = 0
    if number < 1:
        raise ArgumentError(f"n is {n!r}, and must be a positive number of ranks")
    if number > MOST:
        raise ArgumentError(f"n is {n!r}, and may be {MOST} at most")
    try:
        is_valid = timeout is None or 0 < timeout < math.inf
    except TypeError:
        is_valid = False
    if not is_valid:
        raise ArgumentError(f"timeout is {timeout!r}, and must be a positive number of seconds")
    places = list(environment.PLACES)
    if environment.is_of_torchrun():
        places.append(("RANK", "WORLD_SIZE"))
    if environment.is_of_srun():
        places.append(("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    for names in places:
        rank, size = (environment.text(name) or "" for name in names)
        if size.isdecimal() and (int(size) > 1 or environment.RANK in names):
            raise CommunicatorError(
                f"spawn was called on rank {rank or '?'} of {size}: this process is a rank, "
                f"and each of them would start {number} more. Call spawn in a program that is "
                f"started without a launcher"
            )
    return number


def pickled(function: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> bytes:
    """Return the task of all ranks. Local."""
    try:
        return _dumps((function, args, keywords))
    except Exception as error:
        named = [(f"function {_name(function)}", function)]
        named += [(f"argument {number}", each) for number, each in enumerate(args)]
        named += [(f"argument {name}", each) for name, each in keywords.items()]
        reason = f"{type(error).__name__}: {error}"
        for name, each in named:
            try:
                _dumps(each)
            except Exception as found:
                what = f"{name} cannot be pickled: {type(found).__name__}: {found}"
                raise ArgumentError(f"{what}. It is sent to the ranks") from error
        raise ArgumentError(f"function and arguments cannot be pickled: {reason}") from error


def _dumps(obj: Any) -> bytes:
    """Pickle functions by value, with the names of their files: tracebacks show their lines."""
    import cloudpickle

    known = cloudpickle.Pickler.dispatch_table

    def code(obj: CodeType) -> tuple[Any, ...]:
        if obj.co_filename == WITHOUT_FILE:
            reduced: tuple[Any, ...] = known[CodeType](obj)
            return reduced
        named = operator.methodcaller("replace", co_filename=obj.co_filename)
        return named, (obj.replace(co_filename=WITHOUT_FILE),)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: code}, known)

    with io.BytesIO() as file:
        Pickler(file).dump(obj)
        return file.getvalue()


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _write(file: IO[bytes], task: bytes) -> None:
    """Write the input of a rank: the state of this process that it takes over, and its task."""
    # Tracebacks show the lines of cells and of typed input, which are in no file.
    sources = {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None
    }
    pickle.dump((sys.path, sys.argv, sources), file)
    file.write(task)
    file.flush()


def _outcomes(
    job: local.Children, n: int, timeout: float | None
) -> tuple[dict[int, Any], list[Failure]]:
    """Return the results of the ranks, and the failures in the order in which they came."""
    from collectives.launch import local

    results: dict[int, Any] = {}
    failures: dict[int, Failure] = {}
    farewell = None  # until when others may fail, after one has
    wait = Wait()
    while job.running:
        until = farewell
        if until is None and timeout is not None:
            until = time.monotonic() + min(LOOK, max(0.0, timeout - wait.passed()))
        for rank in job.turn(until):
            number = rank.number
            if rank.answer and number not in results and number not in failures:
                outcome = _read(number, n, rank.answer)
                if isinstance(outcome, Failure):
                    failures[number] = outcome
                else:
                    results[number] = outcome[0]
            if rank.status is not None and number not in failures:
                how = local.ended(rank.status)
                if number not in results:
                    failures[number] = lost(number, n, how, "before it returned")
                elif rank.status != 0:
                    failures[number] = lost(number, n, how, "after it returned")
        now = time.monotonic()
        if failures and farewell is None:
            farewell = now + local.FAREWELL
        if farewell is not None and now >= farewell:
            break
        if timeout is not None and wait.passed() >= timeout and not failures and job.running:
            raise late([rank.number for rank in job.running], set(results), n, timeout)
    return results, list(failures.values())


def _read(number: int, n: int, answer: bytes) -> tuple[Any] | Failure:
    """Return the answer of a rank: its result in a tuple of length 1, or its failure."""
    file = io.BytesIO(answer)
    try:
        kind, text, reason = pickle.load(file)
    except Exception:
        return lost(number, n, "ended while it wrote its answer", "")
    who = f"rank {number} of {n}"
    if kind == "exit":
        return lost(number, n, text, "before it returned")
    if kind == "unpicklable":
        words = f"the result of {who} cannot be pickled: {text}"
        return Failure(number, RankError(words), "", words)
    if not reason:
        try:
            value = pickle.load(file)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            if kind == "result":
                return (value,)
            return Failure(number, value, text, text.strip().rpartition("\n")[2])
    if kind == "result":
        words = f"the result of {who} cannot be read here: {reason}"
        return Failure(number, RankError(words), "", words)
    words = f"{who} raised an exception that cannot be pickled ({reason})"
    return Failure(number, RankError(f"{words}:\n\n{text}"), "", words)


def lost(number: int, n: int, how: str, when: str) -> Failure:
    """Return the failure of a rank that ended. Local."""
    words = f"{how} {when}".strip()
    return Failure(number, PeerLostError(f"rank {number} of {n} {words}"), "", words)


def late(running: list[int], returned: set[int], n: int, timeout: float) -> StallError:
    """Return the error after the deadline, when some ranks still run. Local."""
    missing = sorted(set(running) - returned)
    what = "returned"
    if not missing:
        missing, what = running, "ended, although it returned"
    who, has = ("rank", "has") if len(missing) == 1 else ("ranks", "have")
    if what != "returned" and len(missing) > 1:
        what = "ended, although they returned"
    return StallError(
        f"{who} {spans(missing)} of {n} {has} not {what}, and the timeout of {timeout:g} s is over"
    )


def cause(failures: list[Failure], n: int) -> BaseException:
    """Return the first error that does not follow from another one, with a text on all of them."""
    first = next(
        (each for each in failures if not each.trace or not (each.follows or follows(each.error))),
        failures[0],
    )
    same = [each.rank for each in failures if each.trace and each.trace == first.trace]
    others = [each for each in failures if each is not first and each.rank not in same]
    parts = [f"rank {each.rank}{_on(each)} failed, too: {each.words}" for each in others]
    if first.trace:
        who = f"rank {first.rank}" if len(same) < 2 else f"ranks {spans(sorted(same))}"
        parts.insert(0, f'on {who} of {n}{_on(first)}:\n"""\n{first.trace.strip()}\n"""')
    if parts:
        first.error.__cause__ = RankError("\n".join(parts))
    return first.error


def follows(error: BaseException | None) -> bool:
    """Return whether an error, or one that it comes from, follows from another rank's. Local."""
    return error is not None and (isinstance(error, CONSEQUENCES) or follows(error.__cause__))


def _on(failure: Failure) -> str:
    return f" on {failure.host}" if failure.host else ""
