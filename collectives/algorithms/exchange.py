"""The values that a generator yields: one round of one rank, in numbers of ranks and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple, Union

from collectives.errors import ProofError

Blocks = Union[int, range, Sequence[int]]
Messages = Union[tuple[int, Blocks], Sequence[tuple[int, Blocks]]]

Normal = Any  # an `Exchange` whose messages are ((peer, numbers of blocks), ...)


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


def listed(messages: Any) -> tuple[tuple[Any, Sequence[Any]], ...]:
    """Convert messages as a generator yields them to ((peer, numbers of blocks), ...).

    Peers and blocks may be arrays, with one for each of many ranks.
    """
    if not isinstance(messages, list | tuple) or (
        messages and not isinstance(messages[0], list | tuple)
    ):
        messages = [messages]
    parsed: list[tuple[Any, Sequence[Any]]] = []
    for item in messages:
        try:
            peer, blocks = item
            run: Sequence[Any]
            if isinstance(blocks, range | BlockRanges):
                run = blocks
            elif isinstance(blocks, list | tuple):
                run = [_number(b) for b in blocks]
            else:
                run = consecutive(_number(blocks), 1)
            parsed.append((_number(peer), run))
        except (TypeError, ValueError):
            remedy = "; for no message, leave it out" if item is None else ""
            if isinstance(item, tuple) and float in map(type, item):
                remedy = " of integers; divide by // instead of /"
            raise TypeError(f"{item!r}, which is not a pair (peer, block){remedy}") from None
    return tuple(parsed)


def _number(value: Any) -> Any:
    """Return a number as an int, and an array as it is."""
    return value if type(value) is int or getattr(value, "ndim", False) else index(value)


@lru_cache(maxsize=1 << 16)
def _single(peer: int, block: int) -> tuple[tuple[int, Sequence[int]], ...]:
    """Return the message of one block: always the same object, since most rounds have such ones."""
    return ((peer, range(block, block + 1)),)


def normal(each: Any, r: Any, p: int, blocks: int) -> Normal:
    """Return a round of rank `r` with its messages as ((peer, numbers of blocks), ...).

    What is no exchange, or names a rank or a block that does not exist, raises a ProofError. If `r`
    is no int, but an array of ranks, these are not compared.
    """
    if not isinstance(each, Exchange):
        raise ProofError(f"yields {each!r}, which is not an Exchange")
    send, recv, fold, both, pairs = each
    return Exchange(
        _side(send, "sends", "to", r, p, blocks),
        _side(recv, "receives", "from", r, p, blocks),
        fold,
        both,
        pairs,
    )


def _side(
    messages: Any, verb: str, link: str, r: Any, p: int, blocks: int
) -> tuple[tuple[Any, Sequence[Any]], ...]:
    is_one = type(r) is int
    if is_one and type(messages) is tuple and len(messages) == 2:
        peer, block = messages
        if type(peer) is int and type(block) is int and 0 <= peer < p and 0 <= block < blocks:
            if peer == r:
                raise ProofError(f"{verb} {link} itself")
            return _single(peer, block)
    try:
        parsed = listed(messages)
    except TypeError as error:
        raise ProofError(f"{verb} {error}") from None
    if not is_one:
        return parsed
    for peer, run in parsed:
        if not 0 <= peer < p:
            raise ProofError(f"{verb} {link} rank {peer}, and ranks are 0..{p - 1}")
        if peer == r:
            raise ProofError(f"{verb} {link} itself")
        if not run or min(run) < 0 or max(run) >= blocks:
            named = str(run[0]) if len(run) == 1 else str(run)
            raise ProofError(
                f"{verb} block {named}, and blocks are 0..{blocks - 1}; set their number with "
                f"blocks= of @algorithm"
            )
        if len(run) > 1 and len(set(run)) < len(run):
            raise ProofError(f"{verb} a block twice in {run}")
    return parsed
