"""Compression of tensors before they are reduced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from collectives.horovod.compression import Compressor, HalfCompressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(HalfCompressor):
    """A compressor that sends floating-point tensors as float16, and others unchanged."""

    cast: Any = staticmethod(tf.cast)

    @staticmethod
    def kind(tensor: Any) -> tuple[Any, bool]:
        return tensor.dtype, tensor.dtype.is_floating


class Compression:
    """The compressors: ``Compression.none``, the default, and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
