"""Tensors for collectives: in host memory, contiguous, and without a gradient.

Tensors on accelerators are copied to host memory and back (`devices.accelerators`). The host waits
for the copies, so that all streams see the result, whichever thread ends the call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from collectives import reductions
from collectives.arrays import frameworks
from collectives.communicator import Communicator
from collectives.devices.accelerators import Lane, is_on_accelerator, lane_of
from collectives.errors import (
    ArgumentError,
    CommunicatorError,
    MismatchError,
    UnsupportedTypeError,
)
from collectives.reductions import Reduction
from collectives.text.words import error_text, grouped, ranks

Tensor = Any  # torch.Tensor
After = Callable[[], object]


class DeviceFailedError(CommunicatorError):
    """A tensor could not be copied from its device, so this rank cannot make the call."""


@contextlib.contextmanager
def _using(device: Any) -> Iterator[Lane]:
    """Yield the lane of a device, and translate the errors of the device. Local."""
    try:
        yield lane_of(device)
    except (MemoryError, RuntimeError) as error:
        raise DeviceFailedError(
            f"a tensor on {device} could not be copied to host memory: {error_text(error)}"
        ) from error


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor without its gradient; raise an error if it cannot be communicated. Local."""
    if tensor.is_meta:
        raise UnsupportedTypeError(
            "a tensor is on meta, and the backend 'collectives' of torch.distributed takes tensors "
            "in host memory and on accelerators: pass one that has elements"
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedTypeError(
            f"a tensor has the layout {tensor.layout}, and the backend 'collectives' of "
            f"torch.distributed takes dense ones: pass tensor.to_dense()"
        )
    if is_on_accelerator(tensor) and tensor.numel() and not tensor.untyped_storage().nbytes():
        raise frameworks.unexported(tensor, "the tensor", "torch", "it has no memory")
    return tensor.detach() if tensor.requires_grad else tensor


def readable(tensor: Tensor) -> Tensor:
    """Return a tensor if it is contiguous, or a contiguous copy. Local."""
    source = plain(tensor)
    if is_on_accelerator(source):
        with _using(source.device) as lane:
            return lane.fetch(source)
    return source.contiguous()


def writable(tensor: Tensor, is_read: bool = True) -> tuple[Tensor, After | None]:
    """Return a contiguous tensor to receive into, with the elements if the call reads them, and the
    function to call afterwards. Local.
    """
    target = plain(tensor)
    if is_on_accelerator(target):
        with _using(target.device) as lane:
            before = lane.after_the_current()
            host = lane.fetch(target) if is_read else lane.host(target.shape, target.dtype)
        return host, lambda: lane.store(target, host, before)
    if target.is_contiguous():
        return target, None
    copy = target.contiguous()
    return copy, lambda: target.copy_(copy)


def lengths(tensors: Sequence[Tensor]) -> list[int]:
    """Return the numbers of elements of some tensors. Local."""
    return [tensor.numel() for tensor in tensors]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return one tensor with the elements of several, end to end; without a copy if they are
    already adjacent in memory.
    Local.
    """
    parts = [plain(tensor) for tensor in tensors]
    _check_dtypes(parts)
    if _lie_in_a_row(parts):
        return readable(_row(parts))
    with _using(parts[0].device) if is_on_accelerator(parts[0]) else contextlib.nullcontext():
        row = torch.cat([each.reshape(-1) for each in parts])
    return readable(row)


def scattered(tensors: Sequence[Tensor]) -> tuple[Tensor, After | None]:
    """Return one tensor to receive into that has room for the elements of several, and
    the function that copies them there afterwards.
    Local.
    """
    parts = [plain(tensor) for tensor in tensors]
    _check_dtypes(parts)
    if _lie_in_a_row(parts):
        return writable(_row(parts), is_read=False)
    size, dtype = sum(lengths(parts)), parts[0].dtype
    place: Callable[[Tensor, Tensor], object] = torch.Tensor.copy_
    if is_on_accelerator(parts[0]):
        with _using(parts[0].device) as lane:
            place = partial(lane.store, after=lane.after_the_current())
            memory = lane.host(size, dtype)
    else:
        memory = torch.empty(size, dtype=dtype)

    def copy() -> None:
        for part, piece in zip(parts, memory.split(lengths(parts)), strict=True):
            place(part, piece.view(part.shape))

    return memory, copy


def _check_dtypes(parts: Sequence[Tensor]) -> None:
    dtypes = {part.dtype for part in parts}
    if len(dtypes) != 1:
        raise ArgumentError(
            f"the tensors have the dtypes {', '.join(sorted(map(str, dtypes)))}, and must have one"
            if dtypes
            else "the list of tensors is empty"
        )


def _lie_in_a_row(parts: Sequence[Tensor]) -> bool:
    """Return whether each tensor begins at the end of the one before, in the same memory."""
    memory = parts[0].untyped_storage().data_ptr()
    place = parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != place or not part.is_contiguous():
            return False
        if part.untyped_storage().data_ptr() != memory:
            return False
        place += part.numel() * part.element_size()
    return True


def _row(parts: Sequence[Tensor]) -> Tensor:
    first = parts[0]
    return first.as_strided((sum(lengths(parts)),), (1,))


def is_integer(tensor: Tensor) -> bool:
    """Return whether a tensor has integers; bools are none. Local."""
    is_inexact = tensor.is_floating_point() or tensor.is_complex()
    return not is_inexact and tensor.dtype is not torch.bool


def add_sparse(
    comm: Communicator, tensor: Any, op: Reduction, factor: float, timeout: float | None
) -> None:
    """Replace a sparse tensor by the sum, or the mean, of the tensors of all ranks. Collective."""
    if op not in (reductions.SUM, reductions.AVG):
        raise ArgumentError(
            f"op is {op.name}, and must be SUM or AVG for sparse tensors: pass tensor.to_dense()"
        )
    mine = tensor.detach().coalesce()
    indices, values = readable(mine.indices().t()), readable(mine.values())
    number = 0 if op is reductions.SUM else 1
    shape = torch.tensor([mine._nnz(), number, mine.sparse_dim(), *mine.shape])
    shapes = torch.empty(comm.size, len(shape), dtype=shape.dtype)
    comm.allgather(shape, shapes, timeout=timeout)
    if (shapes[:, 1] != number).any():
        told = grouped(enumerate("AVG" if each else "SUM" for each in shapes[:, 1].tolist()))
        raise MismatchError(
            f"the ranks do not agree on the op of sparse tensors: "
            f"{'; '.join(f'{ranks(mask)} passed {each}' for each, mask in told.items())}"
        )
    if (shapes[:, 2:] != shape[2:]).any():
        raise ArgumentError(
            f"the sparse tensors of all ranks must have one shape, and as many sparse dimensions; "
            f"the shapes are {', '.join(str(tuple(each[3:].tolist())) for each in shapes)}"
        )
    numbers = shapes[:, 0].tolist()
    every = []
    for part in (indices, values):
        whole = part.new_empty(sum(numbers), *part.shape[1:])
        width = part[:0].new_empty(1, *part.shape[1:]).numel()
        counts = [number * width for number in numbers]
        comm.allgatherv(part, whole, counts=counts, timeout=timeout)
        every.append(whole)
    if factor != 1.0:
        every[1] *= factor
    result = torch.sparse_coo_tensor(
        every[0].t().to(tensor.device),
        every[1].to(tensor.device),
        mine.shape,
        check_invariants=False,  # they held on each rank
    ).coalesce()
    if op is reductions.AVG:
        mode = "trunc" if is_integer(result) else None
        result = result.div(comm.size, rounding_mode=mode)
    with torch.no_grad():
        tensor.copy_(result)
