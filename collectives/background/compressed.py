"""Compressed submissions."""

from __future__ import annotations

from typing import Any

from collectives import _core, reductions
from collectives._core import ALLREDUCE
from collectives.background.handle import Handle
from collectives.communicator import Communicator
from collectives.compression import Compressor, compressor
from collectives.compression.codec import check_codec
from collectives.errors import ArgumentError


def compressed(
    comm: Communicator,
    codecs: dict[str, Compressor],
    kind: int,
    arguments: tuple[Any, Any, Any, Any, Any, Any],
    name: str | None,
    priority: int,
    compression: Any,
    more: str | None,
    bits: str | None,
) -> Handle:
    """Return the handle of a compressed allreduce; `codecs` keeps one codec of each name. Local."""
    if kind != ALLREDUCE:
        raise ArgumentError(
            f"compression is given, and {_core.COLLECTIVES[kind]} has none: only allreduce has"
        )
    codec = compressor(compression)
    check_codec(codec, bits, comm.bits)
    if name is None and getattr(codec, "needs_name", False):
        raise ArgumentError(
            f"{codec.name} stores the lost part of an array for the next one of its name: pass "
            f"name="
        )
    codec = codecs.setdefault(codec.name, codec)
    x, out, op, _, prescale, postscale = arguments
    engine = comm._engine
    arrays = engine.compressed(x, out, op, prescale, postscale)
    terms = f"{codec.name} {arrays.op} {arrays.dtype} {prescale} {postscale} {arrays.shape}"
    if name is not None and hasattr(codec, "calls"):
        terms += f" {codec.calls(comm, name)}"  # the number that random numbers depend on
    terms += "".join(f" {each}" for each in (more, bits) if each is not None)
    values = arrays.values, arrays.values, reductions.SUM, 0, 1.0, 1.0
    handle = Handle(engine, kind, *values, name, priority, terms)
    handle.codec, handle.arrays = codec, arrays
    return handle
