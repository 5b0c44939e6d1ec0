"""The schedule of an algorithm: the rounds of all ranks, with their messages matched.

A schedule is a table with a row for each message: its source and the round that sends it, its
target and the round that takes it, its blocks, and how often it is folded. The messages from one
rank to another are taken in the order in which they are sent. Proofs, pictures and the explorer
read this table. For thousands of ranks in simulated time, `simulation.columns` has it as arrays.
"""

from __future__ import annotations

import inspect
import os
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from collectives.algorithms.exchange import Fold, Normal, parallel
from collectives.algorithms.registry import Algorithm
from collectives.errors import ArgumentError
from collectives.text.words import spans

SHOWN = 8  # messages of a line of text


class Row(NamedTuple):
    """A message of a schedule; rounds count from 0, and `taken_in` is -1 if no rank takes it."""

    source: int
    sent_in: int
    target: int
    taken_in: int
    blocks: Sequence[int]
    fold: int


class Schedule:
    """The rounds of all ranks of an algorithm, and the rows of their messages.

    Parameters
    ----------
    algorithm : Algorithm
    p, root : int
    rounds : list of list of Exchange, optional
        The rounds of each rank, for instance of a wrong algorithm; its messages need not be
        received. By default those of the algorithm.

    Attributes
    ----------
    sent, taken : list of sequence of int
        For each rank, the numbers of the rows that it sends and takes, in order; -1 for a message
        that is never sent.

    Raises
    ------
    ArgumentError
        If the algorithm cannot run on `p` ranks, or there is no such `root`.
    ProofError
        If a round is wrong in itself.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        p: int,
        root: int = 0,
        rounds: list[list[Normal]] | None = None,
    ) -> None:
        if rounds is None:
            require(algorithm, p, root)
            rounds = [list(algorithm.rounds(r, p, root)) for r in range(p)]
        self.algorithm, self.p, self.root, self.rounds = algorithm, p, root, rounds
        self.sent: list[range] = []
        open_rows: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        number = 0
        for r, own in enumerate(rounds):
            first = number
            for each in own:
                for target, _ in each.send:
                    open_rows[r, target].append(number)
                    number += 1
            self.sent.append(range(first, number))
        self._taken_in = [-1] * number
        self._fold = [0] * number
        self.taken: list[list[int]] = []
        for r, own in enumerate(rounds):
            rows: list[int] = []
            self.taken.append(rows)
            for k, each in enumerate(own):
                both = bool(each.both)
                for message in each.recv:
                    waiting = open_rows.get((message[0], r))
                    row = waiting.popleft() if waiting else -1
                    rows.append(row)
                    if row >= 0:
                        self._taken_in[row] = k
                        self._fold[row] = (type(message) is Fold) + both

    def __len__(self) -> int:
        return len(self._fold)

    def __iter__(self) -> Iterator[Row]:
        """Yield all rows, by their sources."""
        rest = zip(self._taken_in, self._fold, strict=True)
        for r, own in enumerate(self.rounds):
            for k, each in enumerate(own):
                for target, blocks in each.send:
                    taken_in, fold = next(rest)
                    yield Row(r, k, target, taken_in, blocks, fold)

    def takes(self) -> Iterator[tuple[int, Normal, Any]]:
        """Yield the receives of all ranks: the row, the round and the message of each. Local."""
        for rows, own in zip(self.taken, self.rounds, strict=True):
            receives = ((each, message) for each in own for message in each.recv)
            for row, (each, message) in zip(rows, receives, strict=True):
                yield row, each, message

    def __str__(self) -> str:
        lines = [_lines(self.algorithm.run(r, self.p, self.root)) for r in range(self.p)]
        found: dict[tuple[int, str, str], list[str]] = {}
        for row in self:
            own = lines[row.source]
            text = f"{row.source} -[{spans(row.blocks)}]-> {row.target}"
            if row.taken_in != row.sent_in:
                text += " in no round" if row.taken_in < 0 else f" in round {row.taken_in + 1}"
            line = own[row.sent_in] if row.sent_in < len(own) else ""
            key = row.sent_in + 1, line, "fold" if row.fold else "store"
            found.setdefault(key, []).append(text)
        texts = [self.algorithm.title(self.p, self.root)]
        for (k, line, verb), some in sorted(found.items()):
            more = f"   and {len(some) - SHOWN} more" if len(some) > SHOWN else ""
            texts.append(f"round {k}  {line}  {verb:5}  {'   '.join(some[:SHOWN])}{more}")
        return "\n".join(texts)


def _lines(generator: Any) -> list[str]:
    """Return the place in the text of a generator, or in its phases, of each round."""
    places = []
    for _ in generator:
        inner = generator
        while inspect.isgenerator(deeper := getattr(inner, "gi_yieldfrom", None)):
            if deeper.gi_code is parallel.__code__:
                break  # it yields the rounds of several others
            inner = deeper
        frame = getattr(inner, "gi_frame", None)
        name = os.path.basename(frame.f_code.co_filename) if frame else ""
        places.append(f"{name}:{frame.f_lineno}" if frame else "")
    return places


def require(algorithm: Algorithm, p: int, root: int) -> None:
    """Refuse a `root`, or a number of ranks, for which the algorithm cannot run. Local."""
    if not 0 <= root < p:
        raise ArgumentError(f"root is {root}, and must be in 0..{p - 1}")
    refusal = algorithm.refusal(p)
    if refusal:
        raise ArgumentError(refusal)


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
            sent += len(each.send)
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
