"""Numbers and ranks, written for people."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from zlib import crc32

T = TypeVar("T")


def ranks(mask: int) -> str:
    """Write a bit mask of ranks as text: ``rank 3``, ``ranks 0-2, 5``."""
    return named([r for r in range(mask.bit_length()) if mask >> r & 1])


def named(listed: Sequence[int], noun: str = "rank") -> str:
    """Write ranks, or others with a number, in their order: ``rank 3``, ``ranks 0-2, 5``."""
    return f"{plural(len(listed), noun)} {spans(listed)}"


def grouped(said: Iterable[tuple[int, T]]) -> dict[T, int]:
    """Return the different answers of ranks, each with a mask of its ranks."""
    masks: dict[T, int] = {}
    for rank, each in said:
        masks[each] = masks.get(each, 0) | 1 << rank
    return masks


def spans(numbers: Sequence[int]) -> str:
    """Write numbers as spans, in their order: ``0-2, 5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def count(number: int, noun: str) -> str:
    """Write a number with its noun: ``1 rank``, ``2 ranks``. Local."""
    return f"{number} {plural(number, noun)}"


def plural(number: int, noun: str, several: str = "") -> str:
    """Write a noun, or another word, in the form for a number. Local."""
    return noun if number == 1 else several or f"{noun}s"


def differing(calls: Iterable[str]) -> str:
    """Write a question to ranks whose calls have different names, or nothing. Local."""
    return ": is one of these calls under an if?" if len(set(calls)) > 1 else ""


def article(noun: str) -> str:
    """Write a noun with its article: ``a list``, ``an int``. Local."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def known(word: object, names: Iterable[str], heading: str) -> str:
    """Write a list of names, after the one that `word` was probably meant to be. Local."""
    from difflib import get_close_matches  # only errors need it

    names = list(names)
    near = get_close_matches(word, names, 1) if isinstance(word, str) else []
    told = f"{heading}: {', '.join(names)}"
    return f"did you mean {near[0]!r}? {told[0].upper()}{told[1:]}" if near else told


SIZE_FORMS = "such as 8, 64K, 1M or 1MiB"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int | None:
    """Read a number of bytes, `SIZE_FORMS`, in powers of 1024, or return None. Local."""
    match = re.fullmatch(r"(\d+) ?([KMG]?)(?:I?B)?", text.strip().upper(), re.ASCII)
    return int(match[1]) * _UNITS[match[2]] if match else None


def size_text(nbytes: float) -> str:
    """Write a number of bytes for people: ``1.5 MiB``. Local."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        text = f"{nbytes:.4g}"
        if float(text) < 1024:  # 1048575 bytes are 1 MiB, and not 1024 KiB
            return f"{text} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def time_text(seconds: float, digits: int = 3) -> str:
    """Write a time for people, with a number of `digits`: ``1.5 us``, ``20 ms``. Local."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.{digits}g} {unit}"
    return f"{seconds:.{digits}g} s"


def error_text(error: BaseException) -> str:
    """Write an error in one line: ``ValueError: no such file``. Local.

    It also works for errors of users whose text cannot be made or encoded.
    """
    kind = type(error).__name__
    text = plain(error)
    return f"{kind}: {text}" if text else kind


def to_record(text: str, nbytes: int) -> bytes:
    """Return a text as `nbytes` bytes: filled up, or cut off before a checksum of all of it."""
    data = text.encode(errors="backslashreplace")
    if len(data) > nbytes:
        data = data[: nbytes - 11] + f"...{crc32(data):08x}".encode()
    return data.ljust(nbytes, b"\0")


def from_record(record: bytes) -> str:
    """Return the text of a record."""
    return record.rstrip(b"\0").decode(errors="replace")


def plain(value: object) -> str:
    """Write any object of a user, as `str` does. Local."""
    return _safely(str, value)


def shown(value: object) -> str:
    """Write any argument of a user, as `repr` does. Local."""
    return _safely(repr, value)


def _safely(write: Callable[[object], str], value: object) -> str:
    """Return a text that can be encoded."""
    try:
        return write(value).encode(errors="backslashreplace").decode()
    except (
        Exception,
        SystemExit,
    ) as error:  # it is the user's function that failed, not the caller's
        return f"<no text: {type(error).__name__} in {type(value).__name__}.__{write.__name__}__>"


def spelled_here(op: Any, names: Iterable[str]) -> str | None:
    """Return the one of `names` for an operation of mpi4py or torch, or None. Local."""
    module = type(op).__module__
    if module not in ("mpi4py.MPI", "torch._C._distributed_c10d"):
        return None
    theirs = str(getattr(op, "name", ""))  # torch's PRODUCT is PROD
    made = sys.modules[module]
    return next((n for n in names if theirs.startswith(n) or getattr(made, n, None) == op), None)


def missing(owner: Any, title: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for an attribute `name` that `owner` lacks. Local.

    It points to the one of `names` that has the meaning which mpi4py or torch give to `name`.
    """
    names = set(names)
    ours = re.sub("^get_(world_)?|_(into_tensor|tensor|single|list|block)$", "", name.lower())
    ours = ours.replace("bcast", "broadcast").replace("all_", "all").replace("to_all", "toall")
    told = f"{title} has no attribute {name!r}"
    if ours in names and not name.startswith("_"):
        told += f"; use {ours}"
        if f"{ours}_object" in names:
            told += f" for arrays and {ours}_object for other objects"
    return AttributeError(told, name=name, obj=owner)
