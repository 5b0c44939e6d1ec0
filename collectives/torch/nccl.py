"""Torch's own NCCL backend for tensors on CUDA that programs submit to the background.

The background first compares the submissions of the ranks, as always. Then `Call.run` puts one call
of NCCL on a stream, in the same order on all ranks, although ranks may submit in different orders.
No thread waits for the device: the call follows the earlier work on the stream of the submitting
thread, and the stream of a thread that takes the result waits for the call. The first call on a
communicator connects the ranks in a thread of its own, because this takes seconds.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from math import prod
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from collectives import _core
from collectives.algorithms.bits import ANY
from collectives.background.steps import Run, Steps, vector
from collectives.communicator import Communicator
from collectives.devices import nccl
from collectives.devices.accelerators import UNABLE, Lane, common_device
from collectives.errors import ArgumentError, CommunicatorError, StallError
from collectives.reductions import name_of, said
from collectives.text.words import count, grouped
from collectives.torch.distributed import nccl as choice
from collectives.torch.distributed.group import REDUCTIONS
from collectives.torch.distributed.rendezvous import shared_store

Tensor = Any  # torch.Tensor

# The kinds of submissions, with the corresponding collectives.
KINDS = {
    "allreduce": _core.ALLREDUCE,
    "allgatherv": _core.ALLGATHER,
    "broadcast": _core.BROADCAST,
    "alltoallv": _core.ALLTOALL,
    "reduce_scatterv": _core.REDUCE_SCATTER,
}
FOLDS = "allreduce", "reduce_scatterv"
OPERATIONS = {each.name: op for op, each in REDUCTIONS.items() if each.name in nccl.OPERATIONS}
INTEGERS = torch.int8, torch.uint8, torch.int32, torch.int64
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
LONGEST = 366 * 86400.0  # seconds; neither torch nor a thread takes an infinite timeout


Facts = tuple[str, str | None, int, int, bool]


def facts() -> Facts:
    """Return the facts about this rank before it has chosen a device: its host, the devices that it
    sees, their number, the version of NCCL, and whether ranks may share a device. Local.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = torch.cuda.device_count()
    return platform.node(), visible, devices, choice.version(), choice.may_share()


def difference(told: list[Facts]) -> str | None:
    """Return why the ranks cannot use NCCL together, by their `facts`, or None. Local."""
    versions = grouped(enumerate(each[3] for each in told))
    if len(versions) > 1:
        return f"the versions of NCCL differ: {', '.join(map(str, versions))}"
    if all(shares and number >= nccl.SHARES for *_, number, shares in told):
        return None
    for (host, _, devices), mask in grouped(enumerate(each[:3] for each in told)).items():
        if mask.bit_count() > devices:
            return (
                f"{count(mask.bit_count(), 'rank')} on {host} have {count(devices, 'GPU')}, and "
                f"NCCL needs one for each rank"
            )
    return None


def backend(store: Any, rank: int, size: int, timeout: float) -> Any:
    """Return torch's backend for NCCL. Collective."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupNCCL(store, rank, size, options)


class Connecting(threading.Thread):
    """A thread that connects the ranks, as a request for the background."""

    def __init__(self, comm: Communicator, connect: Callable[[], Any]) -> None:
        super().__init__(name="collectives nccl", daemon=True)
        self._comm, self._connect = comm, connect
        self._made: Any = None
        self._error: BaseException | None = None
        self._has_ended = False
        self.start()

    def run(self) -> None:
        try:
            self._made = self._connect()
        except BaseException as error:
            self._error = error
        self._has_ended = True
        _core.summon()

    def test(self) -> bool:
        """Return whether it has ended. Local."""
        return self._has_ended

    def wait(self) -> Any:
        """Return the result, once the thread has ended; raise its error. Local."""
        if self._error is not None:
            raise self._error
        return self._made

    def _look(self, waited: float) -> None:
        """Raise an error if a rank is lost, or the timeout has passed. Local."""
        self._comm._engine.check_host("connects NCCL")
        if waited > self._comm.timeout:
            raise StallError(
                f"rank {self._comm.rank} has waited {waited:.0f} s for the other ranks to connect "
                f"NCCL"
            )

    def _awaited(self) -> list[int]:
        return []


class End:
    """The end of a call on the device."""

    def __init__(self, event: Any) -> None:
        self.event = event
        self.lost: str | None = None  # the reason of a failure

    def has_come(self) -> bool:
        """Return whether the device has reached it; False also after a failure. Local."""
        try:
            return bool(self.event.query())
        except RuntimeError:
            return False


class Nccl:
    """NCCL for submissions of some kinds, or of none if NCCL is not possible."""

    def __init__(
        self, comm: Communicator, kinds: tuple[str, ...], asked: str, reason: str | None = None
    ) -> None:
        self.kinds, self.asked, self.reason = kinds, asked, reason
        self.size, self.bits, self.check_root = comm.size, comm.bits, comm._engine.check_root
        self.backend: Any = None
        self.lane: Any = None
        self._ends: deque[End] = deque()

    def call(
        self,
        kind: str,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        scales: tuple[float, float],
        counts: Any,
        bits: str | None,
        terms: str | None,
    ) -> Call | None:
        """Return the call for a submission, or None if it goes through host memory. This depends on
        its kind, dtype and operation, which are the same on all ranks. Local.
        """
        first = out if x is None else x
        if kind not in self.kinds or not isinstance(first, torch.Tensor):
            return None
        if first.device.type != choice.DEVICE or (bits or self.bits) != ANY:
            return None
        if kind in FOLDS and not (scales == (1.0, 1.0) and _folds(op, first.dtype)):
            return None
        if self.reason is not None:
            raise self._impossible(self.reason)
        device = common_device(x, out)  # it refuses sparse tensors, whose contiguous() fails
        for name, each in (("x", x), ("out", out)):
            if each is not None and not each.is_contiguous():
                raise ArgumentError(f"{name} is not contiguous; pass {name}.contiguous()")
        self.use(device)
        return Call(self, kind, x, out, op, root, counts, terms)

    def _impossible(self, reason: str) -> ArgumentError:
        return choice.impossible(self.asked, reason, "the first tensor is reduced or sent")

    def use(self, device: Any) -> None:
        """Set the device of all calls on this rank. Local."""
        if self.lane is None:
            self.lane = Lane(device)
        if device != self.lane.device:
            raise ArgumentError(
                f"x is on {device}, and earlier tensors of this rank were on {self.lane.device}: "
                f"NCCL takes those of one device"
            )

    def choose_device(self, number: int) -> None:
        """Choose the device of a rank that has had no tensor: the current one if `number` is
        negative. Local.
        """
        if self.lane is None and self.reason is None:
            device = torch.device(choice.DEVICE, number if number >= 0 else None)
            self.use(torch.empty(0, device=device).device)

    def zeros(self, dtype: str, elements: int, op: str) -> Call:
        """Return the part of a rank that has joined in an allreduce. Local."""
        x = torch.zeros(elements, dtype=getattr(torch, dtype), device=self.lane.device)
        return Call(self, "allreduce", x, x, op, 0, None, None)

    def connected(self, comm: Communicator) -> Run:
        """Connect the ranks, in the first turn. Collective."""
        connecting: Any = Connecting(comm, lambda: self._connect(comm))
        yield connecting
        self.backend = connecting.wait()

    def _connect(self, comm: Communicator) -> Any:
        """Return the backend of all ranks, after a first call of it. Collective."""
        reason = choice.refusal(comm, self.lane.device)
        if reason is not None:
            raise self._impossible(reason)
        store = shared_store(comm, timedelta(seconds=min(comm.timeout, LONGEST)))
        made = backend(store, comm.rank, comm.size, min(comm.timeout, LONGEST))
        lane = self.lane
        with lane.stream:
            made.allreduce([torch.zeros(1, device=lane.device)]).wait()
            lane.after_its_own().synchronize()
        return made

    def note(self, event: Any) -> End:
        """Keep the end of a call until the device has reached it. Local."""
        while self._ends and self._ends[0].has_come():
            self._ends.popleft()
        self._ends.append(End(event))
        return self._ends[-1]

    def is_under_way(self) -> bool:
        """Return whether calls on the stream are in flight. Local, by any thread."""
        last = list(self._ends)[-1:]
        return bool(last) and last[0].lost is None and not last[0].has_come()

    def give_up(self, why: str) -> None:
        """Abort the calls in flight; their results are invalid. Local."""
        for end in self._ends:
            end.lost = None if end.has_come() else why
        self._leave("abort")

    def stop(self, seconds: float) -> None:
        """End after all calls; wait for them for at most so many seconds. Collective."""
        thread = self._leave("shutdown")
        if thread is not None:
            thread.join(min(seconds, LONGEST))

    def _leave(self, how: str) -> threading.Thread | None:
        made, self.backend = self.backend, None
        if made is None:
            return None

        def leave() -> None:
            with contextlib.suppress(RuntimeError):
                getattr(made, how)()

        thread = threading.Thread(target=leave, name="collectives nccl", daemon=True)
        thread.start()
        return thread


def _folds(op: Any, dtype: torch.dtype) -> bool:
    """Return whether NCCL can fold elements of a dtype as this library does. Local."""
    name = name_of(op)
    if getattr(op, "function", None) is not None or name not in OPERATIONS:
        return False
    return dtype in FLOATS or (dtype in INTEGERS and name != "AVG")


class Call:
    """A submission that NCCL takes.

    Attributes
    ----------
    steps : Steps
        The submission for the background.
    """

    is_held = False  # it is compared at once: no elements are copied to host memory

    def __init__(
        self,
        owner: Nccl,
        kind: str,
        x: Tensor,
        out: Tensor,
        op: Any,
        root: Any,
        counts: Any,
        terms: str | None,
    ) -> None:
        self._owner, self._kind, self._op = owner, kind, op
        self._root = owner.check_root(root) if kind == "broadcast" else 0
        self._x = x = out if x is None else x
        self._counts = counts
        self._error: BaseException | None = None
        self._end: End | None = None
        if kind in ("allreduce", "broadcast"):
            self._out = owner.lane.empty(x.shape, x.dtype) if out is None else out
            if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
                raise ArgumentError(
                    f"out is {_words(out)}, and the result is {_words(x)}: NCCL needs the same"
                )
            what = f", op {said(op)}" if kind in FOLDS else f", root {root}"
            self.steps = Steps(KINDS[kind], _blank(x), op, f"{kind} of {_words(x)}{what}", self.run)
        else:
            like = _blank(x).new_empty(1).expand(x.shape)
            steps = vector(kind, like, counts, op, (1.0, 1.0), owner.size, None)
            self.steps = steps._replace(like=_blank(x), run=self.run)
        more = "" if terms is None else f", {terms}"
        self.steps = self.steps._replace(text=f"{self.steps.text}{more}, by NCCL")
        self._after = owner.lane.after_the_current()

    # -- the start of the submission -----------------------------------------------------------

    def run(self, comm: Communicator) -> Run:
        """Put the call on the stream; a failure is raised by `begin_return`. Collective."""
        owner = self._owner
        if owner.backend is None:
            yield from owner.connected(comm)
        sizes = np.empty(comm.size, np.int64)
        if self._kind == "allgatherv":
            yield comm.iallgather(np.array([self._x.numel()]), out=sizes)
        elif self._kind == "alltoallv":
            yield comm.ialltoall(np.array(self._counts, np.int64), out=sizes)
        made = None
        try:
            with owner.lane.stream, torch.no_grad():
                owner.lane.stream.wait_event(self._after)
                made = getattr(self, f"_{self._kind}")(owner.backend, comm, sizes)
                self._end = owner.note(owner.lane.after_its_own())
            for each in (self._x, made):
                owner.lane.keep(each, self._end.event)
        except Exception as error:  # torch's, or of a device without memory
            self._error = error
        return (made, sizes) if self._kind == "alltoallv" else made

    def _allreduce(self, made: Any, comm: Communicator, _: Any) -> Tensor:
        out = self._out
        if out.data_ptr() != self._x.data_ptr():
            out.copy_(self._x)
        if out.numel():
            options = dist.AllreduceOptions()
            options.reduceOp = OPERATIONS[name_of(self._op)]
            made.allreduce([out], options).wait()
        return out

    def _broadcast(self, made: Any, comm: Communicator, _: Any) -> Tensor:
        out = self._out
        if comm.rank == self._root and out.data_ptr() != self._x.data_ptr():
            out.copy_(self._x)
        _send_all(made, _bytes(out), self._root)
        return out

    def _allgatherv(self, made: Any, comm: Communicator, sizes: Any) -> Tensor:
        x, lane = self._x, self._owner.lane
        row = prod(x.shape[1:])
        rows = int(sizes.sum()) // row if row else 0
        out = lane.empty((rows, *x.shape[1:]), x.dtype)
        if not out.numel():
            return out
        if (sizes == sizes[0]).all():
            made._allgather_base(_bytes(out), _bytes(x)).wait()
            return out
        parts = _bytes(out).split((sizes * x.element_size()).tolist())
        parts[comm.rank].copy_(_bytes(x))
        for root, part in enumerate(parts):
            _send_all(made, part, root)
        return out

    def _alltoallv(self, made: Any, comm: Communicator, sizes: Any) -> Tensor:
        x, lane = self._x, self._owner.lane
        row = prod(x.shape[1:])
        rows = int(sizes.sum()) // row if row else 0
        out = lane.empty((rows, *x.shape[1:]), x.dtype)
        sent, received = (
            [int(each) * x.element_size() for each in counts] for counts in (self._counts, sizes)
        )
        made.alltoall_base(_bytes(out), _bytes(x), received, sent).wait()
        return out

    def _reduce_scatterv(self, made: Any, comm: Communicator, _: Any) -> Tensor:
        x, counts = self._x.view(-1), [int(each) for each in self._counts]
        out = self._owner.lane.empty((counts[comm.rank],), x.dtype)
        if len(set(counts)) == 1:
            if out.numel():
                options = dist.ReduceScatterOptions()
                options.reduceOp = OPERATIONS[name_of(self._op)]
                made._reduce_scatter_base(out, x, options).wait()
            return out
        parts = x.split(counts)
        out.copy_(parts[comm.rank])
        for root, part in enumerate(parts):
            if part.numel():
                each = dist.ReduceOptions()
                each.reduceOp, each.rootRank = OPERATIONS[name_of(self._op)], root
                made.reduce([out if root == comm.rank else part], each).wait()
        return out

    # -- the interface of arrays on devices ------------------------------------------------------

    def claim(self) -> list[Any] | None:
        """Return the data for a rank to take part after `join`, or None if it cannot. Local."""
        if self._kind != "allreduce":
            return None
        return [str(self._x.dtype).removeprefix("torch."), self._x.numel(), name_of(self._op)]

    def is_there(self) -> bool:
        """Return True: nothing is copied. Local."""
        return True

    def wait(self) -> None:
        """Return: nothing is copied. Local."""

    def begin_return(self) -> None:
        """Raise the error of the call, if there was one. Local."""
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """Wait until the result is complete and visible to any stream. Local."""
        if self._end is not None:
            self._end.event.synchronize()

    def give_up(self) -> None:
        """Do nothing: torch's allocator knows the memory of the call. Local."""

    def taken(self, result: Any) -> Any:
        """Return a result for this thread's stream. Local."""
        if isinstance(result, tuple):
            return self.taken(result[0]), *result[1:]
        assert self._end is not None
        if self._end.lost is not None:
            raise CommunicatorError(
                f"the call of NCCL has ended without a result: {self._end.lost}"
            )
        current = self._owner.lane.current()
        current.wait_event(self._end.event)
        with contextlib.suppress(*UNABLE):
            result.record_stream(current)
        return result


def _words(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


def _blank(x: Tensor) -> Tensor:
    """Return an empty tensor in host memory, of the same dtype."""
    return torch.empty(0, dtype=x.dtype)


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)


def _send_all(made: Any, data: Tensor, root: int) -> None:
    """Send bytes from one rank to all, unless there are none."""
    if data.numel():
        options = dist.BroadcastOptions()
        options.rootRank = root
        made.broadcast([data], options).wait()
