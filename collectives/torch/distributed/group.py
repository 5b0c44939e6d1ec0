"""The process group: it turns torch's calls into calls of a communicator.

Torch and communicators have the same contract: all ranks of a group call its collectives in the
same order, the asynchronous ones too. So each call is started at once, by the thread that makes it,
on the one communicator of the group, and a synchronous call on one rank matches an asynchronous one
on another. The background engine, which lets ranks submit in different orders, would first compare
the submissions of the ranks. Torch's contract makes this unnecessary.

A synchronous call runs to its end in the calling thread. An asynchronous call is started there; the
native thread of the library advances it while the program computes, and `Work.wait` advances it in
the waiting thread. Futures are completed in a `CallbackThread`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from operator import index
from typing import Any

import torch
from torch import distributed as dist
from torch._C._autograd import _profiler_enabled as is_profiled
from torch.distributed import ReduceOp

from collectives import _core, reductions
from collectives.communicator import Communicator
from collectives.errors import ArgumentError, CollectivesError, StallError
from collectives.process import binding
from collectives.reductions import Reduction
from collectives.text.words import shown
from collectives.torch.distributed.tensors import (
    DeviceFailedError,
    add_sparse,
    is_integer,
    joined,
    lengths,
    plain,
    readable,
    scattered,
    writable,
)
from collectives.torch.distributed.work import (
    DONE,
    AnySourceWork,
    CallbackThread,
    DoneWork,
    Event,
    PendingWork,
    skip_dynamo,
    united,
)

# No __all__: only torch calls the methods of the group, and documents them.

After = Callable[[], object]
Tensor = Any  # torch.Tensor

CPU = torch.device("cpu")
MOST = 512  # asynchronous calls of a group in flight
PATIENCE = 10.0  # seconds that attached functions have to return when a group is destroyed


REDUCTIONS: dict[Any, Reduction] = {
    ReduceOp.SUM: reductions.SUM,
    ReduceOp.AVG: reductions.AVG,
    ReduceOp.PRODUCT: reductions.PROD,
    ReduceOp.MIN: reductions.MIN,
    ReduceOp.MAX: reductions.MAX,
    ReduceOp.BAND: reductions.BAND,
    ReduceOp.BOR: reductions.BOR,
    ReduceOp.BXOR: reductions.BXOR,
}
ZERO = timedelta(0)


def _reduction(options: Any) -> tuple[Reduction, float]:
    """Return the reduction of some options, and the factor of each contribution. Local."""
    if options is None:
        return reductions.SUM, 1.0
    wish = options.reduceOp
    kind = wish.op
    found = REDUCTIONS.get(kind)
    if found is not None:
        return found, 1.0
    if kind == ReduceOp.PREMUL_SUM:
        return reductions.SUM, float(wish.factor)
    raise ArgumentError(
        f"op is {kind}, and must be one of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR and "
        f"PREMUL_SUM"
    )


def _deadline(options: Any) -> float | None:
    """Return the seconds that a call may take, or None for those of its group. Local."""
    timeout = None if options is None else options.timeout
    return None if timeout is None or timeout <= ZERO else timeout.total_seconds()


def bits_of(options: Any) -> str | None:
    """Return the bits in the ``pg_options`` of a group. Options that are not a mapping are for
    other backends. Local.
    """
    if not isinstance(options, Mapping):
        return None
    if unknown := [each for each in options if each != "bits"]:
        raise ArgumentError(f"pg_options has {shown(unknown[0])}, and may have 'bits' only")
    bits: str | None = options.get("bits")
    return bits


def _only(tensors: Sequence[Any], what: str) -> Any:
    """Return the tensor, or list of tensors, in a list of one."""
    if len(tensors) != 1:
        raise ArgumentError(f"{what} takes one tensor at a time, and got {len(tensors)}")
    return tensors[0]


def _ending(event: Event | None, after: After | None) -> After | None:
    """Return a function that copies the results of a call and ends its event in the profile."""
    if event is None:
        return after

    def end() -> None:
        if after is not None:
            after()
        event.end()

    return end


def collective(method: Callable[..., Any]) -> Callable[..., Any]:
    """Keep Dynamo from tracing a call. If the device of this rank fails before the call has
    started, abort, because the other ranks would wait for this one.
    """

    @functools.wraps(method)
    def call(self: CollectivesProcessGroup, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except DeviceFailedError as error:
            self._end(str(error))
            raise

    skip_dynamo(method)
    return skip_dynamo(call)


class CollectivesProcessGroup(dist.ProcessGroup):
    """A process group on communicators. Collective."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm.rank, comm.size)
        self._register_backend(CPU, dist.ProcessGroup.BackendType.CUSTOM, None)
        self._comm = comm
        self._callbacks = CallbackThread("collectives futures")
        self._pending: deque[weakref.ref[PendingWork]] = deque()  # the last asynchronous calls
        self._coalesced: list[DoneWork] | None = None  # those since `_start_coalescing`
        self._name = ""
        self.barriers: itertools.count[int] = itertools.count()  # numbers of monitored barriers
        self._is_shut = False
        if comm.size > 1:
            binding.allow_progress("asynchronous calls of torch.distributed need a thread")
            _core.want_progress()

    # -- properties --------------------------------------------------------------------------------

    @skip_dynamo
    def getBackendName(self) -> str:
        return "collectives"

    @skip_dynamo
    def getGroupName(self) -> str:
        return self._name

    @skip_dynamo
    def setGroupName(self, name: str) -> None:
        self._name = name

    @property
    def communicator(self) -> Communicator:
        """The communicator of the group."""
        return self._comm

    @skip_dynamo
    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> CollectivesProcessGroup | None:
        rank = self._comm.rank
        part = self._comm.split(min(new_ranks) if rank in new_ranks else None, bits=bits_of(opts))
        if part is None:
            return None
        if timeout is not None:
            part.timeout = timeout.total_seconds()
        group = CollectivesProcessGroup(part)
        group._name = group_name or f"{self._name}:{','.join(map(str, sorted(new_ranks)))}"
        return group

    @skip_dynamo
    def shutdown(self) -> None:
        """Free the communicators, when asynchronous calls are complete. Collective."""
        if self._is_shut:
            return
        self._is_shut = True
        self._callbacks.stop(PATIENCE)
        if self._comm._engine.broken is not None:
            return
        try:
            self._comm.free()
        except CollectivesError as error:  # otherwise torch would keep half of the group
            warnings.warn(f"a process group was destroyed: {error}", ResourceWarning, stacklevel=2)

    @skip_dynamo
    def abort(self) -> None:
        """Break the communicator, also for the other ranks that can be told. Local."""
        self._is_shut = True
        self._end("its process group was aborted")
        self._callbacks.stop(0)  # after the remaining functions

    def _end(self, why: str) -> None:
        """Break the communicator, and tell the other ranks that can be told why."""
        if self._comm._engine.broken is None:
            self._comm._engine.broken = why
            self._comm._engine.give_up(why)

    # -- the execution of calls --------------------------------------------------------------------

    def _run(
        self,
        opts: Any,
        name: str,
        arrays: tuple[Any, ...],
        tensors: Sequence[Any],
        after: After | None = None,
        **options: Any,
    ) -> Any:
        """Run a collective of the library, or start it if the call is asynchronous.

        `tensors` are the results, and `after` copies them to their places.
        """
        event = Event(name, arrays) if is_profiled() else None
        if opts is None or opts.asyncOp:
            self._make_room()
            request = getattr(self._comm, "i" + name)(*arrays, **options)
            work = PendingWork((request,), tensors, self._callbacks, _ending(event, after))
            self._pending.append(weakref.ref(work))
            if event is not None:
                work.finish_in_thread()
            return self._noted(work)
        try:
            getattr(self._comm, name)(*arrays, timeout=_deadline(opts), **options)
            if after is not None:
                after()
        finally:
            if event is not None:
                event.end()
        return DONE

    def _make_room(self) -> None:
        """Wait for the oldest asynchronous call if many may be in flight, because the library
        limits their number.

        The other ranks also start that call before the next one.
        """
        if len(self._pending) >= MOST:
            work = self._pending.popleft()()
            if work is not None:
                with contextlib.suppress(Exception):  # a later wait for it raises its error
                    work.wait()

    def _noted(self, work: DoneWork) -> DoneWork:
        """Note a call that may be in flight, if calls are being coalesced."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    @skip_dynamo
    def _start_coalescing(self, device: Any) -> None:
        """Begin to note calls, which run as usual."""
        self._coalesced = []

    @skip_dynamo
    def _end_coalescing(self, device: Any) -> Any:
        """Return one work for all calls that were noted."""
        works, self._coalesced = self._coalesced or [], None
        for each in works:
            if isinstance(each, AnySourceWork):
                each.wait()
        return united(works, [], self._callbacks)

    # -- reductions --------------------------------------------------------------------------------

    def _terms(
        self, opts: Any, results: Sequence[Tensor], after: After | None
    ) -> tuple[Reduction, float, After | None]:
        """Return the reduction of a call, the factor of each contribution, and the function to call
        afterwards. A mean of integers is their sum, which is then divided and truncated. Local.
        """
        op, factor = _reduction(opts)
        if op is not reductions.AVG or not all(map(is_integer, results)):
            return op, factor, after

        def divide() -> None:
            for each in results:
                each.div_(self._comm.size, rounding_mode="trunc")
            if after is not None:
                after()

        return reductions.SUM_FOR_AVG, factor, divide

    @collective
    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        if tensors[0].layout is torch.sparse_coo:
            event = Event("allreduce", tensors) if is_profiled() else None
            with self._comm._engine:
                add_sparse(self._comm, tensors[0], *_reduction(opts), _deadline(opts))
            if event is not None:
                event.end()
            return DoneWork(tensors)
        x, after = writable(tensors[0])
        op, factor, after = self._terms(opts, [x], after)
        is_plain = after is None and opts is not None and not opts.asyncOp
        if is_plain and not is_profiled():  # a fast path for small tensors
            self._comm.allreduce(x, x, op=op, prescale=factor, timeout=_deadline(opts))
            return DONE
        return self._run(opts, "allreduce", (x, x), tensors, after, op=op, prescale=factor)

    @collective
    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        pairs = [writable(tensor) for tensor in tensors]
        arrays = [x for x, _ in pairs]
        copies = [after for _, after in pairs if after is not None]

        def copy() -> None:
            for each in copies:
                each()

        op, factor, after = self._terms(opts, arrays, copy)
        return self._run(
            opts, "allreduce_many", (arrays, arrays), tensors, after, op=op, prescale=factor
        )

    @collective
    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        x, after = writable(_only(tensors, "reduce"))
        op, factor, after = self._terms(opts, [x], after)
        root = 0 if opts is None else opts.rootRank
        out = x if root == self._comm.rank else None
        after = after if root == self._comm.rank else None
        return self._run(
            opts, "reduce", (x, out), tensors, after, root=root, op=op, prescale=factor
        )

    @collective
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        out, after = writable(output, is_read=False)
        op, factor, after = self._terms(opts, [out], after)
        arrays = readable(input), out
        return self._run(opts, "reduce_scatter", arrays, [output], after, op=op, prescale=factor)

    _reduce_scatter_base = reduce_scatter_single

    @collective
    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Any:
        parts = _only(inputs, "reduce_scatter")
        out, after = writable(_only(outputs, "reduce_scatter"), is_read=False)
        op, factor, after = self._terms(opts, [out], after)
        counts = lengths(parts)
        options: dict[str, Any] = {"op": op, "prescale": factor}
        name = "reduce_scatter"
        if len(set(counts)) > 1:
            name, options["counts"] = "reduce_scatterv", counts
        return self._run(opts, name, (joined(parts), out), outputs, after, **options)

    @collective
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        works = [self.reduce_scatter_single(*each, opts) for each in pairs]
        return united(works, outputs, self._callbacks)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- moves -------------------------------------------------------------------------------------

    @collective
    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        root = 0 if opts is None else opts.rootRank
        x, after = writable(_only(tensors, "broadcast"), is_read=root == self._comm.rank)
        after = None if root == self._comm.rank else after
        return self._run(opts, "broadcast", (x, x), tensors, after, root=root)

    @collective
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        out, after = writable(output, is_read=False)
        return self._run(opts, "allgather", (readable(input), out), [output], after)

    _allgather_base = all_gather_single

    @collective
    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        parts = _only(outputs, "all_gather")
        x = readable(_only(inputs, "all_gather"))
        counts = lengths(parts)
        memory, copy = scattered(parts)
        if len(set(counts)) > 1:
            return self._run(opts, "allgatherv", (x, memory), outputs, copy, counts=counts)
        return self._run(opts, "allgather", (x, memory), outputs, copy)

    @collective
    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        works = [
            self.allgather([[part[i] for part in outputs]], [x], opts) for i, x in enumerate(inputs)
        ]
        return united(works, outputs, self._callbacks)

    @collective
    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        works = [self.all_gather_single(*each, opts) for each in pairs]
        return united(works, outputs, self._callbacks)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @collective
    def gather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        x = readable(_only(inputs, "gather"))
        root = 0 if opts is None else opts.rootRank
        if root != self._comm.rank:
            return self._run(opts, "gather", (x,), [], root=root)
        memory, copy = scattered(_only(outputs, "gather"))
        return self._run(opts, "gather", (x, memory), outputs, copy, root=root)

    @collective
    def scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Any:
        out, after = writable(_only(outputs, "scatter"), is_read=False)
        root = 0 if opts is None else opts.rootRank
        x = joined(_only(inputs, "scatter")) if root == self._comm.rank else None
        return self._run(opts, "scatter", (x, out), outputs, after, root=root)

    @collective
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        out, after = writable(output, is_read=False)
        x = readable(input)
        counts = self._counts(x, input_split_sizes, "input")
        receive_counts = self._counts(out, output_split_sizes, "output")
        return self._alltoall(opts, (x, out), [output], after, counts, receive_counts)

    alltoall_base = all_to_all_single

    @collective
    def alltoall(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        memory, copy = scattered(outputs)
        arrays = joined(inputs), memory
        return self._alltoall(opts, arrays, outputs, copy, lengths(inputs), lengths(outputs))

    def _alltoall(
        self,
        opts: Any,
        arrays: tuple[Tensor, Tensor],
        tensors: Sequence[Tensor],
        after: After | None,
        counts: list[int],
        receive_counts: list[int],
    ) -> Any:
        """Always run the vector form, because parts may be equal on some ranks only."""
        x, out = arrays
        return self._run(
            opts, "alltoallv", (x, counts, out), tensors, after, receive_counts=receive_counts
        )

    def _counts(self, tensor: Tensor, splits: Sequence[int], name: str) -> list[int]:
        """Return the elements for each rank, from the numbers of rows; equal by default."""
        rows, size = tensor.shape[0] if tensor.dim() else 1, self._comm.size
        try:
            counts = [index(each) for each in splits]
        except TypeError:
            counts = [-1]
        if not counts:
            if rows % size:
                raise ArgumentError(
                    f"the {name} of all_to_all has {rows} rows, which cannot be divided equally "
                    f"among {size} ranks: pass {name}_split_sizes"
                )
            return [tensor.numel() // size] * size
        if len(counts) != size or sum(counts) != rows or min(counts) < 0:
            raise ArgumentError(
                f"{name}_split_sizes is {shown(splits)}, and must have {size} numbers, not "
                f"negative, with the sum {rows}"
            )
        width = tensor.numel() // rows if rows else 0
        return [each * width for each in counts]

    @skip_dynamo
    def barrier(self, opts: Any = None) -> Any:
        try:
            return self._run(opts, "barrier", (), [])
        except StallError as error:
            # Programs look for this word, as torch's own tests do.
            error.args = (f"{error}; its timeout is that of the group",)
            raise

    # -- messages ----------------------------------------------------------------------------------

    @collective
    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> Any:
        x = readable(_only(tensors, "send"))
        event = Event("send", [x]) if is_profiled() else None
        request = self._comm.isend(x, dst, tag=tag)
        return self._noted(PendingWork((request,), tensors, None, _ending(event, None)))

    @collective
    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> Any:
        x, after = writable(_only(tensors, "recv"))
        event = Event("recv", [x]) if is_profiled() else None
        request = self._comm.irecv(x, src, tag=tag)
        return self._noted(PendingWork((request,), tensors, None, _ending(event, after), src))

    @collective
    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> Any:
        return self._noted(AnySourceWork(self._comm, plain(_only(tensors, "recv")), tag))
