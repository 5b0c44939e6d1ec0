"""The schedule of thousands of ranks, as columns of arrays.

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
and so read neighbouring numbers. Blocks are not stored, only the size of a message.

Messages are matched as in `algorithms.schedule`, which has rows for messages instead of columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.exchange import BlockRanges, Fold, Normal
from collectives.algorithms.registry import Algorithm
from collectives.errors import ProofError
from collectives.text.words import count

# With more groups than this, arrays do not pay: each group is a run of the generator, and a run for
# one rank is faster without arrays.
GROUPS = 64


class _Split(BaseException):
    """A branch that only some ranks of a group take, those in `mask`; not an error."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.mask = mask


# A run of consecutive blocks as one number: its start times LENGTHS, and its length. Sizes are
# float64, which has all whole numbers up to 2**53.
LENGTHS = 1 << 20
STARTS = 1 << 32


class Scattered(Exception):
    """Blocks that travel together and are not consecutive, or are too many for one number."""


def run_number(blocks: Sequence[Any]) -> Any:
    """Return consecutive blocks as one number, or raise `Scattered`. Local."""
    length = len(blocks)
    consecutive = isinstance(blocks, range | BlockRanges) and blocks.step == 1
    if not 0 < length < LENGTHS or (length > 1 and not consecutive):
        raise Scattered
    return blocks[0] * LENGTHS + length


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


Size = Callable[[Sequence[Any]], Any]  # of blocks that travel together
# A round of a group or rank: the sizes of the messages for each target; of those from each source,
# their number and how often each is folded.
_Weighed = tuple[list[tuple[Any, list[Any]]], list[tuple[Any, int, int]]]


@dataclass(frozen=True, repr=False, eq=False)
class Columns:
    """The messages of an algorithm: their sources, targets, sizes and rounds.

    Attributes
    ----------
    first, stride : array of int64
        For each rank, the number of its first message, and the step from one of its messages to the
        next.
    target : array of int32
        For each message, the rank that receives it.
    size : array of float64
        For each message, its size.
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
    size: NDArray[np.float64]
    fold: NDArray[np.int8]
    due: NDArray[np.int32]
    profile: NDArray[np.int64]
    rounds: NDArray[np.int64]
    sends: NDArray[np.int32]
    receives: NDArray[np.int32]

    def senders(self) -> NDArray[np.int32]:
        """Return the source of each message. Local."""
        p = len(self.first)
        sent = np.array(
            [self.sends[k : k + n].sum() for k, n in zip(self.profile, self.rounds, strict=True)]
        )
        senders = np.empty(len(self.target), np.int32)
        for r in range(p):
            senders[self.first[r] : self.first[r] + sent[r] * self.stride[r] : self.stride[r]] = r
        return senders


def columns(
    algorithm: Algorithm, p: int, root: int = 0, *, size: Size = len, apart: bool = False
) -> Columns:
    """Return the schedule of an algorithm, as columns. Local.

    `size` is a function of the blocks that travel together; with `apart` each block is a message of
    its own. A wrong round, and a message that is not received or not sent, raise a ProofError.
    """
    parts = []
    lone = _Lists(size, apart)
    alone: list[tuple[int, int, int, int]] = []
    waiting = [np.arange(p)]
    found = 0
    while waiting:
        ranks = waiting.pop()
        lists = None
        if len(ranks) > 1 and found + len(waiting) < GROUPS:
            try:
                lists = _together(algorithm, p, root, ranks, _Lists(size, apart))
            except _Split as split:
                waiting += [ranks[~split.mask], ranks[split.mask]]
                continue
        found += 1
        if lists is not None:
            parts.append(_group(ranks, lists))
            continue
        for r in ranks.tolist():
            alone.append(lone.place(r))
            for k, each in enumerate(algorithm.rounds(r, p, root)):
                lone.add(k, lone.weighed(each))
    if alone:
        parts.append(_lone(alone, lone))
    if not all(_apart(part, p) for part in parts):
        for r in range(p):
            for _ in algorithm.rounds(r, p, root):  # raises an error with the reason
                pass
    first, stride, profile, count_of = np.empty((4, p), np.int64)
    messages = phases = 0
    for part in parts:
        first[part.ranks] = messages + part.first
        stride[part.ranks] = part.stride
        profile[part.ranks] = phases + part.profile
        count_of[part.ranks] = part.rounds
        messages += part.of.target.size
        phases += len(part.of.sends)
    due, fold = _taken(parts, p, algorithm.title(p, root))
    return Columns(
        first,
        stride,
        _flat([part.of.target for part in parts]),
        _lengths([part.of.size for part in parts], messages),
        fold,
        due,
        profile,
        count_of,
        np.concatenate([part.of.sends for part in parts]),
        np.concatenate([part.of.receives for part in parts]),
    )


def _flat(matrices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len(matrices) == 1:
        return np.ascontiguousarray(matrices[0]).reshape(-1)
    return np.concatenate([matrix.reshape(-1) for matrix in matrices])


def _lengths(matrices: list[NDArray[np.float64]], messages: int) -> NDArray[np.float64]:
    """Join the sizes of messages; if all are equal, do not store each of them."""
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
                both = lists.weighed(first)
                for n, other in zip(few, others, strict=True):
                    if not _agree(both, n, lists.weighed(other)):
                        return None
                lists.add(k, both)
    except Scattered:
        raise
    except Exception:  # if it is wrong, the runs for single ranks report it
        return None
    return lists


def _agree(both: _Weighed, n: int, one: _Weighed) -> bool:
    """Return whether a round of the `n`-th rank of a group is equal to that of a run for one."""

    def of(value: Any) -> Any:
        return value[n] if isinstance(value, np.ndarray) and value.ndim else value

    sends = [(of(peer), [of(b) for b in pieces]) for peer, pieces in both[0]]
    return (sends, [(of(peer), *rest) for peer, *rest in both[1]]) == one


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
    """Rounds, message by message: of each send its target, size and round, and so on.

    `source` has the source of each receive, `due` and `fold` its round and number of folds.
    """

    def __init__(self, size_of: Size, apart: bool) -> None:
        self.size_of, self.apart = size_of, apart
        self.target: Any = []
        self.size: Any = []
        self.rows: Any = []
        self.source: Any = []
        self.due: Any = []
        self.fold: Any = []
        self.sends: Any = []
        self.receives: Any = []

    def place(self, r: int) -> tuple[int, int, int, int]:
        """Return a rank, and where its lists start if it is the next."""
        return r, len(self.target), len(self.source), len(self.sends)

    def weighed(self, each: Normal) -> _Weighed:
        """Return a round in sizes: those of its sends by target, and its receives by source."""
        of = self.size_of
        sends = [
            (_narrow(peer), [of([b]) for b in blocks] if self.apart else [of(blocks)])
            for peer, blocks in each.send
        ]
        both = bool(each.both)
        receives = [
            (_narrow(m.peer), len(m.blocks) if self.apart else 1, (type(m) is Fold) + both)
            for m in each.recv
        ]
        return sends, receives

    def add(self, k: int, each: _Weighed) -> None:
        """Append the round `k` of a group or a rank."""
        sends, receives = each
        before = len(self.target)
        for peer, pieces in sends:
            self.size += pieces
            self.target += [peer] * len(pieces)
        self.sends.append(len(self.target) - before)
        self.rows += [k] * self.sends[-1]
        before = len(self.source)
        for peer, number, folds in receives:
            self.source += [peer] * number
            self.fold += [folds] * number
        self.receives.append(len(self.source) - before)
        self.due += [k] * self.receives[-1]

    def to_arrays(self, columns: int) -> _Lists:
        """Make arrays of the lists, and matrices of `columns` columns where ranks differ."""
        sizes = self.size
        if all(type(each) is int for each in sizes) and len(set(sizes)) <= 1:
            size = np.float64(sizes[0] if sizes else 0)
            self.size = np.broadcast_to(size, (len(sizes), columns))
        else:
            self.size = _matrix(sizes, columns, np.float64)
        self.target = _matrix(self.target, columns, np.int32)
        self.source = _matrix(self.source, columns, np.int32)
        self.fold = np.array(self.fold, np.int8)
        for name in ("rows", "due", "sends", "receives"):
            setattr(self, name, np.array(getattr(self, name), np.int32))
        return self


def _narrow(peer: Any) -> Any:
    # This halves the memory; there may be very many peers.
    return peer.astype(np.int32) if isinstance(peer, np.ndarray) else peer


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


def _taken(parts: list[_Part], p: int, title: str) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
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
