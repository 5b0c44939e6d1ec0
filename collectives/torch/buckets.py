"""The gradients of an optimizer: reduced in buckets, as soon as the backward pass has them.

A bucket is one tensor. The gradients of its parameters lie in it one after the other, so that they
are reduced as one and come back without being copied: each ``parameter.grad`` is a view of it.
Buckets are filled from the last parameter to the first one, as backward passes go. What the next
forward pass needs first has the highest priority.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from collectives.background.engine import fusion
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.handles import Handle, submit
from collectives.horovod.ops import Average, ReduceOp, check_compression, scaling
from collectives.horovod.process_sets import ProcessSet
from collectives.torch.compression import FP16Compressor, NoneCompressor
from collectives.torch.handles import array
from collectives.torch.moving import sparse_allreduce_async
from collectives.torch.reducing import allreduce_async_, is_double

Waiting = Callable[[], object]  # it waits, and writes the result back

# The buckets that reduce the gradients of a parameter: those of the optimizer that was made last.
_owners: WeakIdKeyDictionary[weakref.ref[Buckets]] = WeakIdKeyDictionary()


class Terms(NamedTuple):
    """How gradients are reduced.

    Attributes
    ----------
    compression : Compressor, or codec of `collectives.compression`
    op : ReduceOp
    predivide : float
        Gradients are divided by it before they are added, and the sum is multiplied by it.
    sparse_as_dense : bool
        Whether sparse gradients are reduced as dense ones.
    process_set : ProcessSet
    """

    compression: Any
    op: ReduceOp
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet

    @property
    def scales(self) -> tuple[float, float]:
        """The factors before and after the reduction."""
        return (1.0 / self.predivide, self.predivide) if self.op == Average else (1.0, 1.0)

    @property
    def takes_buckets(self) -> bool:
        """Whether a bucket can be compressed as a whole."""
        is_class = isinstance(self.compression, type)
        return not is_class or self.compression in (NoneCompressor, FP16Compressor)


class Bucket:
    """Parameters whose gradients are reduced as one."""

    def __init__(self, name: str, parameters: list[torch.Tensor], priority: int) -> None:
        self.name, self.parameters, self.priority = name, parameters, priority
        self.missing = set(parameters)
        self.flat: torch.Tensor | None = None
        self.views: list[torch.Tensor] = []

    def remove(self, parameter: torch.Tensor) -> None:
        """Leave a `parameter` out from now on. Local."""
        self.parameters = [each for each in self.parameters if each is not parameter]
        self.missing.discard(parameter)
        self.flat = None

    def fill(self) -> torch.Tensor:
        """Make the gradients views of the bucket, with zeros where there is none; return it.
        Local.
        """
        dtype = self.parameters[0].dtype
        if any(each.dtype != dtype for each in self.parameters):
            raise HorovodArgumentError(
                f"{self.name}: the parameters have different dtypes by now; make the optimizer "
                f"when the dtypes of the model are settled"
            )
        if self.flat is None or self.flat.dtype != dtype:
            total = sum(each.numel() for each in self.parameters)
            like = self.parameters[0]
            self.flat = torch.zeros(total, dtype=dtype, device=like.device)
            sizes = [each.numel() for each in self.parameters]
            parts = zip(self.flat.split(sizes), self.parameters, strict=True)
            self.views = [part.view(each.shape) for part, each in parts]
        for each, view in zip(self.parameters, self.views, strict=True):
            if each.grad is None:
                view.zero_()
            elif each.grad.data_ptr() != view.data_ptr() or not each.numel():
                view.copy_(each.grad)
            each.grad = view
        return self.flat


class Buckets:
    """The gradients of an optimizer."""

    def __init__(
        self,
        named: list[tuple[str, torch.Tensor]],
        terms: Terms,
        passes: int,
        groups: int | Sequence[Sequence[torch.Tensor]] | None,
        suffix: str,
    ) -> None:
        self.terms, self.passes, self.suffix = terms, passes, suffix
        self.names: dict[torch.Tensor, str] = {}
        self.left: dict[torch.Tensor, int] = {}  # backward passes until it is reduced
        self.buckets: list[Bucket] = []
        self.home: dict[torch.Tensor, Bucket] = {}
        self.alone: set[torch.Tensor] = set()  # in no bucket
        self.sparse: set[torch.Tensor] = set()
        self.waiting: dict[object, Waiting] = {}  # by the bucket or the parameter
        self.is_dirty = False  # whether a gradient has come that no one has waited for
        self.hooks: dict[torch.Tensor, Any] = {}
        weakref.finalize(self, _remove, self.hooks)
        self.add(named, groups)

    def add(
        self,
        named: list[tuple[str, torch.Tensor]],
        groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    ) -> None:
        """Take more parameters. Local after the first call, and the same on all ranks."""
        named = [(name, each) for name, each in named if each.requires_grad]
        for _, each in named:
            owner = _owners[each]() if each in _owners else None
            if owner is not None:  # of an optimizer that is not used any more
                owner.leave([each])
            _owners[each] = weakref.ref(self)
        order = {each: k for k, (_, each) in enumerate(named, start=len(self.names))}
        self.names.update({each: name for name, each in named})
        self.left.update({each: self.passes for _, each in named})
        for _, each in named:
            array(each)  # raises an error if it cannot be reduced
        if not self.terms.takes_buckets:
            self.alone.update(order)
        else:
            for part in self._parts([each for _, each in named], groups):
                priority = -min(order[each] for each in part)
                bucket = Bucket(self._name(part), part, priority)
                self.buckets.append(bucket)
                self.home.update(dict.fromkeys(part, bucket))
        # A hook must not keep an optimizer alive that is gone.
        arrived = weakref.WeakMethod(self._arrived)

        def hook(parameter: torch.Tensor) -> None:
            method = arrived()
            if method is not None:
                method(parameter)

        self.hooks.update({each: each.register_post_accumulate_grad_hook(hook) for each in order})

    def leave(self, parameters: Iterable[torch.Tensor]) -> None:
        """Reduce some `parameters` no more. Local, and the same on all ranks."""
        for each in parameters:
            self.hooks.pop(each).remove()
            _owners.pop(each, None)
            del self.names[each], self.left[each]
            self.alone.discard(each)
            self.sparse.discard(each)
            bucket = self.home.pop(each, None)
            wait = self.waiting.pop(each if bucket is None else bucket, None)
            if wait is not None:
                wait()
            if bucket is not None:
                bucket.remove(each)
                if not bucket.parameters:
                    self.buckets.remove(bucket)

    def _parts(
        self,
        parameters: list[torch.Tensor],
        groups: int | Sequence[Sequence[torch.Tensor]] | None,
    ) -> Iterable[list[torch.Tensor]]:
        """Yield the parameters of each bucket, the last one first."""
        if isinstance(groups, int):
            share, more = divmod(len(parameters), groups)
            ends = [k * share + min(k, more) for k in range(groups + 1)]
            groups = [parameters[a:b] for a, b in pairwise(ends)]
        most = fusion(self.terms.process_set.comm())
        if groups is not None:
            taken = {each for group in groups for each in group}
            mine = set(parameters)
            listed = [[each for each in group if each in mine] for group in groups]
            listed += [[each] for each in parameters if each not in taken]
            for group in reversed(listed):
                yield from _of_one_dtype(group, None)
            return
        yield from _of_one_dtype(parameters[::-1], most)

    def _name(self, parameters: list[torch.Tensor]) -> str:
        names = [self.names[each] for each in parameters]
        more = f" to {names[-1]}" if len(names) > 1 else ""
        return f"gradient{'s' if more else ''} of {names[0]}{more}{self.suffix}"

    # -- a backward pass -------------------------------------------------------------------------

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Take note of a gradient that was accumulated. Local."""
        gradient = parameter.grad
        if self.left[parameter] <= 0:
            raise AssertionError(
                f"{self.names[parameter]} has had more gradients than backward_passes_per_step, "
                f"which is {self.passes}, before step() or synchronize()"
            )
        if gradient is None or gradient.requires_grad:
            raise AssertionError(
                f"the gradient of {self.names[parameter]} has a graph (create_graph=True), and "
                f"cannot be reduced in the background"
            )
        self.is_dirty = True
        self.left[parameter] -= 1
        if self.left[parameter]:
            return
        if gradient.is_sparse and parameter in self.home:  # it turns out now
            self._take_out(parameter)
        if parameter in self.alone:
            self.waiting[parameter] = self._reduce_alone(parameter)
            return
        bucket = self.home[parameter]
        bucket.missing.discard(parameter)
        if not bucket.missing:
            self.waiting[bucket] = self._reduce(bucket)

    def _take_out(self, parameter: torch.Tensor) -> None:
        bucket = self.home.pop(parameter)
        bucket.remove(parameter)
        self.alone.add(parameter)
        self.sparse.add(parameter)
        if not bucket.parameters:
            self.buckets.remove(bucket)
        elif not bucket.missing and bucket not in self.waiting:
            self.waiting[bucket] = self._reduce(bucket)

    def _reduce(self, bucket: Bucket) -> Waiting:
        """Submit a bucket."""
        flat = bucket.fill()
        compression, process_set = self.terms.compression, self.terms.process_set
        comm = process_set.comm()
        scaled = scaling(self.terms.op, True, *self.terms.scales, comm.size, is_double(flat))
        options: dict[str, Any] = {"op": scaled.op, "prescale": scaled.prescale}
        options |= {"postscale": scaled.postscale, "priority": bucket.priority, "group": comm}
        small = flat
        if compression is FP16Compressor:
            small, _ = FP16Compressor.compress(flat)
        elif compression is not NoneCompressor:
            options["compression"] = compression
        part = submit("allreduce", bucket.name, small, small, **options)
        if small is flat:
            return Handle((part,), lambda _: flat).wait
        return Handle((part,), lambda _: flat.copy_(small)).wait

    def _reduce_alone(self, parameter: torch.Tensor) -> Waiting:
        """Submit one gradient."""
        gradient, name = parameter.grad, f"{self.names[parameter]}{self.suffix}"
        assert gradient is not None
        op, process_set = self.terms.op, self.terms.process_set
        if gradient.is_sparse and not self.terms.sparse_as_dense:
            result = sparse_allreduce_async(gradient, name, op, process_set)

            def finish() -> None:
                parameter.grad = result()

            return finish
        is_class = isinstance(self.terms.compression, type)
        compressor = self.terms.compression if is_class else NoneCompressor
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        small, ctx = compressor.compress(dense)
        handle = allreduce_async_(small, None, name, op, *self.terms.scales, process_set)

        def finish_dense() -> None:
            reduced = compressor.decompress(handle.wait(), ctx)
            if gradient.is_sparse:
                parameter.grad = reduced.to_sparse()
            elif reduced.data_ptr() != gradient.data_ptr():
                gradient.copy_(reduced)

        return finish_dense

    # -- the end of a step -----------------------------------------------------------------------

    def synchronize(self) -> None:
        """Reduce what is missing, with zeros where there is no gradient, and wait for everything.
        Collective.
        """
        try:
            with torch.no_grad():
                for bucket in self.buckets:
                    if bucket not in self.waiting:
                        self.waiting[bucket] = self._reduce(bucket)
                for parameter in self.names:  # in the order of the optimizer, on all ranks
                    if parameter in self.alone and parameter not in self.waiting:
                        self._fill(parameter)
                        self.waiting[parameter] = self._reduce_alone(parameter)
                self._finish()
        finally:
            self.reset()

    def _finish(self) -> None:
        """Wait for everything; raise the first error."""
        problem: BaseException | None = None
        for wait in self.waiting.values():
            try:
                wait()
            except RuntimeError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _fill(self, parameter: torch.Tensor) -> None:
        """Give a parameter without a gradient one of zeros."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
            if parameter in self.sparse:
                parameter.grad = parameter.grad.to_sparse(1)

    def drain(self) -> None:
        """Wait for what is in flight, and forget it. Local, and the same on all ranks."""
        with contextlib.suppress(RuntimeError):  # whatever it is, nobody wants the result
            self._finish()
        self.reset()

    def reset(self) -> None:
        """Begin a new step, and forget what has come. Local."""
        self.waiting.clear()
        self.is_dirty = False
        for parameter in self.left:
            self.left[parameter] = self.passes
        for bucket in self.buckets:
            bucket.missing = set(bucket.parameters)


def _remove(hooks: dict[torch.Tensor, Any]) -> None:
    for hook in hooks.values():
        hook.remove()


def _of_one_dtype(
    parameters: Iterable[torch.Tensor], most: int | None
) -> Iterable[list[torch.Tensor]]:
    """Yield lists of parameters that have one dtype, and no more than so many bytes together."""
    filled: dict[torch.dtype, list[torch.Tensor]] = {}
    room: dict[torch.dtype, int] = {}
    for each in parameters:
        dtype, nbytes = each.dtype, each.numel() * each.element_size()
        if most is not None and dtype in filled and room[dtype] < nbytes:
            yield filled.pop(dtype)
        if dtype not in filled:
            filled[dtype], room[dtype] = [], most or 0
        filled[dtype].append(each)
        room[dtype] -= nbytes
    yield from filled.values()


def check_groups(groups: Any) -> None:
    """Raise an error if `groups` are neither a number nor lists of different tensors. Local."""
    if groups is None or (isinstance(groups, int) and groups > 0):
        return
    if not isinstance(groups, list):
        raise ValueError(
            "groups should be a non-negative integer or a list of list of torch.Tensor."
        )
    seen: set[int] = set()
    for each in (each for group in groups for each in group):
        if not isinstance(each, torch.Tensor):
            raise ValueError("groups must consist of torch.Tensor.")
        if id(each) in seen:
            raise ValueError("A parameter can only appear once in groups.")
        seen.add(id(each))


def check_terms(terms: Terms, passes: int) -> None:
    """Raise an error if `terms` contradict each other, or `passes` is not positive. Local."""
    if terms.predivide != 1.0 and terms.op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    check_compression(terms.op, terms.compression)
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if terms.op not in (Average, 1, 2):
        raise HorovodArgumentError(f"op is {terms.op!r}, and must be Average, Sum or Adasum")
