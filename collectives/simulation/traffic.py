"""All messages of an algorithm on all ranks, as flat arrays.

Theory of operation
-------------------
A generator is written for one rank. Most of its computations from the rank are arithmetic, which
works on arrays as well as on numbers. So the generator is run once on an array of *all* ranks. If
it branches on a condition that is not the same for all of them, the array is split: the run stops,
and starts again for the ranks for which the condition is true, and for the others. A *group* is a
set of ranks that take the same path through the generator, so that they send equally many messages
in each round. If there are too many groups, or the generator does something that arrays do not
support, it is run for each rank by itself.

The messages of a group are stored round by round, those of its ranks side by side: message ``j`` of
rank ``r`` has the number ``first[r] + j * stride[r]``. Simulated ranks usually proceed in lockstep,
and so read neighbouring numbers.

The messages from one rank to another are received in the order in which they were sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.exchange import BlockRanges, Exchange, listed
from collectives.algorithms.registry import Algorithm
from collectives.errors import ProofError
from collectives.plans.schedule import compile
from collectives.text.words import count

# With more groups than this, arrays do not pay: each group is a run of the generator, and a run for
# one rank is faster without arrays.
GROUPS = 64


class _Split(BaseException):
    """A branch that only some ranks of a group take, those in `mask`; not an error."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.mask = mask


class _Ranks(np.ndarray[Any, np.dtype[Any]]):
    """The ranks of a group, or values computed from them, in place of the number of one rank."""

    def _same(self) -> Any:
        first = self.flat[0]
        same = np.asarray(self == first)
        if not same.all():
            raise _Split(same)
        return first

    def __bool__(self) -> bool:
        truth = np.asarray(self, bool)
        if truth.any() and not truth.all():
            raise _Split(truth)
        return bool(truth.flat[0])

    def __index__(self) -> int:
        return int(self._same())

    __int__ = __index__

    def bit_length(self) -> int:
        """Return the result of the method of int, if all ranks have the same. Local."""
        return int(self._same()).bit_length()

    def bit_count(self) -> int:
        """Return the result of the method of int, if all ranks have the same. Local."""
        return int(self._same()).bit_count()


# One round of a group: (target, blocks) of its sends, (source, number of blocks) of its receives,
# and the number of folds of each. Peers and blocks are numbers, or arrays with one for each rank.
_Side = list[tuple[Any, Sequence[Any]]]
_Round = tuple[_Side, _Side, int]
# The same in bytes: the sizes of the pieces for each target, their number from each source.
_Weighed = tuple[list[tuple[Any, list[Any]]], list[tuple[Any, int]], int]


@dataclass(frozen=True)
class Traffic:
    """The messages of an algorithm: their sources, targets, lengths and rounds.

    Attributes
    ----------
    first, stride : array of int64
        For each rank, the number of its first message, and the step from one of its messages to the
        next.
    target : array of int32
        For each message, the rank that receives it.
    nbytes : array of float64
        For each message, its bytes.
    fold : array of int8
        For each message, the number of times that it is folded when it is received.
    due : array of int32
        For each message, the round of the receiver that receives it, from 0.
    profile : array of int64
        For each rank, the index of its first round in `sends` and `receives`.
    rounds : array of int64
        For each rank, its number of rounds.
    sends, receives : array of int32
        Numbers of messages that are sent and received in each round.
    """

    first: NDArray[np.int64]
    stride: NDArray[np.int64]
    target: NDArray[np.int32]
    nbytes: NDArray[np.float64]
    fold: NDArray[np.int8]
    due: NDArray[np.int32]
    profile: NDArray[np.int64]
    rounds: NDArray[np.int64]
    sends: NDArray[np.int32]
    receives: NDArray[np.int32]

    def senders(self) -> NDArray[np.int32]:
        """Return, for each message, the rank that sends it. Local."""
        p = len(self.first)
        sent = np.array(
            [self.sends[k : k + n].sum() for k, n in zip(self.profile, self.rounds, strict=True)]
        )
        senders = np.empty(len(self.target), np.int32)
        for r in range(p):
            senders[self.first[r] : self.first[r] + sent[r] * self.stride[r] : self.stride[r]] = r
        return senders


class Cut:
    """The blocks of an array: block `b` of `nblocks` begins at byte ``nbytes * b // nblocks``.

    If arrays are cut by rank, the blocks of one rank follow those of the rank before.
    """

    nbytes: int
    nblocks: int
    each: int
    rest: int

    def __init__(self, nbytes: int, nblocks: int) -> None:
        self.nbytes, self.nblocks = nbytes, nblocks
        self.each, self.rest = divmod(nbytes, nblocks)

    def start(self, block: Any) -> Any:
        """Return the start of a block in bytes, or of each of an array of blocks. Local."""
        b = block % self.nblocks
        rest = self.rest * b // self.nblocks if self.rest else 0
        return block // self.nblocks * self.nbytes + self.each * b + rest

    def size(self, block: Any) -> Any:
        """Return the bytes of a block, or of each of an array of blocks. Local."""
        return self.start(block + 1) - self.start(block) if self.rest else self.each

    def total(self, blocks: Sequence[Any]) -> Any:
        """Return the bytes of blocks that travel together. Local."""
        if not self.rest:
            return self.each * len(blocks)
        if isinstance(blocks, range | BlockRanges) and blocks.step == 1:
            return self.start(blocks.stop) - self.start(blocks.start)
        return sum(self.size(b) for b in blocks)


def traffic(algorithm: Algorithm, p: int, root: int, cut: Cut, apart: bool) -> Traffic:
    """Return all messages of an algorithm. Local."""
    parts = []
    lone = _Lists(cut, apart)
    alone: list[tuple[int, int, int, int]] = []
    waiting = [np.arange(p)]
    found = 0
    while waiting:
        ranks = waiting.pop()
        lists = None
        if len(ranks) > 1 and found + len(waiting) < GROUPS:
            try:
                lists = _together(algorithm, p, root, ranks, _Lists(cut, apart))
            except _Split as split:
                waiting += [ranks[~split.mask], ranks[split.mask]]
                continue
        found += 1
        if lists is not None:
            parts.append(_group(ranks, lists))
            continue
        for r in ranks.tolist():
            alone.append((r, len(lone.target), len(lone.source), len(lone.sends)))
            _by_itself(algorithm, p, root, r, lone)
    if alone:
        parts.append(_lone(alone, lone))
    if not all(_apart(part, p) for part in parts):
        for r in range(p):
            compile(algorithm, p, r, root)  # raises an error with the reason
    first, stride, profile, count_of = np.empty((4, p), np.int64)
    messages = phases = 0
    for part in parts:
        first[part.ranks] = messages + part.first
        stride[part.ranks] = part.stride
        profile[part.ranks] = phases + part.profile
        count_of[part.ranks] = part.rounds
        messages += part.of.target.size
        phases += len(part.of.sends)
    due, fold = _matched(parts, p, algorithm.title(p, root))
    return Traffic(
        first,
        stride,
        _flat([part.of.target for part in parts]),
        _lengths([part.of.nbytes for part in parts], messages),
        fold,
        due,
        profile,
        count_of,
        np.concatenate([part.of.sends for part in parts]),
        np.concatenate([part.of.receives for part in parts]),
    )


MOST_COUNTED = 1 << 20  # messages of a rank


def exceeds(algorithm: Algorithm, p: int, root: int, messages: int) -> bool:
    """Return whether `algorithm` sends more than `messages` messages on `p` ranks with that `root`.
    Local.

    The number is estimated from four of the ranks. For a wrong algorithm the result is False.
    """
    if algorithm.refusal(p):
        return False

    def more(r: int) -> bool:
        sent = 0
        for each in algorithm.rounds(r, p, root):
            sent += len(listed(each.send))
            if sent * p > messages:
                return True
            if sent > MOST_COUNTED:  # with such a limit, the simulation itself will tell
                return False
        return False

    try:
        # In a tree, few ranks send much, so that the least of these four ranks decides.
        return all(more(r) for r in {0, 1 % p, p // 2, p - 1})
    except Exception:  # running the algorithm will report the error
        return False


def _flat(matrices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len(matrices) == 1:
        return np.ascontiguousarray(matrices[0]).reshape(-1)
    return np.concatenate([matrix.reshape(-1) for matrix in matrices])


def _lengths(matrices: list[NDArray[np.float64]], messages: int) -> NDArray[np.float64]:
    """Join the bytes of messages; if all are equal, do not store each of them."""
    used = [matrix for matrix in matrices if matrix.size]
    if used and all((each == used[0].flat[0]).all() for each in used):
        return np.broadcast_to(used[0].flat[0], (messages,))
    return _flat(matrices)


def _together(
    algorithm: Algorithm, p: int, root: int, ranks: NDArray[np.int64], lists: _Lists
) -> _Lists | None:
    """Record the rounds of a group, or return None if its generator does not work with arrays.

    The rounds of some ranks are compared with those that the generator yields for one rank.
    """
    every: Any = ranks.view(_Ranks)
    few = sorted({0, len(ranks) // 2, len(ranks) - 1})
    alone = (algorithm.rounds(int(ranks[k]), p, root) for k in few)
    try:
        with np.errstate(all="raise"):  # like Python's numbers, for which generators are written
            for k, (first, *others) in enumerate(
                zip(algorithm.rounds(every, p, root), *alone, strict=True)
            ):
                both = lists.weighed(_parsed(first))
                for n, other in zip(few, others, strict=True):
                    if not _agree(both, n, lists.weighed(_parsed_one(other))):
                        return None
                lists.add(k, both)
    except Exception:  # if it is wrong, the runs for single ranks report it
        return None
    return lists


def _agree(both: _Weighed, n: int, one: _Weighed) -> bool:
    """Return whether a round of the `n`-th rank of a group is equal to that of a run for one."""

    def of(value: Any) -> Any:
        return value[n] if isinstance(value, np.ndarray) and value.ndim else value

    sends = [(of(peer), [of(b) for b in pieces]) for peer, pieces in both[0]]
    return (sends, [(of(peer), m) for peer, m in both[1]], both[2]) == one


def _by_itself(algorithm: Algorithm, p: int, root: int, r: int, lists: _Lists) -> None:
    """Record the rounds of one rank."""
    try:
        for k, each in enumerate(algorithm.rounds(r, p, root)):
            lists.add(k, lists.weighed(_parsed_one(each)))
    except (AttributeError, TypeError, ValueError):
        compile(algorithm, p, r, root)  # raises an error with the reason
        raise


def _parsed_one(exchange: Exchange) -> _Round:
    """Convert an exchange of a generator for one rank to a round."""
    return listed(exchange.send), listed(exchange.recv), _folds(exchange)


def _folds(exchange: Exchange) -> int:
    """Return the number of folds of the blocks that a round receives."""
    return bool(exchange.fold) + bool(exchange.both)


def _parsed(exchange: Exchange) -> _Round:
    """Convert an exchange of a generator for a group to a round."""

    def narrow(peer: Any) -> Any:
        # This halves the memory; there may be very many peers.
        return peer.astype(np.int32) if isinstance(peer, np.ndarray) else peer

    def side(messages: Any) -> _Side:
        if not isinstance(messages, list | tuple) or (
            messages and not isinstance(messages[0], list | tuple)
        ):
            messages = [messages]
        return [
            (
                narrow(peer),
                blocks if isinstance(blocks, list | tuple | range | BlockRanges) else [blocks],
            )
            for peer, blocks in messages
        ]

    return side(exchange.send), side(exchange.recv), _folds(exchange)


class _Part(NamedTuple):
    """The messages of a group, or of all ranks by themselves.

    For a group, the matrices in `of` have a row for each message of a rank, and a column for each
    rank; for ranks by themselves they have one column. `sender` and `receiver` broadcast to them.
    `first` and `profile` count from the start of the part.
    """

    ranks: NDArray[np.int64]
    first: NDArray[np.int64]
    stride: int
    profile: NDArray[np.int64]
    rounds: NDArray[np.int64]
    sender: NDArray[np.int64]
    receiver: NDArray[np.int64]
    of: _Lists


class _Lists:
    """Rounds, message by message: of each send its target, bytes and round, and so on.

    `source` has the source of each receive, `due` and `fold` its round and number of folds.
    """

    def __init__(self, cut: Cut, apart: bool) -> None:
        self.cut, self.apart = cut, apart
        self.target: Any = []
        self.nbytes: Any = []
        self.rows: Any = []
        self.source: Any = []
        self.due: Any = []
        self.fold: Any = []
        self.sends: Any = []
        self.receives: Any = []

    def weighed(self, each: _Round) -> _Weighed:
        """Return a round in bytes: the sizes of its sends by target, and its receives by source."""
        out, into, fold = each
        cut = self.cut
        sends = [
            (peer, [cut.size(b) for b in blocks] if self.apart else [cut.total(blocks)])
            for peer, blocks in out
        ]
        return sends, [(peer, len(blocks) if self.apart else 1) for peer, blocks in into], fold

    def add(self, k: int, each: _Weighed) -> None:
        """Append the round `k` of a group or a rank."""
        sends, receives, fold = each
        before = len(self.target)
        for peer, pieces in sends:
            self.nbytes += pieces
            self.target += [peer] * len(pieces)
        self.sends.append(len(self.target) - before)
        self.rows += [k] * self.sends[-1]
        before = len(self.source)
        for peer, number in receives:
            self.source += [peer] * number
        self.receives.append(len(self.source) - before)
        self.due += [k] * self.receives[-1]
        self.fold += [fold] * self.receives[-1]

    def to_arrays(self, columns: int) -> _Lists:
        """Make arrays of the lists, and matrices of `columns` columns where ranks differ."""
        sizes = self.nbytes
        if all(type(each) is int for each in sizes) and len(set(sizes)) <= 1:
            size = np.float64(sizes[0] if sizes else 0)
            self.nbytes = np.broadcast_to(size, (len(sizes), columns))
        else:
            self.nbytes = _matrix(sizes, columns, np.float64)
        self.target = _matrix(self.target, columns, np.int32)
        self.source = _matrix(self.source, columns, np.int32)
        self.fold = np.array(self.fold, np.int8)
        for name in ("rows", "due", "sends", "receives"):
            setattr(self, name, np.array(getattr(self, name), np.int32))
        return self


def _group(ranks: NDArray[np.int64], lists: _Lists) -> _Part:
    """Write the rounds of a group as arrays."""
    m = len(ranks)
    rounds = np.full(m, len(lists.sends))
    start = np.zeros(m, np.int64)
    return _Part(ranks, np.arange(m), m, start, rounds, ranks, ranks, lists.to_arrays(m))


def _lone(alone: list[tuple[int, int, int, int]], lists: _Lists) -> _Part:
    """Write the rounds of ranks by themselves as arrays: each rank, and where its lists start."""
    ranks, first, arrived, profile = np.array(alone).T
    sent = np.diff(first, append=len(lists.target))
    received = np.diff(arrived, append=len(lists.source))
    rounds = np.diff(profile, append=len(lists.sends))
    sender, receiver = (np.repeat(ranks, each)[:, None] for each in (sent, received))
    return _Part(ranks, first, 1, profile, rounds, sender, receiver, lists.to_arrays(1))


def _matrix(rows: list[Any], m: int, dtype: type) -> NDArray[Any]:
    """Return rows as a matrix; each row is freed after it is copied, to save memory."""
    made: NDArray[Any] = np.empty((len(rows), m), dtype)
    for k, row in enumerate(rows):
        made[k] = row
        rows[k] = None
    return made


def _matched(parts: list[_Part], p: int, title: str) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Return, for each sent message, the receiver's round and the number of folds."""
    if len(parts) == 1 and _mirrored(parts[0], p):
        (part,) = parts
        return np.repeat(part.of.due, p), np.repeat(part.of.fold, p)
    # Sort by source and target; a stable sort keeps the order within each pair, on both sides.
    sent = [part.sender * p + part.of.target for part in parts]
    come = [part.of.source.astype(np.int64) * p + part.receiver for part in parts]
    keys = [_flat(sent), _flat(come)]
    out, into = (np.argsort(key, kind="stable") for key in keys)
    ordered = [key[order] for key, order in zip(keys, (out, into), strict=True)]
    if len(keys[0]) != len(keys[1]) or not np.array_equal(ordered[0], ordered[1]):
        sides = [Counter(key.tolist()) for key in keys]
        pair = min(pair for pair in sides[0] | sides[1] if sides[0][pair] != sides[1][pair])
        source, target = divmod(pair, p)
        given, taken = sides[0][pair], sides[1][pair]
        raise ProofError(
            f"{title}: rank {source} sends {count(given, 'message')} to rank {target}, which "
            f"receives {taken}"
        )
    rounds = np.concatenate([np.repeat(part.of.due, part.of.source.shape[1]) for part in parts])
    folds = np.concatenate([np.repeat(part.of.fold, part.of.source.shape[1]) for part in parts])
    due, fold = np.empty(len(out), np.int32), np.empty(len(out), np.int8)
    due[out], fold[out] = rounds[into], folds[into]
    return due, fold


def _apart(part: _Part, p: int) -> bool:
    """Return whether all messages are between two different ranks that exist."""
    return all(
        not peers.size or (peers.min() >= 0 and peers.max() < p and not (peers == own).any())
        for peers, own in ((part.of.target, part.sender), (part.of.source, part.receiver))
    )


def _mirrored(part: _Part, p: int) -> bool:
    """Return whether the k-th message of each rank is received as the k-th by its target."""
    if part.of.target.shape != part.of.source.shape or not np.array_equal(
        part.of.rows, part.of.due
    ):
        return False
    ranks = np.arange(p)
    return part.of.target.shape[1] == p and all(
        np.array_equal(source[target], ranks)
        for source, target in zip(part.of.source, part.of.target, strict=True)
    )
