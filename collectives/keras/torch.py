"""Keras on torch: gradients are dense, and a step runs when all of them are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from collectives.compiled.buckets import buckets
from collectives.horovod.arrays import allreduce_async
from collectives.horovod.gradients import Framework, GradientOptions, Places
from collectives.horovod.handles import together
from collectives.horovod.ops import Sum
from collectives.torch.asynchronous import array


class Torch(Framework):
    """torch, as the backend of Keras."""

    sees_late = True

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def reduced(
        self, tensors: list[Any], options: GradientOptions, groups: Sequence[Places] | None
    ) -> list[Any]:
        with torch.no_grad():
            dense, restored = options.compressed(tensors)
            arrays = [_array(each.cpu()) for each in dense]
            parts = [part for (part,) in buckets(arrays, options, options.name, groups)]
            handles = [part.start([arrays[k] for k in part.places]) for part in parts]
            results: list[Any] = [None] * len(arrays)
            for part, made in zip(parts, together(handles).wait(), strict=True):
                for place, each in zip(part.places, made, strict=True):
                    results[place] = _like(dense[place], _tensor(each, dense[place].dtype))
            return restored(results)

    def prepared(self, gradient: Any, number: int, as_dense: bool) -> Any:
        return gradient if gradient.layout is torch.strided else gradient.to_dense()

    def completed(
        self, gradients: list[Any], variables: list[Any], options: GradientOptions
    ) -> list[Any]:
        """Return the gradients, with zeros for those that only other ranks have. Collective."""
        marks = np.array([each is not None for each in gradients], np.float32)
        name = f"{options.name}, which there are"
        found = allreduce_async(marks, marks, name, Sum, process_set=options.process_set).wait()
        filled = [
            torch.zeros_like(variable.value) if each is None else each
            for each, variable in zip(gradients, variables, strict=True)
        ]
        return [each if count else None for each, count in zip(filled, found, strict=True)]


def _like(gradient: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return a result on the device of the gradient and with its strides: fused optimizers read
    them in one order.
    """
    is_like = (gradient.device, gradient.stride()) == (result.device, result.stride())
    return result if is_like else torch.empty_like(gradient).copy_(result)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return an array over the memory of a tensor."""
    x = array(tensor)
    if x.dtype is torch.bfloat16:
        return np.asarray(x.view(torch.int16)).view("bfloat16")  # which Keras has imported
    return np.asarray(x)


def _tensor(x: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over the memory of an array."""
    if dtype is not torch.bfloat16:
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.int16)).view(dtype)
