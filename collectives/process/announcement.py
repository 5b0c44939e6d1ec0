"""Announcements: before ranks make something together, each says to the others what it makes.

A compressed allreduce is announced, too, because what its steps send does not tell the codec.

A rank whose arguments are wrong says that, too, so that no other rank waits for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from collectives._core import Engine
from collectives.errors import ArgumentError, CollectivesError, MismatchError
from collectives.text.words import error_text, ranks

RECORD = 512  # bytes that each rank sends to the others: the head, and a text
HEAD = struct.Struct("=?qq")  # whether the call is refused, and two numbers


def announced(
    engine: Engine,
    making: str,
    check: Callable[[], tuple[int, int]],
    describe: Callable[[], str] | None = None,
    timeout: float | None = None,
) -> list[tuple[int, int]]:
    """Announce what this rank makes next; return what the ranks say of it. Collective."""
    refusal: Exception | None = None
    numbers = 0, 0
    text = f"{making}()"
    try:
        numbers = check()
        if describe is not None:
            text = f"{making}({describe()})"
    except CollectivesError as error:
        refusal = error
    except Exception as error:  # of an object that the user passed
        refusal = ArgumentError(f"an argument of {making}() raised {error_text(error)}")
        refusal.__cause__ = error
    if refusal is not None:
        text = f"{making}(): {error_text(refusal)}"
    record = HEAD.pack(refusal is not None, *numbers) + text.encode(errors="replace")
    mine = np.frombuffer(record[:RECORD].ljust(RECORD, b"\0"), np.uint8)
    everybody = np.empty((engine.size, RECORD), np.uint8)
    engine.announce(making, mine, everybody, timeout)
    if refusal is not None:
        raise refusal
    said: list[tuple[int, int]] = []
    groups: dict[str, int] = {}
    for rank, row in enumerate(everybody):
        refused, *theirs = HEAD.unpack_from(bytes(row))
        called = bytes(row[HEAD.size :]).rstrip(b"\0").decode(errors="replace")
        told = f"{'refused' if refused else 'called'} {called}"
        groups[told] = groups.get(told, 0) | 1 << rank
        said.append((theirs[0], theirs[1]))
    if len(groups) > 1:
        told = "; ".join(f"{ranks(mask)} {each}" for each, mask in groups.items())
        raise MismatchError(f"the ranks do not agree: {told}")
    return said
