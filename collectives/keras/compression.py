"""Compression of tensors before they are reduced, on any backend of Keras."""

from __future__ import annotations

from typing import Any

import keras

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """What compresses tensors: base class. Its methods are static."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return a compressed `tensor`, and what `decompress` needs. Local."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the `tensor` as it was, with the `ctx` that `compress` has returned. Local."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """It leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the `tensor` itself. Local."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the `tensor` itself; `ctx` is None. Local."""
        return tensor


class FP16Compressor(Compressor):
    """It sends floating tensors as float16, and leaves others as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the `tensor` as float16, and its dtype. Local."""
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if "float" in dtype:
            return keras.ops.cast(tensor, "float16"), dtype
        return tensor, dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the `tensor` with its dtype `ctx`. Local."""
        return keras.ops.cast(tensor, ctx)


class Compression:
    """The compressors: ``Compression.none``, the default, and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
