"""StragglAR: an allreduce in which one rank begins late, and the others begin without it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from collectives.algorithms.bruck import following
from collectives.algorithms.exchange import Exchange
from collectives.algorithms.formulas import powers
from collectives.algorithms.registry import NOWHERE, Cost, algorithm, publishes

SOURCE = (
    "Devraj, Ding, Vijaya Kumar, Kleinberg, Singh: Accelerating AllReduce with a persistent "
    "straggler, 2025, arXiv:2505.23523"
)


class Turn(NamedTuple):
    """A round after the late rank has come: the numbers that meet, and the messages of all.

    `given` and `taken` have the message (partner, block) of each number that sends or receives.
    """

    meeting: list[int]
    given: dict[int, tuple[int, int]]
    taken: dict[int, tuple[int, int]]


@cache
def turns(p: int) -> list[Turn]:
    """Return the rounds after the late rank, number p - 1, has come.

    In each, it meets a number that it has not met. The others give blocks, from the newest to the
    oldest, to numbers that lack them. Numbers that have had nothing new for longest come first.
    """
    late = p - 1
    newest = [-1] * late  # the newest block of each number
    owners: list[set[int]] = []  # the owners of each complete block, the oldest block first
    met: list[int] = []  # the number of each complete block, which met the late rank
    found = []
    while len(met) < late or any(len(each) < p for each in owners):
        takers = sorted(range(late), key=lambda v: newest[v])
        givers = set(range(p))
        turn = Turn([], {}, {})
        if unmet := set(range(late)).difference(met):
            guest = min(unmet, key=lambda v: (newest[v], -v))
            for v, other in ((guest, late), (late, guest)):
                turn.meeting.append(v)
                turn.given[v] = turn.taken[v] = other, guest
            takers.remove(guest)
            givers -= {guest, late}
        for k in reversed(range(len(owners))):
            able = [v for v in takers if v not in owners[k]]
            for giver, taker in zip(sorted(owners[k] & givers), able, strict=False):
                turn.given[giver], turn.taken[taker] = (taker, met[k]), (giver, met[k])
                givers.remove(giver)
                takers.remove(taker)
                owners[k].add(taker)
                newest[taker] = max(newest[taker], k)
        if turn.meeting:
            newest[guest] = len(met)
            owners.append(set(turn.meeting))
            met.append(guest)
        found.append(turn)
    return found


@algorithm(
    "allreduce",
    blocks=lambda p: max(p - 1, 1),
    cost=Cost(
        rounds="ceil(log2(p - 1)) + p + up - 2",
        sent="(2*p - 3 + max(p > 4, 1 + log2((p + 1)/7)//1))/(p - 1)",
        folded="1",
        beta="(2*p + up - 4)/(p - 1)",
        gamma="(2*p - 3)/(p - 1)",
    ),
    source=SOURCE,
    parameters={"late": 2},
    chosen=NOWHERE,
)
@publishes(lambda local, p, root: 2 * (p - 1))
def stragglar(r: int, p: int, late: int) -> Iterator[Exchange]:
    """All but one rank reduce-scatter; then the late one meets each, and all pass blocks on.

    Rank `late` is expected to begin after the others; the number is taken modulo p, so p stands for
    rank 0, and p + 1 for rank 1. Before it begins, the others reduce-scatter their arrays, so that
    each has a block. In each later round, it meets one of them, and both fold this block, which is
    then complete. All others pass complete blocks on, the newest first. Every rank has all blocks
    log2(p) - 1 rounds after the last meeting.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.draw import grid
    >>> print(grid(check("allreduce", "stragglar:3", p=4)))
            start | step 1   | step 2      | step 3    | step 4  | step 5 | step 6
    block   0 1 2 | 0  1  2  | 0   1   2   | 0   1   2 | 0   1 2 | 0 1 2  | 0 1 2
    rank 0  0 0 0 | 01 0  0  | 012 0   0   | 012 0   0 | 012 0 * | * 0 *  | * * *
    rank 1  1 1 1 | 1  12 1  | 1   012 1   | 1   012 1 | 1   * 1 | 1 * *  | * * *
    rank 2  2 2 2 | 2  2  02 | 2   2   012 | 2   2   * | 2   2 * | 2 * *  | * * *
    rank 3  3 3 3 | 3  3  3  | 3   3   3   | 3   3   * | 3   * * | * * *  | * * *
    """
    v = (r - late - 1) % p

    def rank_of(number: int) -> int:
        return (number + late + 1) % p

    def message(found: tuple[int, int] | None) -> Any:
        return (rank_of(found[0]), found[1]) if found else ()

    for d in reversed(powers(2, p - 1)) if v < p - 1 else ():
        left, right = (v - d) % (p - 1), (v + d) % (p - 1)
        count = min(d, p - 1 - d)
        yield Exchange(
            send=(rank_of(right), following(right, count, p - 1)),
            recv=(rank_of(left), following(v, count, p - 1)),
            fold=True,
        )
    for meeting, given, taken in turns(p):
        yield Exchange(send=message(given.get(v)), recv=message(taken.get(v)), fold=v in meeting)
