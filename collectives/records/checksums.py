"""The trace of a run: a line for each call of the program, with checksums of its arrays.

With ``COLLECTIVES_TRACE``, the public methods of communicators and the submissions to the
background are wrapped when their modules are imported. Calls that a wrapped call makes are part of
it, and not recorded. Each rank writes a file of its own, in the order in which calls end; each line
has the place of its call in the order of the program. `runs` reads the files.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import threading
import uuid
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from collectives import _core
from collectives._version import __version__
from collectives.arrays.leaves import Options, leaves
from collectives.errors import ArgumentError, CollectivesError, TimelineWarning
from collectives.process import abort, environment, processes
from collectives.records import tape
from collectives.records.runs import FOLDS, MESSAGES, SUFFIX, VERSION
from collectives.reductions import Reduction, name_of
from collectives.text import files
from collectives.text.origin import levels, place
from collectives.text.words import article, shown

if TYPE_CHECKING:
    from collectives.process.meeting import Meeting

    class RecordedRanks(Protocol):
        """The parts of a communicator that the trace of a run needs."""

        rank: int
        size: int
        _meeting: Meeting


MOVES = "broadcast", "allgather", "alltoall", "gather", "scatter"
METHODS = {
    *(*MOVES, *FOLDS, "reduce_scatter", "barrier", "allreduce_many", "same", "stop_requested"),
    *("allgatherv", "gatherv", "scatterv", "reduce_scatterv", "alltoallv"),
    *MESSAGES,
    *(f"{name}_object" for name in (*MOVES, *FOLDS)),
    *(f"neighbor_{name}" for name in ("allgather", "allgatherv")),
    *(f"neighbor_{name}" for name in ("alltoall", "alltoallv", "alltoallw")),
}
SUBMISSIONS = "submit", "submit_many", "submit_steps"

INPUTS = "x", "arrays", "obj", "objs", "value"
HOW = "algorithm", "bits"  # may differ between runs
NOT_SAID = {"self", "out", "collective", "kind", "what", "name", "group", "copies", "priority"}
NOT_SAID |= {"timeout", *INPUTS, *HOW}
EQUAL = Options(dtypes=True, shapes=True, order=True)


class _Thread(threading.local):
    """The call that this thread makes, or True for calls that are not recorded."""

    call: Call | bool | None = None


_thread = _Thread()
_recorder: Recorder | None = None
_left_out: weakref.WeakSet[Any] = weakref.WeakSet()  # communicators that serve recorded calls
_submitted: dict[Any, Call] = {}  # by the handle


class Recorder:
    """The file of this rank, and the calls that have begun."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._lock: Any = threading.RLock()  # a signal handler may make a call
        self._calls = 0
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._unfinished: dict[int, Call] = {}

    def begin(self, call: Call, series: str) -> None:
        """Give a call its place among all, and its number in its series. Local."""
        with self._lock:
            self._look_around()
            self._calls += 1
            key = call.facts["communicator"], series
            self._numbers[key] += 1
            call.facts |= {"place": self._calls, "series": series, "number": self._numbers[key]}
            self._unfinished[self._calls] = call

    def _look_around(self) -> None:
        """Record the results of requests that a scope has waited for."""
        for call in list(self._unfinished.values()):
            if getattr(call.made, "taken", False):
                call.end(call.made.wait())

    def end(self, call: Call) -> None:
        """Write a call that has ended. Local."""
        with self._lock:
            self._unfinished.pop(call.facts["place"], None)
            self.write(call.facts)

    def write(self, facts: dict[str, Any]) -> None:
        """Write a line at once, so that the file is complete if the process is killed. Local."""
        text = memoryview(json.dumps(facts, separators=(",", ":")).encode() + b"\n")
        try:
            while text and self._file >= 0:
                text = text[os.write(self._file, text) :]
        except OSError as error:
            self._file = -1
            text = memoryview(b"")
            warnings.warn(
                f"the trace of this rank ends early: {error.strerror} ({environment.TRACE})",
                TimelineWarning,
                stacklevel=levels(),
            )

    def finish(self) -> None:
        """Write the calls that are not complete, and the end. Local."""
        with self._lock:
            with contextlib.suppress(CollectivesError):
                self._look_around()
            for call in self._unfinished.values():
                self.write({**call.facts, "unfinished": True})
            self.write({"end": self._calls})
            self._file = -1


class Call:
    """A call of the program that has begun."""

    def __init__(
        self,
        recorder: Recorder,
        comm: Any,
        kind: str,
        given: Mapping[str, Any],
        is_submitted: bool = False,
    ) -> None:
        self._recorder = recorder
        self._lock: Any = threading.RLock()
        self._has_ended = False
        self.made: Any = None  # the request, if there is one
        name = given.get("name")
        self.facts: dict[str, Any] = {
            "communicator": comm._engine.label[0],
            "kind": kind,
            "name": name,
            "said": _said(kind, given),
            "how": {key: given[key] for key in HOW if given.get(key) is not None},
            "line": place(),
            "inputs": _inputs(comm, kind, given),
        }
        series = ""
        if is_submitted:
            series = f"background {kind if name is None else repr(name)}"
        elif kind in MESSAGES:  # to and from different ranks, their order does not matter
            series = " ".join([kind, *(f"{key} {at}" for key, at in self.facts["said"].items())])
        recorder.begin(self, series)

    def run(self, function: Callable[[], Any]) -> Any:
        """Make the call, and those that are part of it; record an error."""
        _thread.call = self
        try:
            return function()
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            _thread.call = None

    def end(self, result: Any) -> Any:
        """Record the result, and return it. Local."""
        self._end(lambda: {"result": checksums("result", result)})
        return result

    def fail(self, error: BaseException) -> None:
        """Record an error. Local."""
        self._end(lambda: {"error": type(error).__name__})

    def end_unread(self) -> None:
        """Record the end of a call whose result cannot be read here. Local."""
        self._end(lambda: {"result": None})

    def _end(self, outcome: Callable[[], dict[str, Any]]) -> None:
        with self._lock:  # another thread that waits gets the result when it is recorded
            if not self._has_ended:
                self._has_ended = True
                self.facts |= outcome()
                self._recorder.end(self)


def checksums(path: str, value: Any) -> list[list[str | None]]:
    """Return the path, the kind and the checksum of each part of a value; the checksum is None for
    a part that cannot be compared. Local.
    """
    if value is None:
        return []
    try:
        found = leaves(value, path, EQUAL)
        return [[leaf.path, leaf.kind, leaf.digest().hex()[:32]] for leaf in found]
    except Exception:  # also of a user's type
        return [[path, article(type(value).__name__), None]]


def _inputs(comm: Any, kind: str, given: Mapping[str, Any]) -> list[list[str | None]] | None:
    """Return the checksums of the inputs of a rank, or None if they are not known."""
    if "what" in given:
        return None
    if kind.startswith(("broadcast", "scatter")) and comm.rank != given.get("root"):
        return []
    names = [name for name in INPUTS if name in given]
    return [each for name in names for each in checksums(name, given[name])]


def _said(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that describe a call, as JSON."""
    left_out = set(NOT_SAID)
    if not kind.startswith(FOLDS):
        left_out.add("op")
    if not kind.startswith(("broadcast", "gather", "scatter")) and (
        not kind.startswith("reduce") or kind.startswith("reduce_scatter")
    ):
        left_out.add("root")
    return {
        key: name_of(each) if key == "op" and isinstance(each, str) else _text(each)
        for key, each in given.items()
        if key not in left_out
    }


def _text(value: Any) -> Any:
    """Return an argument as JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Reduction):
        return value.name
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, np.ndarray | Sequence):
        return shown(np.asarray(value).tolist())
    return getattr(value, "name", type(value).__name__)


# ---- wrapped calls -------------------------------------------------------------------------------


class RecordedRequest:
    """A request that records the result when the program learns that it is complete."""

    def __init__(self, made: Any, call: Call | None) -> None:
        self._made, self._call = made, call
        if call is not None:
            call.made = made

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the request."""
        return type(self._made)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __repr__(self) -> str:
        return repr(self._made)

    def __await__(self) -> Generator[Any, None, Any]:
        return _core.awaited(self)

    def test(self) -> bool:
        """Advance the request; return whether it is complete. Local."""
        is_complete: bool = self._ended(self._made.test)
        if is_complete and self._call is not None:
            self._call.end(self._made.wait())
        return is_complete

    def wait(self, *args: Any, **given: Any) -> Any:
        """Wait for the result, and return it."""
        result = self._ended(lambda: self._made.wait(*args, **given))
        return result if self._call is None else self._call.end(result)

    def _ended(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except ArgumentError:  # of `timeout`: the operation continues
            raise
        except CollectivesError as error:
            if self._call is not None:
                self._call.fail(error)
            raise


class RecordedPlan(RecordedRequest):
    """A planned call, each run of which is a call."""

    def __init__(self, made: Any, begin: Callable[[], Call]) -> None:
        super().__init__(made, None)
        self._begin = begin

    def __call__(self, *args: Any, **given: Any) -> Any:
        call = self._begin()
        return call.end(call.run(lambda: self._made(*args, **given)))

    def start(self) -> RecordedPlan:
        """Start a run and return at once. Collective."""
        self._call = call = self._begin()
        call.run(self._made.start)
        return self


def _given(signature: inspect.Signature, args: Any, options: Any) -> dict[str, Any] | None:
    """Return the arguments of a call that are no defaults, its operation, its root and its group,
    by name; or None if they are wrong.
    """
    try:
        bound = signature.bind(*args, **options)
    except TypeError:
        return None
    bound.apply_defaults()
    defaults = {key: each.default for key, each in signature.parameters.items()}
    return {
        key: value
        for key, value in bound.arguments.items()
        if key in ("op", "root", "group")
        or not (isinstance(value, int | float | str | None) and value == defaults[key])
    }


def wrap(owner: type[Any]) -> None:
    """Record the calls of the methods of a class. Local."""
    for name in dir(owner):
        kind = name[1:] if name[:1] == "i" and name[1:] in METHODS else name
        if kind in METHODS or kind == "plan":
            setattr(owner, name, _recorded(getattr(owner, name), kind, kind != name))


def _recorded(method: Callable[..., Any], kind: str, is_started: bool) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        comm, recorder = getattr(self, "comm", self), _recorder
        if recorder is None or _thread.call is not None or comm in _left_out:
            return method(self, *args, **options)
        given = _given(signature, (self, *args), options)
        if given is None:
            return method(self, *args, **options)
        if kind == "plan":
            made = method(self, *args, **options)
            what = given["collective"]
            return RecordedPlan(made, lambda: Call(recorder, comm, what, given))
        made = Call(recorder, comm, kind, given)
        result = made.run(lambda: method(self, *args, **options))
        return RecordedRequest(result, made) if is_started else made.end(result)

    return call


def unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose calls are not recorded. Local."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        before, _thread.call = _thread.call, True
        try:
            return function(*args, **options)
        finally:
            _thread.call = before

    return call


def wrap_background(module: ModuleType, group: type[Any]) -> None:
    """Record the submissions of a module, whose `group` has those of a communicator. Local."""
    for name in SUBMISSIONS:
        setattr(module, name, _submission(getattr(module, name), module))
    make, add, end = unrecorded(group.__init__), group._add, group._end

    @functools.wraps(make)
    def made(self: Any, *args: Any) -> None:
        make(self, *args)
        _left_out.update((self.control, self.data))

    @functools.wraps(add)
    def added(self: Any, handle: Any, *args: Any) -> Any:
        if isinstance(_thread.call, Call):
            _submitted[handle] = _thread.call
        try:
            return add(self, handle, *args)
        except BaseException:  # the submission was refused
            _submitted.pop(handle, None)
            raise

    @functools.wraps(end)
    def ended(self: Any, handles: Sequence[Any], error: BaseException | None = None) -> None:
        for handle in handles:
            call = _submitted.pop(handle, None)
            if call is not None and error is not None:
                call.fail(error)
            elif call is not None and hasattr(handle.copies, "steps"):  # NCCL has not ended it
                call.end_unread()
            elif call is not None:
                call.end(handle.value if handle.takes_steps else handle._result())
        end(self, handles, error)

    group.__init__, group._add, group._end = made, added, ended


def _submission(function: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def submit(*args: Any, **options: Any) -> Any:
        recorder = _recorder
        given = None if _thread.call is not None else _given(signature, args, options)
        if recorder is None or given is None:
            return function(*args, **options)
        kind = given.get("kind", "allreduce_many")
        if "what" in given:
            kind = given["what"].text.partition(" ")[0]
        comm = module._checked(given["group"])
        call = Call(recorder, comm, str(kind), given, is_submitted=True)
        return call.run(lambda: function(*args, **options))

    return submit


# ---- the beginning and the end -------------------------------------------------------------------


def start(comm: RecordedRanks, path: str, is_wrapped: bool) -> None:
    """Record the calls of this process from now on, with all ranks in `comm`. Collective.

    The files of an earlier run are replaced when all ranks can write theirs.
    """
    global _recorder
    new, problem = None, ""
    job = comm._meeting.bcast(uuid.uuid4().hex if comm.rank == 0 else None)
    if not is_wrapped:
        problem = f"{environment.TRACE} was set after collectives was imported; set it before"
    elif _recorder is None:
        try:
            about = {"collectives_trace": VERSION, "writer": __version__, "job": job}
            new = _File(os.path.abspath(path), {**about, "rank": comm.rank, "size": comm.size})
        except OSError as error:
            problem = f"the trace {path} cannot be written: {error.strerror or error}"
    for rank, each in enumerate(comm._meeting.allgather(problem)):
        if each:
            if new is not None:
                new.discard()
            raise ArgumentError(f"rank {rank}: {each}")
    if new is not None:
        new.replace()
        _recorder = Recorder(new.file)
        abort.before_end(_finish)


class _File:
    """The new file of a rank, which has another name until all ranks have one."""

    def __init__(self, folder: str, head: dict[str, Any]) -> None:
        files.make_folder(folder)
        self._folder, self._head = folder, head
        self._path = os.path.join(folder, f"{head['rank']}{SUFFIX}")
        if os.path.lexists(self._path):
            _check_old(self._path)
        self._new = os.path.join(folder, f".{head['rank']}-{uuid.uuid4().hex}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.file: int = os.open(self._new, flags, 0o666)
        try:
            os.write(self.file, json.dumps(head, separators=(",", ":")).encode() + b"\n")
            with contextlib.suppress(OSError):  # the file system may have no locks
                tape.is_held(self.file)  # if not, it is from now on
        except BaseException:
            self.discard()
            raise

    def replace(self) -> None:
        """Replace the file of an earlier run, and remove those of ranks that there are no more."""
        os.replace(self._new, self._path)
        for name in os.listdir(self._folder) if self._head["rank"] == 0 else ():
            number = name.removesuffix(SUFFIX)
            if name != number and number.isdecimal() and int(number) >= self._head["size"]:
                with contextlib.suppress(OSError):  # it is no file of a trace
                    _check_old(os.path.join(self._folder, name))
                    os.unlink(os.path.join(self._folder, name))

    def discard(self) -> None:
        os.close(self.file)
        os.unlink(self._new)


def _check_old(path: str) -> None:
    """Raise OSError unless a file is of a trace of a job that has ended."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not os.read(file, 32).startswith(b'{"collectives_trace":'):
            raise OSError(f"{path} is no file of a trace")
        is_held = False
        with contextlib.suppress(OSError):
            is_held = tape.is_held(file)
        if is_held:
            raise OSError("it is the trace of a job that still runs")
    finally:
        os.close(file)


def _finish() -> None:
    if _recorder is not None and not _core.is_forked():
        _recorder.finish()


def _forget() -> None:
    global _recorder, _thread
    _recorder, _thread = None, _Thread()
    _submitted.clear()


processes.after_fork(_forget)
