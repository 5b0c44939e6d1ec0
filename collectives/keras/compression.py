"""Compression of tensors before they are reduced, on any backend of Keras."""

from __future__ import annotations

from typing import Any

import keras

from collectives.horovod.compression import Compressor, HalfCompressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(HalfCompressor):
    """A compressor that sends floating-point tensors as float16, and others unchanged."""

    cast: Any = staticmethod(keras.ops.cast)

    @staticmethod
    def kind(tensor: Any) -> tuple[Any, bool]:
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        return dtype, "float" in dtype


class Compression:
    """The compressors: ``Compression.none``, the default, and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
