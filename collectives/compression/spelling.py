"""Codecs by name: the values of ``compression=``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from collectives.compression.codec import Codec, Compressor
from collectives.compression.halves import BFloat16, Float16, NoCompression
from collectives.compression.powersgd import PowerSGD
from collectives.compression.quantised import Int4, Int8, Sign
from collectives.compression.sparse import RandomK, TopK
from collectives.errors import ArgumentError
from collectives.text.words import shown

NAMES: dict[str, Callable[..., Codec]] = {
    "none": NoCompression,
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": Int8,
    "int4": Int4,
    "sign": Sign,
    "topk": TopK,
    "randomk": RandomK,
    "powersgd": PowerSGD,
}
NUMBERS: dict[str, Callable[[str], float]] = {  # the types of the number after the colon
    "int8": int,
    "int4": int,
    "sign": int,
    "topk": float,
    "randomk": float,
    "powersgd": int,
}


def compressor(compression: Any) -> Compressor:
    """Return the codec for an argument ``compression=``.
    Local.

    Parameters
    ----------
    compression : str or Compressor
        A name of ``NAMES``, which may be followed by a colon and the value of the codec's
        parameter: ``"topk:0.01"``. Or a codec, which is returned.

    Returns
    -------
    Compressor
        For the same text, always the same object of this process, so that the next call has its
        error feedback.

    Raises
    ------
    ArgumentError
        If there is no such codec, or its parameter has an invalid value.

    Examples
    --------
    >>> from collectives.compression import compressor
    >>> compressor("int8").name, compressor("topk:0.05").name
    ('int8(block=512)', 'topk(0.05)')
    """
    if isinstance(compression, str):
        return _named(compression)
    if isinstance(compression, Compressor) and not isinstance(compression, type):
        return compression
    raise ArgumentError(
        f"compression is {shown(compression)}, and must be a codec of collectives.compression, or "
        f"its name: {', '.join(NAMES)}"
    )


@cache
def _named(text: str) -> Codec:
    name, colon, value = text.partition(":")
    if name not in NAMES or (colon and name not in NUMBERS):
        raise ArgumentError(
            f"compression is {text!r}, and must be one of {', '.join(NAMES)}; those from int8 on "
            f"may have a number: 'int8:128', 'topk:0.05', 'powersgd:4'"
        )
    if not colon:
        return NAMES[name]()
    try:
        number = NUMBERS[name](value)
    except ValueError:
        raise ArgumentError(
            f"compression is {text!r}, and {value!r} is no number for {name}"
        ) from None
    return NAMES[name](number)
