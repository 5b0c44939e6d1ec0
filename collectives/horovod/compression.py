"""Compressors: classes that encode tensors for sending, for the front end of each framework."""

from __future__ import annotations

from typing import Any

from collectives.horovod.errors import HorovodArgumentError
from collectives.text.words import shown

Tensor = Any


def checked(compression: Any) -> Any:
    """Return `compression`; raise an error if it is not a compressor of Horovod's kind. Local."""
    if hasattr(compression, "compress"):
        return compression
    raise HorovodArgumentError(
        f"compression is {shown(compression)}, and must be a class such as Compression.fp16; "
        f"DistributedOptimizer takes codecs, too"
    )


class Compressor:
    """The base class of compressors of tensors, with static methods."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return a compressed `tensor`, and the context for `decompress`. Local."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Return the original `tensor`, by the `ctx` that `compress` has returned. Local."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """A compressor that leaves tensors unchanged."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor


class HalfCompressor(Compressor):
    """A compressor that sends floating-point tensors as float16, and others unchanged."""

    kind: Any  # a function of a tensor: its dtype, and whether it is floating
    cast: Any  # a function of a tensor and another dtype, one of its own or "float16"

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        dtype, is_floating = cls.kind(tensor)
        return (cls.cast(tensor, "float16") if is_floating else tensor), dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: Any) -> Tensor:
        return cls.cast(tensor, ctx)
