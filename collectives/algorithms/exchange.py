"""The values that a generator yields: one round of one rank, in numbers of ranks and blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from operator import index
from typing import Any, NamedTuple, Union

from collectives.errors import ArgumentError, ProofError
from collectives.text.words import shown

Blocks = Union[int, range, Sequence[int]]
Messages = Union[tuple[int, Blocks], Sequence[tuple[int, Blocks]]]

Normal = Any  # an `Exchange` whose messages are ((peer, numbers of blocks), ...), as `normal` makes


class Fold(NamedTuple):
    """A received message whose blocks are folded into those of the rank, in rank order.

    Parameters
    ----------
    peer : int
        The rank that sends it.
    blocks : int, range or list of int
        The number of a block, or those of several that travel in one message.
    """

    peer: int
    blocks: Blocks


class Store(NamedTuple):
    """A received message whose blocks replace those of the rank.

    Parameters
    ----------
    peer : int
        The rank that sends it.
    blocks : int, range or list of int
        The number of a block, or those of several that travel in one message.
    """

    peer: int
    blocks: Blocks


class Exchange(NamedTuple):
    """One round of one rank.

    Parameters
    ----------
    send, recv : (peer, block) or a list of them
        The messages to send and to receive. `peer` is a rank. `block` is the number of a block, or
        a ``range`` or list of numbers of blocks that travel in one message. All messages of a
        round are posted at once. A message in `recv` may be a `Fold` or a `Store` instead of a
        pair.
    fold : bool
        Whether received blocks are folded, in rank order, into the blocks that the rank holds. If
        not, they replace these. It says so for the pairs in `recv`.
    both : bool
        Whether received blocks are folded into the scratch blocks as well; those that are received
        into scratch blocks, into the blocks themselves. Only algorithms that are registered with
        ``scratch=True`` have these: of n blocks, the scratch block of block b is n + b. It begins
        with the rank's own contribution.
    """

    send: Messages = ()
    recv: Messages = ()
    fold: bool = False
    both: bool = False


def parallel(*streams: Iterable[Exchange]) -> Iterator[Exchange]:
    """Merge independent streams of rounds: round k has the k-th rounds of all streams. Local.

    Parameters
    ----------
    *streams : iterable of Exchange
        The rounds of one rank, as generators yield them. Each stream has blocks of its own. In each
        stream, all ranks must be *in step*: a message is sent and received in rounds of the same
        number. If a rank has nothing to do in a round, ``yield Exchange()`` keeps its place.
        Streams may differ in length.

    Yields
    ------
    Exchange
        The messages of all streams. Streams in step cannot deadlock together if none does alone;
        of others, the proof tells.

    Raises
    ------
    ArgumentError
        If a stream is no iterable of rounds, if two have a block in common, or if their rounds
        differ in `both`.

    Examples
    --------
    >>> from collectives.algorithms import Exchange, parallel
    >>> up, down = [Exchange(send=(1, 0))], [Exchange(recv=(1, 5), fold=True)]
    >>> list(parallel(up, down))
    [Exchange(send=((1, range(0, 1)),), recv=(Fold(peer=1, blocks=range(5, 6)),), fold=False, ...)]
    """
    for number, stream in enumerate(streams, start=1):
        if not isinstance(stream, Iterable) or isinstance(stream, Exchange):
            raise ArgumentError(
                f"parallel: stream {number} is {shown(stream)}, and must be the rounds of a rank, "
                f"as a generator yields them"
            )
    owners: dict[int, int] = {}
    for rounds in zip_longest(*streams, fillvalue=Exchange()):
        send: list[Any] = []
        recv: list[Any] = []
        for number, each in enumerate(rounds, start=1):
            if not isinstance(each, Exchange):
                raise ArgumentError(f"parallel: stream {number} yields {shown(each)}, no Exchange")
            kind = Fold if each.fold else Store
            sides = listed(each.send), listed(each.recv)
            for b in (b for side in sides for _, blocks in side for b in blocks):
                # In simulations, a block may be an array, with one for each rank.
                if type(b) is int and owners.setdefault(b, number) != number:
                    raise ArgumentError(
                        f"parallel: streams {owners[b]} and {number} both have block {b}"
                    )
            send += sides[0]
            recv += [kind(*m) if type(m) is tuple else m for m in sides[1]]
        if len({each.both for each in rounds if each.recv}) > 1:
            raise ArgumentError("parallel: rounds that come together differ in both=")
        yield Exchange(tuple(send), tuple(recv), both=any(each.both for each in rounds))


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


def listed(messages: Any) -> tuple[Any, ...]:
    """Convert messages as a generator yields them to ((peer, numbers of blocks), ...).

    Peers and blocks may be arrays, with one for each of many ranks.
    """
    if type(messages) is tuple:  # most are: one block, or nothing
        if not messages:
            return messages
        peer, block = messages[0], messages[-1]
        if type(peer) is int and type(block) is int and len(messages) == 2:
            return ((peer, range(block, block + 1)),)
    if not isinstance(messages, list | tuple) or (
        messages and not isinstance(messages[0], list | tuple)
    ):
        messages = [messages]
    parsed = []
    for item in messages:
        try:
            peer, blocks = item
            run: Sequence[Any]
            if type(blocks) is int:
                run = range(blocks, blocks + 1)
            elif type(blocks) is range or isinstance(blocks, BlockRanges):
                run = blocks
            elif isinstance(blocks, list | tuple):
                run = [_number(b) for b in blocks]
            else:
                run = consecutive(_number(blocks), 1)
            if type(peer) is not int:
                peer = _number(peer)
            parsed.append((peer, run) if type(item) is tuple else moved(item, peer, run))
        except (TypeError, ValueError):
            remedy = "; for no message, leave it out" if item is None else ""
            if isinstance(item, tuple) and float in map(type, item):
                remedy = " of integers; divide by // instead of /"
            raise TypeError(f"{item!r}, which is not a pair (peer, block){remedy}") from None
    return tuple(parsed)


def moved(message: Any, peer: Any, blocks: Any) -> Any:
    """Return a message with another peer and other blocks, folded or stored as before."""
    kind = type(message)
    return kind(peer, blocks) if kind is Fold or kind is Store else (peer, blocks)


def _number(value: Any) -> Any:
    """Return a number as an int, and an array as it is."""
    return value if type(value) is int or getattr(value, "ndim", False) else index(value)


@lru_cache(maxsize=1 << 16)
def _single(kind: Any, peer: int, block: int) -> tuple[Any, ...]:
    """Return the message of one block: always the same object, since most rounds have such ones."""
    message = peer, range(block, block + 1)
    return (message if kind is None else kind(*message),)


def normal(each: Any, r: Any, p: int, blocks: int) -> Normal:
    """Return a round of rank `r` with its messages as ((peer, numbers of blocks), ...).

    Each received one is a `Fold` or a `Store`. What is no exchange, or names a rank or a block that
    does not exist, raises a ProofError. If `r` is no int, but an array of ranks, these are not
    compared.
    """
    if not isinstance(each, Exchange):
        raise ProofError(f"yields {each!r}, which is not an Exchange")
    send, recv, fold, both = each
    sent = _side(send, None, r, p, blocks)
    received = _side(recv, Fold if fold else Store, r, p, blocks)
    if type(r) is int and len(received) > 1:
        _require_apart(received)
    return Exchange(sent, received, fold, both)


def _require_apart(received: Sequence[Any]) -> None:
    """Refuse a block that one message folds into, and that another one replaces."""
    kinds = {type(message) for message in received}
    if len(kinds) < 2:
        return
    folded, stored = (
        {b for kind, blocks in ((type(m), m[1]) for m in received) if kind is which for b in blocks}
        for which in (Fold, Store)
    )
    if both := folded & stored:
        raise ProofError(f"folds and stores block {min(both)}; a round can do one of them")


def _side(messages: Any, kind: Any, r: Any, p: int, blocks: int) -> tuple[Any, ...]:
    """Return the messages of a round that are sent (`kind` is None) or received.

    Received pairs are of this `kind`.
    """
    verb, link = ("sends", "to") if kind is None else ("receives", "from")
    is_one = type(r) is int
    if is_one and type(messages) is tuple and len(messages) == 2:
        peer, block = messages
        if type(peer) is int and type(block) is int and 0 <= peer < p and 0 <= block < blocks:
            if peer == r:
                raise ProofError(f"{verb} {link} itself")
            return _single(kind, peer, block)
    try:
        parsed = listed(messages)
    except TypeError as error:
        raise ProofError(f"{verb} {error}") from None
    if kind is not None:
        parsed = tuple([kind(*each) if type(each) is tuple else each for each in parsed])
    elif any(type(each) is not tuple for each in parsed):
        raise ProofError("has a Fold or a Store in send=; only received messages are these")
    if not is_one:
        return parsed
    for peer, run in parsed:
        if not 0 <= peer < p:
            raise ProofError(f"{verb} {link} rank {peer}, and ranks are 0..{p - 1}")
        if peer == r:
            raise ProofError(f"{verb} {link} itself")
        is_range = type(run) is range
        ends = (run[0], run[-1]) if is_range and run else run
        if not run or min(ends) < 0 or max(ends) >= blocks:
            named = str(run[0]) if len(run) == 1 else str(run)
            raise ProofError(
                f"{verb} block {named}, and blocks are 0..{blocks - 1}; set their number with "
                f"blocks= of @algorithm"
            )
        if not is_range and len(set(run)) < len(run):
            raise ProofError(f"{verb} a block twice in {run}")
    return parsed
