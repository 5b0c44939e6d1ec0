"""Compression of tensors before they are reduced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

Tensor = Any


class Compressor:
    """What compresses tensors: base class. Its methods are static."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return a compressed `tensor`, and what `decompress` needs. Local."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Return the `tensor` as it was, with the `ctx` that `compress` has returned. Local."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """It leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return the `tensor` itself. Local."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Return the `tensor` itself; `ctx` is None. Local."""
        return tensor


class FP16Compressor(Compressor):
    """It sends floating tensors as float16, and leaves others as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return the `tensor` as float16, and its dtype. Local."""
        if tensor.dtype.is_floating:
            return tf.cast(tensor, tf.float16), tensor.dtype
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Return the `tensor` with its dtype `ctx`. Local."""
        return tf.cast(tensor, ctx)


class Compression:
    """The compressors: ``Compression.none``, the default, and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor
