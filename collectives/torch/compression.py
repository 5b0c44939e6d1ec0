"""Compression of tensors before they are reduced."""

from __future__ import annotations

from typing import Any

import torch

from collectives.horovod.compression import Compressor, HalfCompressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(HalfCompressor):
    """A compressor that sends floating-point tensors as float16, and others unchanged."""

    @staticmethod
    def kind(tensor: torch.Tensor) -> tuple[Any, bool]:
        return tensor.dtype, tensor.is_floating_point()

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: Any) -> torch.Tensor:
        return tensor.to(torch.float16 if dtype == "float16" else dtype)


class Compression:
    """The compressors: ``Compression.none``, the default, and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
