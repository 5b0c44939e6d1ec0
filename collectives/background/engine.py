"""The background engine of a process: submissions, the work, and waits."""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from collectives import _core, default
from collectives.algorithms.bits import own
from collectives.algorithms.spec import COLLECTIVES
from collectives.background.copier import Copier
from collectives.background.copies import Copies, ManyCopies, copies_of, is_on_device
from collectives.background.group import GRACE, Group
from collectives.background.handle import Handle, call_back, called, check_name, is_main_thread
from collectives.background.steps import VECTORS, Steps, many, reproducible, vector
from collectives.calls.grouped import listed
from collectives.communicator import Communicator
from collectives.compression import Compressor
from collectives.errors import ArgumentError, CommunicatorError, StallError
from collectives.process import abort, binding, environment, processes
from collectives.process.waiting import SLICE, Wait
from collectives.reductions import SUM, Reduction, is_exact
from collectives.text.words import count, error_text, known, shown

if TYPE_CHECKING:
    from collectives.arrays.types import Counts

SOON = 0.001  # seconds between attempts of a thread to work while another one works

FOLDS = [name for name, each in COLLECTIVES.items() if each.folds]
KINDS = {name: number for number, name in enumerate(_core.COLLECTIVES)}


class WatchedRequest:
    """A request, and the function that is called when it is complete or has failed."""

    request: Any
    function: Callable[[], object]

    def __init__(self, request: Any, function: Callable[[], object]) -> None:
        self.request, self.function = request, function
        self._wait = Wait(look=request._look)

    def has_ended(self) -> bool:
        """Advance the request; return whether it is complete or has failed. Local."""
        try:
            self._wait.look()
            ended: bool = self.request.test()
        except BaseException as error:  # the thread that waits for the request also gets it
            if not isinstance(error, Exception) and is_main_thread():
                raise
            return True
        return ended

    def run_callbacks(self) -> None:
        """Call the function. Local."""
        call_back(self.function)


class Background:
    """The background of a process: the groups, and the threads that work for them.

    One thread at a time works: the background thread of the core, or a thread that waits for a
    handle, in a ``with`` statement of this object, which stops the background thread.
    """

    def __init__(self) -> None:
        self.listed: list[Group] = []
        self.has_dropped: bool = False  # whether the communicator of a group is gone
        self.changing: threading.Lock = threading.Lock()  # of the list, and of the locks
        self.making: weakref.WeakKeyDictionary[Communicator, threading.RLock] = (
            weakref.WeakKeyDictionary()
        )
        self.working: threading.Lock = threading.Lock()
        self.worker: int | None = None  # the thread that works
        self.copier: Copier = Copier()
        self.called: deque[Any] = deque()  # handles and watches that are complete, with callbacks
        self.watched: list[WatchedRequest] = []  # requests of nonblocking calls

    def group(self, comm: Communicator | None) -> Group:
        """Return the group of a communicator; if there is none, make it, which is collective."""
        comm = _checked(comm)
        found: Group | None = comm._background
        if found is not None:
            return found
        with self.changing:
            making = self.making.setdefault(comm, threading.RLock())
        with making:
            found = comm._background
            if found is None:
                binding.allow_progress("collectives in the background need a thread")
                found = Group(self, comm)
                with self.changing:
                    self.listed = [*self.listed, found]
                comm._background = found
                if comm.size > 1:
                    _core.employ(self.work)
        return found

    def drop(self, group: Group) -> None:
        """Forget a group. Local."""
        with self.changing:
            self.listed = [each for each in self.listed if each is not group]
        comm = group.comm()
        if comm is not None:
            comm._background = None

    def note_dropped(self, comm: object) -> None:
        """Note that a communicator is gone; its finalizer calls this. Local."""
        self.has_dropped = True

    def _let_go(self) -> None:
        """Forget the groups whose communicators are gone, and that have nothing in flight."""
        with self.changing:
            self.listed = [each for each in self.listed if each.comm() is not None or each.is_busy]
        self.has_dropped = any(each.comm() is None for each in self.listed)

    def work(self) -> float:
        """Advance everything as far as possible without waiting. Local."""
        if not self.working.acquire(blocking=False):
            return time.monotonic() + SOON
        try:
            self.worker = threading.get_ident()
            due = min((group.work() for group in self.listed), default=float("inf"))
            if self.has_dropped:
                self._let_go()
            if self.watched:
                due = min(due, self._look_at_watched())
        finally:
            self.worker = None
            self.working.release()
        self._run_callbacks()
        return due

    def watch(self, watch: WatchedRequest) -> None:
        """Watch a request from now on, until it is complete. Local."""
        binding.allow_progress("to tell when a request is complete needs a thread")
        with self.changing:
            self.watched = [*self.watched, watch]
        _core.employ(self.work)
        _core.summon()

    def _look_at_watched(self) -> float:
        """Schedule the callbacks of complete requests; return the time of the next check."""
        ended = [each for each in self.watched if each.has_ended()]
        if ended:
            with self.changing:
                self.watched = [each for each in self.watched if each not in ended]
            self.called.extend(ended)
        return time.monotonic() + SLICE if self.watched else float("inf")

    def _run_callbacks(self) -> None:
        while self.called:  # they may submit and wait themselves
            try:
                handle = self.called.popleft()
            except IndexError:  # another thread was faster
                return
            handle.run_callbacks()

    def wait_until(self, group: Group, is_over: Any, wait: Wait | None) -> bool:
        """Work until `is_over()` is true, and return True, or until the end of a wait. Local."""
        if self.worker == threading.get_ident():
            raise CommunicatorError(
                "this thread is inside the work of the background already; a signal handler, a "
                "finalizer or a user's fold can submit, and cannot wait for a submission"
            )
        last, moved = -1, 0.0
        with self:
            while True:
                seen = _core.number_ended()
                self.work()
                if is_over():
                    return True
                left = SLICE if wait is None else wait.left()
                if not left:
                    return False
                now = time.monotonic()
                if seen != last:
                    last, moved = seen, now
                pause = min(SLICE, left)
                _core.await_ended(seen, pause, group.spins, now - moved > DROWSY)

    def wait_for(self, handle: Handle, wait: Wait | None, timeout: float | None) -> None:
        """Work until a handle is complete. Local."""
        group = handle.group
        with self:
            if self.working.acquire(blocking=False):
                try:
                    self.worker = threading.get_ident()
                    group.run_alone(handle)
                finally:
                    self.worker = None
                    self.working.release()
                self._run_callbacks()
        if not handle.complete and not self.wait_until(group, handle.done, wait):
            raise StallError(
                f"{called(handle.key)} is not complete after {timeout:g} s: "
                f"{group.situation(time.monotonic() - handle.began)}"
            )

    def __enter__(self) -> None:
        _core.attend(True)

    def __exit__(self, *error: object) -> None:
        if _core.attend(False):  # other waiting threads call the worker, or leave later
            return
        for group in self.listed:
            if group.is_busy:
                break
        else:
            if not self.watched:
                return
        _core.summon()

    def flush(self, groups: list[Group], timeout: float | None) -> None:
        """Wait for all submissions of some groups; raise the error of the first that failed."""
        wait = None if timeout is None else Wait(timeout=_core.seconds(timeout))
        handles = sorted((each for one in groups for each in list(one.unfinished)), key=_age)
        for handle in handles:
            if not handle.done():
                self.wait_for(handle, wait, timeout)
        for handle in handles:
            error = handle.exception()
            if error is not None:
                raise error

    def end(self) -> None:
        """Wait briefly for submissions at the end of the program. Local."""
        if _core.is_forked():
            return  # it is the parent's
        if not _core.is_finalised():
            wait = Wait(timeout=GRACE)
            for group in self.listed:
                self.wait_until(group, group.has_ended, wait)
                if group.nccl is not None:
                    group.nccl.stop(wait.left())
        _core.dismiss()
        left = [each for group in self.listed for each in list(group.unfinished)]
        unheard = [each.error for each in self.listed if each.error and not each.told]
        if unheard and not abort.has_reported():
            abort.end_job(f"exits, and has not heard in the background: {error_text(unheard[0])}")
        if left and not abort.has_reported():
            abort.end_job(
                f"exits while {count(len(left), 'submission')} of the background "
                f"{'is' if len(left) == 1 else 'are'} not complete, such as {called(left[0].key)}: "
                f"{left[0].group.situation(time.monotonic() - left[0].began)}. Wait for the "
                f"handles, or call flush(), before the program ends"
            )


# Seconds without an ended operation after which a wait naps if ranks share cores. On 4 ranks and 2
# cores, `mnist_scaling.py` takes 25 s without naps, 16 s with them, and 9 s with naps after 2 ms,
# with which a step of `resnet_throughput.py` takes a third longer.
DROWSY = 0.05
_engine = Background()
atexit.register(_engine.end)


def _checked(comm: Any) -> Communicator:
    """Return the communicator that was passed, or the default one."""
    if comm is None:
        return default.world()
    if not isinstance(comm, Communicator):
        raise ArgumentError(f"group is {shown(comm)}, and must be a Communicator or None")
    return comm


def _forget() -> None:
    global _engine
    _engine = Background()


processes.after_fork(_forget)


def submit(
    kind: str,
    x: Any = None,
    out: Any = None,
    *,
    name: str | None = None,
    op: Reduction | str = SUM,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    bits: str | None = None,
    group: Communicator | None = None,
    compression: Compressor | str | None = None,
    counts: Counts | None = None,
    terms: str | None = None,
) -> Handle:
    """Submit a collective, which runs in the background; return at once.
    Collective: all ranks submit the same, at any time and from any thread.

    Parameters
    ----------
    kind : str
        ``"allreduce"``, ``"broadcast"``, ``"allgather"`` or another collective of
        `Communicator`; of the vector forms, ``"allgatherv"``, ``"alltoallv"`` and
        ``"reduce_scatterv"``.
    x, out : array
        As for the collective of that name, and tensors of torch on an accelerator; both on the same
        device. Until the handle is complete, do not write them, and do not read `out`. The vector
        forms take no `out`.
    name : str, optional
        The name of the submission on all ranks. Ranks may submit named arrays in different
        orders. Submissions without a name are matched by their order among those of their kind.
    op, root, prescale, postscale
        As for the collective of that name.
    priority : int
        Submissions with a higher priority run before waiting ones with a lower priority.
    bits : str, optional
        As for `Communicator.allreduce`, for kinds that reduce. By default, the mode of `group`.
    group : Communicator, optional
        The ranks; the default communicator if it is None. The first submission for a communicator
        is a call that waits for all of its ranks (`start`).
    compression : Compressor or str, optional
        As for `Communicator.allreduce`: a codec of `collectives.compression`, or its name. Of
        several codecs with the same name, a communicator uses the one that was submitted first.
    counts : sequence of int, optional
        As for ``alltoallv`` and ``reduce_scatterv``, which need it; other collectives take none.
    terms : str, optional
        Further text that must be the same on all ranks, such as the shapes of arrays that the
        program has packed into `x`. The vector forms take none.

    Returns
    -------
    Handle
        ``wait()`` returns the result; that of ``"alltoallv"`` is a pair: the array, and the number
        of its elements from each rank.

    Raises
    ------
    ArgumentError, UnsupportedTypeError
        If an argument is refused, as by the collective of that name. Nothing was submitted.
    CommunicatorError
        If the communicator is freed or broken.
    """
    bits = own(bits, _checked(group).bits)
    if bits is not None and kind not in (*FOLDS, "reduce_scatterv"):
        raise ArgumentError(f"bits is given, and {shown(kind)} does not reduce")
    if isinstance(kind, str) and kind in VECTORS:
        if out is not None or compression is not None or terms is not None:
            raise ArgumentError(f"{kind} takes no out, compression or terms in the background")
        found = _engine.group(group)
        check_name(name, priority)
        vectors = kind, x, None, op, root, (prescale, postscale), counts, bits, None
        if (handle := found.submit_by_nccl(vectors, name, priority)) is not None:
            return handle
        copies = copies_of(found, kind, x, None)
        x = x if copies is None else copies.x
        what = vector(kind, x, counts, op, (prescale, postscale), found.size, bits)
        return submit_steps(what, name=name, priority=priority, group=group, copies=copies)
    number = KINDS.get(kind) if isinstance(kind, str) else None
    if number is None:
        every = (*KINDS, *VECTORS)
        raise ArgumentError(f"kind is {shown(kind)}; {known(kind, every, 'the collectives are')}")
    if counts is not None:
        raise ArgumentError(f"counts is given, and {kind} takes none")
    check_name(name, priority)
    if terms is not None and not isinstance(terms, str):
        raise ArgumentError(f"terms is {shown(terms)}, and must be a text or None")
    found = _engine.group(group)
    if compression is None:
        call = kind, x, out, op, root, (prescale, postscale), counts, bits, terms
        if (handle := found.submit_by_nccl(call, name, priority)) is not None:
            return handle
    copies = copies_of(found, kind, x, out, root)
    if copies is not None:
        x, out = copies.x, copies.out
        if compression is not None and (prescale != 1.0 or x.itemsize < 4):
            copies.wait()  # the array is converted at once
    if is_exact(op) and compression is None:
        root = found.data._engine.check_root(root)
        sums = reproducible(number, x, out, op, root, (prescale, postscale), terms)
        return submit_steps(sums, name=name, priority=priority, group=group, copies=copies)
    arguments = x, out, op, root, prescale, postscale
    handle = found.submit(number, arguments, name, priority, compression, terms, copies, bits)
    _core.summon()
    return handle


def at_once(comm: Communicator) -> AbstractContextManager[None]:
    """Return the context of a thread that submits and waits at once, in which the background thread
    does not take the submission first. While a group is made, it does nothing, because others may
    need that thread.
    """
    return nullcontext() if comm.size == 1 or comm._background is None else _engine


def submit_many(
    arrays: Iterable[Any],
    out: Iterable[Any] | None = None,
    *,
    name: str | None = None,
    op: Reduction | str = SUM,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    bits: str | None = None,
    group: Communicator | None = None,
) -> Handle:
    """Submit an allreduce of many arrays, which runs in the background as one; return at once.
    Collective: all ranks submit the same, at any time and from any thread.

    It takes much less time than a submission for each of many small arrays. Submissions with a
    higher priority do not run between them.

    Parameters
    ----------
    arrays, out : sequence of array
        As for `Communicator.allreduce_many`, each in host memory or on a device, as for `submit`.
        Until the handle is complete, do not write them, and do not read `out`.
    name, priority, bits, group
        As for `submit`.
    op, prescale, postscale
        As for `Communicator.allreduce_many`.

    Returns
    -------
    Handle
        ``wait()`` returns the list of results.

    Raises
    ------
    CollectivesError
        As for `submit`; the text names the array.

    Examples
    --------
    >>> import numpy as np
    >>> from collectives import background
    >>> background.submit_many([np.ones(2), np.array([5.0])], op="AVG").wait()
    [array([1., 1.]), array([5.])]
    """
    check_name(name, priority)
    found = _engine.group(group)
    found.check()
    bits = own(bits, found.data.bits)
    copies = None
    arrays, out = listed(arrays, "arrays"), None if out is None else listed(out, "out")
    if any(map(is_on_device, (*arrays, *(out or ())))):
        copies = ManyCopies(found, arrays, out)
        arrays, out = copies.arrays, copies.outs
    what = many(found.data, arrays, out, op, (prescale, postscale), bits)
    handle = found.submit_steps(what, name, priority, copies)
    _core.summon()
    return handle


def submit_steps(
    what: Steps,
    *,
    name: str | None = None,
    priority: int = 0,
    group: Communicator | None = None,
    copies: Copies | None = None,
) -> Handle:
    """Submit several collectives, which run one after the other; return at once.
    Collective.

    While they run, nothing else runs for the communicator.
    """
    check_name(name, priority)
    handle = _engine.group(group).submit_steps(what, name, priority, copies)
    _core.summon()
    return handle


def flush(group: Communicator | None = None, timeout: float | None = None) -> None:
    """Wait until all submissions of this rank are complete.
    Local, but it waits for the submissions of the other ranks.

    Parameters
    ----------
    group : Communicator, optional
        The communicator of the submissions; all communicators if it is None.
    timeout : float, optional
        Seconds after which it raises `StallError`.

    Raises
    ------
    StallError
        If the timeout passes. The submissions continue.
    CollectivesError
        The error of the first submission that has failed.
    """
    groups = _engine.listed
    if group is not None:
        found = _checked(group)._background
        groups = [] if found is None else [found]
    _engine.flush(groups, timeout)


def _age(handle: Handle) -> float:
    return handle.began


def join(group: Communicator | None = None, timeout: float | None = None) -> int:
    """Take part in the submissions of the other ranks, with zeros, until all ranks have joined.
    Collective.

    A rank that has no more data calls it, while others continue to call `submit`. Until all ranks
    have joined, only ``"allreduce"`` with the operations of the library can be submitted; an
    ``AVG`` still divides by the number of all ranks.

    Parameters
    ----------
    group : Communicator, optional
        The ranks; the default communicator if it is None.
    timeout : float, optional
        Seconds after which it raises `StallError`; this rank remains joined then.

    Returns
    -------
    int
        The rank that joined last; of several that joined at the same time, the highest.

    Raises
    ------
    StallError
        If the timeout passes.
    CommunicatorError
        If the communicator is freed or broken.
    """
    wait = None if timeout is None else Wait(timeout=_core.seconds(timeout))
    found = _engine.group(group)
    if not found.joins:  # as after a timeout
        flush(group, timeout)
        found.check()
        if found.size == 1:
            return 0
        found.refused = None
        found.joins = True
    if not _engine.wait_until(found, lambda: not found.joins, wait):
        raise StallError(f"join() was not over after {timeout:g} s: {found.situation(0.0)}")
    if found.error is not None:
        found.told = True
        raise found.error
    return found.last_joined


def start(group: Communicator | None = None) -> None:
    """Prepare the background for a communicator: make two more communicators, and memory.
    Collective. The first submission for a communicator does it, too.

    Parameters
    ----------
    group : Communicator, optional
        The default communicator if it is None.
    """
    _engine.group(group)


def fusion(group: Communicator | None = None) -> int:
    """Return the most bytes of submissions that run as one, the same on all ranks.
    Collective on the first call for a communicator, as `start` is.
    """
    return _engine.group(group).schedule.fusion


def stop(group: Communicator | None = None) -> None:
    """Wait for all submissions for a communicator, and free the resources of its background.
    Collective. The communicator can be used afterwards, also for submissions. Submit nothing
    during this call, because ranks would not agree on the submissions before it.

    Parameters
    ----------
    group : Communicator, optional
        The default communicator if it is None.

    Raises
    ------
    CollectivesError
        The error of the first submission that has failed.
    """
    comm = _checked(group)
    if comm._background is not None:
        comm._background.stop()


def when_complete(request: Any, function: Callable[[], object]) -> None:
    """Call a function when a request is complete, or has failed.
    Local.

    Parameters
    ----------
    request : Request, GroupedRequest or PlannedCall
        The request of a nonblocking call. It makes progress in the background until then, and its
        deadline counts from now on.
    function : callable
        It is called without arguments, on the background thread or on a thread that waits for a
        submission; or at once, if the request is complete already. It should return soon, and must
        not wait. An exception in it is printed and ignored. ``request.wait()`` then returns the
        result, or raises the error.
    """
    watch = WatchedRequest(request, function)
    if watch.has_ended():
        watch.run_callbacks()
    else:
        _engine.watch(watch)


if environment.IS_TRACED:
    from collectives.records import checksums

    checksums.wrap_background(sys.modules[__name__], Group)
