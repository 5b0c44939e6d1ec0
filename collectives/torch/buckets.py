"""The gradients of an optimizer, reduced in buckets as soon as the backward pass has computed them.

A bucket is one tensor that holds the gradients of its parameters one after the other. They are
reduced together and need no copy back, because each ``parameter.grad`` is a view of the bucket,
with the strides of the parameter: fused optimizers read both in the order of memory.
Buckets are filled from the last parameter to the first one, in the order of the backward pass. The
gradient that the next forward pass needs first has the highest priority.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils.weak import WeakIdKeyDictionary

from collectives import _core
from collectives.arrays import frameworks
from collectives.background.engine import fusion
from collectives.devices.accelerators import no_memory
from collectives.horovod.errors import HorovodArgumentError, HorovodInternalError
from collectives.horovod.gradients import GradientOptions, Places, split
from collectives.horovod.handles import Handle, submit, waited
from collectives.horovod.ops import scaling
from collectives.torch.asynchronous import (
    Elements,
    allreduce_async_,
    array,
    check_shapes,
    dense_strides,
    sparse_handle,
)
from collectives.torch.compression import FP16Compressor, NoneCompressor

IN_BUCKETS = None, NoneCompressor, FP16Compressor  # compressors of a whole bucket

# The buckets that reduce the gradients of a parameter; they belong to its newest optimizer.
_owners: WeakIdKeyDictionary[weakref.ref[Buckets]] = WeakIdKeyDictionary()


class Bucket:
    """Parameters whose gradients are reduced as one."""

    name: str
    parameters: list[torch.Tensor]
    priority: int
    names: Mapping[torch.Tensor, str]

    def __init__(
        self,
        name: str,
        parameters: list[torch.Tensor],
        priority: int,
        names: Mapping[torch.Tensor, str],
    ) -> None:
        self.name, self.parameters, self.priority, self.names = name, parameters, priority, names
        self.how: dict[str, Any] | None = None  # arguments of its submission, once known
        self.flat: torch.Tensor | None = None
        self.views: list[torch.Tensor] = []
        self.strides: list[tuple[int, ...]] = []  # of the parameters, when the views were made
        self.places: list[int] = []  # the addresses of the views
        self.reset()

    def reset(self) -> None:
        """Begin a new step, and discard the gradients of the last one. Local."""
        self.missing: set[torch.Tensor] = set(self.parameters)
        self.handle: Handle | None = None  # after the submission

    def remove(self, parameter: torch.Tensor) -> None:
        """Leave a `parameter` out from now on. Local."""
        self.parameters = [each for each in self.parameters if each is not parameter]
        self.missing.discard(parameter)
        self.flat = None

    def fill(self) -> torch.Tensor:
        """Make the gradients views of the bucket, with zeros for missing ones; return it.
        Local.
        """
        kind = _kind(self.parameters[0])
        if any(_kind(each) != kind for each in self.parameters):
            raise HorovodArgumentError(
                f"{self.name}: the parameters have different dtypes or devices by now; make the "
                f"optimizer when those of the model are settled"
            )
        strides = [each.stride() for each in self.parameters]
        # A model that was moved, and be it there and back, has moved its gradients, too.
        are_there = self.places == [view.data_ptr() for view in self.views]
        if (
            self.flat is None
            or _kind(self.flat) != kind
            or strides != self.strides
            or not are_there
        ):
            self.flat, self.how, self.strides = self._allocated(), None, strides
            sizes = [each.numel() for each in self.parameters]
            parts = zip(self.flat.split(sizes), self.parameters, strict=True)
            self.views = [part.as_strided(each.shape, dense_strides(each)) for part, each in parts]
            self.places = [view.data_ptr() for view in self.views]
        moved: list[tuple[torch.Tensor, torch.Tensor]] = []
        for each, view, place in zip(self.parameters, self.views, self.places, strict=True):
            if each.grad is None:
                view.zero_()
            elif each.grad.data_ptr() != place or not each.numel():
                moved.append((view, each.grad))
            each.grad = view
        if moved:
            torch._foreach_copy_(*(list(each) for each in zip(*moved, strict=True)))
        return self.flat

    def _allocated(self) -> torch.Tensor:
        """Return memory for the gradients."""
        total, like = sum(each.numel() for each in self.parameters), self.parameters[0]
        try:
            return _zeros(total, like)
        except (MemoryError, RuntimeError) as error:
            problem = no_memory(like.device, total * like.dtype.itemsize, error)
            raise HorovodInternalError(f"{self.name}: {problem}") from error

    def start(self, options: GradientOptions) -> None:
        """Submit the gradients. Collective."""
        flat = self.fill()
        if self.how is None or self.how["group"] is not options.process_set.communicator:
            self.how = self._how(flat, options)
        if options.compression is not FP16Compressor:
            part = submit("allreduce", self.name, flat, flat, **self.how)
            self.handle = Handle((part,), None)
            return
        small, _ = FP16Compressor.compress(flat)
        part = submit("allreduce", self.name, small, small, **self.how)
        self.handle = Handle((part,), flat.copy_)

    def _how(self, flat: torch.Tensor, options: GradientOptions) -> dict[str, Any]:
        """Return the arguments of its submission: the same at each step until ranks change."""
        comm, scales = options.process_set.comm(), (options.prescale, options.postscale)
        scaled = scaling(options.op, True, *scales, comm.size, Elements.is_double(flat))
        how = {"op": scaled.op, "prescale": scaled.prescale, "postscale": scaled.postscale}
        if options.codec is not None:
            how["compression"] = options.codec
        return how | {"priority": self.priority, "group": comm, "terms": self._terms()}

    def _terms(self) -> str:
        """Return the places of elements in the bucket as a text, which the ranks compare."""
        texts = []
        for each in self.parameters:
            strides = "" if each.is_contiguous() else f" with strides {dense_strides(each)}"
            texts.append(f"{self.names[each]} {tuple(each.shape)}{strides}")
        return f"packed from {', '.join(texts)}"


class Alone(Bucket):
    """One parameter, whose gradient is sparse, or compressed by a class of the program's own."""

    is_sparse: bool = False

    def start(self, options: GradientOptions) -> None:
        """Submit the gradient. Collective."""
        (parameter,) = self.parameters
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
            if self.is_sparse:
                parameter.grad = parameter.grad.to_sparse(1)
        gradient, op, process_set = parameter.grad, options.op, options.process_set
        self.is_sparse = gradient.is_sparse
        if self.is_sparse and not options.sparse_as_dense:
            handle = sparse_handle(gradient, self.name, op, process_set)
            self.handle = handle.then(lambda made: setattr(parameter, "grad", made))
            return
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        (small,), restored = options.compressed([dense])
        scales = options.prescale, options.postscale

        def finish(made: torch.Tensor) -> None:
            (reduced,) = restored([made])
            if gradient.is_sparse:
                parameter.grad = reduced.to_sparse()
            elif reduced.data_ptr() != gradient.data_ptr():
                gradient.copy_(reduced)

        handle = allreduce_async_(small, None, self.name, op, *scales, process_set)
        self.handle = handle.then(finish)


class Buckets:
    """The gradients of an optimizer."""

    options: GradientOptions
    passes: int
    suffix: str

    def __init__(
        self,
        named: list[tuple[str, torch.Tensor]],
        options: GradientOptions,
        suffix: str,
    ) -> None:
        self.options, self.passes, self.suffix = options, options.passes, suffix
        self.names: dict[torch.Tensor, str] = {}
        self.left: dict[torch.Tensor, int] = {}  # backward passes until its reduction
        self.buckets: list[Bucket] = []
        self.home: dict[torch.Tensor, Bucket] = {}
        self.is_dirty: bool = False  # whether a gradient has no wait yet
        self.has_failed: bool = False  # whether the last step left some gradients unreduced
        self.hooks: dict[torch.Tensor, tuple[Any, Any]] = {}  # of the nodes that accumulate
        weakref.finalize(self, _remove, self.hooks)
        self.add(named, options.places([each for _, each in named if each.requires_grad]))

    def add(
        self, named: list[tuple[str, torch.Tensor]], groups: Sequence[Places] | None = None
    ) -> None:
        """Add parameters. Local after the first call, and the same on all ranks."""
        named = [(name, each) for name, each in named if each.requires_grad]
        check_shapes(named)
        for _, each in named:
            owner = _owners[each]() if each in _owners else None
            if owner is not None:  # an optimizer that is no longer used
                owner.leave([each])
            _owners[each] = weakref.ref(self)
        order = {each: k for k, (_, each) in enumerate(named, start=len(self.names))}
        self.names.update({each: name for name, each in named})
        self.left.update({each: self.passes for _, each in named})
        for _, each in named:
            array(each)  # raises an error if it cannot be reduced
        mine = [each for _, each in named]
        kind: type[Bucket] = Alone
        parts = [[k] for k in range(len(mine))]
        if self.options.codec is not None or self.options.compression in IN_BUCKETS:
            most = fusion(self.options.process_set.comm())
            kind, parts = Bucket, split(mine, groups, most, key=_kind)
        for places in parts:
            part = [mine[k] for k in places]
            self._house(kind, part, -min(order[each] for each in part))
        for each in mine:
            self._listen(each)

    def _listen(self, parameter: torch.Tensor) -> None:
        """Hear of the gradients of a parameter after all of its own hooks, whenever the program
        registers them: the node that accumulates them calls its hooks last.
        """
        arrived = weakref.WeakMethod(self._arrived)  # a hook must not keep an old optimizer alive

        def hook(_: Any, gradients: tuple[torch.Tensor | None]) -> None:
            method = arrived()
            if method is not None and gradients[0] is not None:
                method(parameter)

        node = get_gradient_edge(parameter).node  # the parameter does not keep it alive
        self.hooks[parameter] = node, node.register_hook(hook)

    def leave(self, parameters: Iterable[torch.Tensor]) -> None:
        """Stop reducing some `parameters`. Local, and the same on all ranks."""
        for each in parameters:
            self.hooks.pop(each)[1].remove()
            _owners.pop(each, None)
            del self.names[each], self.left[each]
            bucket = self.home.pop(each)
            if bucket.handle is not None:
                bucket.handle.wait()
            self._move_out(bucket, each)

    def _house(self, kind: type[Bucket], parameters: list[torch.Tensor], priority: int) -> None:
        """Make a bucket."""
        names = [self.names[each] for each in parameters]
        more = f" to {names[-1]}" if len(names) > 1 else ""
        name = f"gradient{'s' if more else ''} of {names[0]}{more}{self.suffix}"
        bucket = kind(name, parameters, priority, self.names)
        self.buckets.append(bucket)
        self.home.update(dict.fromkeys(parameters, bucket))

    def _move_out(self, bucket: Bucket, parameter: torch.Tensor) -> None:
        """Remove a parameter from a bucket."""
        bucket.remove(parameter)
        if not bucket.parameters:
            self.buckets.remove(bucket)

    # -- a backward pass -------------------------------------------------------------------------

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Handle the gradient that a parameter has accumulated. Local."""
        gradient = parameter.grad
        if self.left[parameter] <= 0:
            raise AssertionError(
                f"{self.names[parameter]} has had more gradients than backward_passes_per_step, "
                f"which is {self.passes}, before step() or synchronize()"
            )
        if gradient is None:
            raise AssertionError(
                f"a hook has freed the gradient of {self.names[parameter]}, which all ranks reduce "
                f"next: free gradients after step()"
            )
        if gradient.requires_grad:
            raise AssertionError(
                f"the gradient of {self.names[parameter]} has a graph (create_graph=True), and "
                f"cannot be reduced in the background"
            )
        self.is_dirty = True
        self.left[parameter] -= 1
        if self.left[parameter]:
            return
        bucket = self.home[parameter]
        if gradient.is_sparse and not isinstance(bucket, Alone):  # not known before
            self._move_out(bucket, parameter)
            if bucket.parameters and not bucket.missing and bucket.handle is None:
                bucket.start(self.options)
            self._house(Alone, [parameter], bucket.priority)
            bucket = self.home[parameter]
        bucket.missing.discard(parameter)
        if not bucket.missing:
            bucket.start(self.options)

    # -- the end of a step -----------------------------------------------------------------------

    def synchronize(self) -> None:
        """Reduce missing buckets, with zeros where there is no gradient, and wait for everything.
        Collective.
        """
        for each, left in self.left.items():
            if left == self.passes and each.grad is not None:
                # A parameter that was moved or cast has another node.
                self.hooks[each][1].remove()
                self._listen(each)
        self.has_failed = True
        try:
            with torch.no_grad():
                for bucket in self.buckets:
                    if bucket.handle is None:
                        bucket.start(self.options)
                self._finish()
            self.has_failed = False
        finally:
            self.reset()

    def _finish(self) -> None:
        """Wait for everything; raise the first error."""
        waited([each.handle for each in self.buckets if each.handle is not None])

    def drain(self) -> None:
        """Wait for the buckets in flight, and discard the gradients of a step that is not complete.
        Local, and the same on all ranks.
        """
        with contextlib.suppress(RuntimeError):  # the result is discarded
            self._finish()
        if self.is_dirty or self.has_failed:
            for each in self.names:
                each.grad = None
        self.has_failed = False
        self.reset()

    def reset(self) -> None:
        """Begin a new step, and discard the gradients of the last one. Local."""
        self.is_dirty = False
        for parameter in self.left:
            self.left[parameter] = self.passes
        for bucket in self.buckets:
            bucket.reset()


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


def _zeros(count: int, like: torch.Tensor) -> torch.Tensor:
    """Return zeros, in memory that other ranks can read if NumPy's arrays are there."""
    if like.device.type == "cpu" and _core.shares_arrays():
        return frameworks.empty(like, (count,), True).zero_()
    return torch.zeros(count, dtype=like.dtype, device=like.device)


def _remove(hooks: dict[torch.Tensor, tuple[Any, Any]]) -> None:
    for _, hook in hooks.values():
        hook.remove()
