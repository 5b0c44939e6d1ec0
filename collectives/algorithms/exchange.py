"""The values that a generator yields: one round of one rank, in numbers of ranks and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple, Union

Blocks = Union[int, range, Sequence[int]]
Messages = Union[tuple[int, Blocks], Sequence[tuple[int, Blocks]]]


class Exchange(NamedTuple):
    """One round of one rank.

    Parameters
    ----------
    send, recv : (peer, block) or a list of them
        The messages to send and to receive. `peer` is a rank. `block` is the number of a block, or
        a ``range`` or list of numbers of blocks that travel in one message. All messages of a
        round are posted at once.
    fold : bool
        Whether received blocks are folded, in rank order, into the blocks that the rank holds. If
        not, they replace these.
    both : bool
        Whether received blocks are folded into the scratch blocks as well; those that are received
        into scratch blocks, into the blocks themselves. Only algorithms that are registered with
        ``scratch=True`` have these: of n blocks, the scratch block of block b is n + b. It begins
        with the rank's own contribution.
    pairs : bool
        Whether these folds are those of a butterfly: pairs of neighbouring ranks, then pairs of
        pairs. By default, the lowest rank and the next are folded, then the result and the next.
    """

    send: Messages = ()
    recv: Messages = ()
    fold: bool = False
    both: bool = False
    pairs: bool = False


class BlockRanges(Sequence[Any]):
    """The ranges ``range(start, start + length)`` of many ranks, where `start` is an array."""

    start: Any
    stop: Any
    length: int

    step = 1

    def __init__(self, start: Any, length: int) -> None:
        self.start, self.stop, self.length = start, start + length, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, k: Any) -> Any:
        if not 0 <= k < self.length:
            raise IndexError(k)
        return self.start + k


def consecutive(start: Any, length: int) -> Sequence[Any]:
    """Return consecutive blocks: a range, or `BlockRanges` if `start` has one for each rank."""
    return range(start, start + length) if isinstance(start, int) else BlockRanges(start, length)


def listed(messages: Any) -> list[tuple[int, Sequence[int]]]:
    """Convert the `messages` that a generator yields to [(peer, numbers of blocks), ...]. Local."""
    if type(messages) is tuple and len(messages) == 2:
        peer, block = messages
        if type(peer) is int and type(block) is int:
            return [(peer, range(block, block + 1))]  # fast for usual rounds
    if not isinstance(messages, list | tuple) or (
        messages and not isinstance(messages[0], list | tuple)
    ):
        messages = [messages]
    parsed: list[tuple[int, Sequence[int]]] = []
    for item in messages:
        try:
            peer, blocks = item
            run: Sequence[int]
            if type(blocks) is int:  # faster than index()
                run = range(blocks, blocks + 1)
            elif isinstance(blocks, range):
                run = blocks
            elif isinstance(blocks, list | tuple):
                run = [index(b) for b in blocks]
            else:
                run = range(index(blocks), index(blocks) + 1)
            parsed.append((index(peer), run))
        except (TypeError, ValueError):
            remedy = "; for no message, leave it out" if item is None else ""
            if isinstance(item, tuple) and float in map(type, item):
                remedy = " of integers; divide by // instead of /"
            raise TypeError(f"{item!r}, which is not a pair (peer, block){remedy}") from None
    return parsed
