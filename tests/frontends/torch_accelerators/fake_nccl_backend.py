"""A backend of torch that stands for NCCL on the fake accelerator: gloo, on a stream.

As with NCCL, a call returns at once. It comes after the work on the current stream, and runs on a
stream of the backend. A stream that waits for the work comes after it. All ranks must make the same
calls in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from fake_streams import Stream, here
from torch import distributed as dist
from torch.distributed import ReduceOp


class Work:
    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> bool:
        """Have the current stream wait; the host does not."""
        here().current.wait_event(self.event)
        return True


class Backend:
    """The calls of `torch.distributed.ProcessGroupNCCL` that the library makes.

    Attributes
    ----------
    calls : list of str
        The names of the calls, in their order, after the first one, which connects the ranks.
    ended : list of str
        How it was ended.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size = rank, size
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout))
        self.stream = Stream()
        self.calls: list[str] = []
        self.ended: list[str] = []
        self.failure: Exception | None = None  # of the next call

    def _put(self, name: str, run: Callable[[], None], reads: list[Any], writes: list[Any]) -> Work:
        if self.failure is not None:
            raise self.failure
        self.calls.append(name)
        device = here()
        self.stream.wait_event(device.current.record_event())
        with self.stream:
            device.enqueue(f"{name} of NCCL", run, reads, writes)
            return Work(self.stream.record_event())

    def _run(self, start: Callable[[Any], Any]) -> None:
        """Start a call of gloo; wait until it has succeeded, or was aborted."""
        if not self.ended:
            work = start(self.gloo)
            while not (self.ended or (work.is_completed() and work.exception() is None)):
                time.sleep(0.001)

    def _total(self, x: torch.Tensor, op: Any) -> torch.Tensor:
        """Return the reduction of tensors in host memory."""
        is_mean = op == ReduceOp.AVG
        total = x.clone() if x.dtype.itemsize > 2 else x.float()
        options = dist.AllreduceOptions()
        options.reduceOp = ReduceOp.SUM if is_mean else op
        self._run(lambda gloo: gloo.allreduce([total], options))
        return (total / self.size if is_mean else total).to(x.dtype)

    def allreduce(self, tensors: list[Any], opts: Any = None) -> Work:
        (x,) = tensors
        hidden, op = here().hidden(x), ReduceOp.SUM if opts is None else opts.reduceOp
        return self._put("allreduce", lambda: hidden.copy_(self._total(hidden, op)), [x], [x])

    def reduce(self, tensors: list[Any], opts: Any) -> Work:
        (x,) = tensors
        hidden, is_root = here().hidden(x), opts.rootRank == self.rank

        def run() -> None:
            total = self._total(hidden, opts.reduceOp)
            if is_root:
                hidden.copy_(total)

        return self._put("reduce", run, [x], [x] if is_root else [])

    def _reduce_scatter_base(self, out: Any, x: Any, opts: Any) -> Work:
        target, source = here().hidden(out), here().hidden(x)

        def run() -> None:
            target.copy_(self._total(source, opts.reduceOp).chunk(self.size)[self.rank])

        return self._put("reduce_scatter", run, [x], [out])

    def broadcast(self, tensors: list[Any], opts: Any) -> Work:
        (x,) = tensors
        hidden = here().hidden(x)
        options = dist.BroadcastOptions()
        options.rootRank = opts.rootRank
        is_root = opts.rootRank == self.rank

        def run() -> None:
            self._run(lambda gloo: gloo.broadcast([hidden], options))

        return self._put("broadcast", run, [x] if is_root else [], [] if is_root else [x])

    def _allgather_base(self, out: Any, x: Any) -> Work:
        target, source = here().hidden(out), here().hidden(x)

        def run() -> None:
            self._run(lambda gloo: gloo._allgather_base(target, source))

        return self._put("allgather", run, [x], [out])

    def alltoall_base(self, out: Any, x: Any, received: list[int], sent: list[int]) -> Work:
        target, source = here().hidden(out), here().hidden(x)

        def run() -> None:
            self._run(lambda gloo: gloo.alltoall_base(target, source, received, sent))

        return self._put("alltoall", run, [x], [out])

    def abort(self) -> None:
        self.ended.append("abort")
        self.gloo = None  # it closes its connections, and so ends the calls of the other ranks

    def shutdown(self) -> None:
        self.ended.append("shutdown")
