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


Found = tuple[int, int]  # the partner and the block of a message


class Pass(NamedTuple):
    """A complete block, and the numbers that give it and take it in one round, as bit sets.

    The givers are in ascending order. The takers are in the order of the sets in `queue`.
    """

    block: int
    givers: int
    takers: int
    queue: list[int]


class Turn(NamedTuple):
    """A round after the late rank has come: the number that it meets, or -1, and the passes."""

    guest: int
    passes: list[Pass]


def nth(members: int, n: int) -> int:
    """Return the member of a bit set that has `n` smaller ones."""
    first = 0
    while members & 0xFFFF_FFFF != members:
        half = members.bit_length() // 2
        low = members & (1 << half) - 1
        if n < (count := low.bit_count()):
            members = low
        else:
            n, members, first = n - count, members >> half, first + half
    for _ in range(n):
        members &= members - 1
    return first + (members & -members).bit_length() - 1


def smallest(sets: list[int], n: int) -> list[int]:
    """Return the first `n` members of bit sets that have at least as many together."""
    found: list[int] = []
    for each in sets:
        if (count := each.bit_count()) >= n:
            return [*found, each if count == n else each & (1 << nth(each, n)) - 1]
        found.append(each)
        n -= count
    return found


@cache
def turns(p: int) -> list[Turn]:
    """Return the rounds after the late rank, number p - 1, has come.

    In each, it meets a number that it has not met. The others give blocks, from the newest to the
    oldest, to numbers that lack them. Numbers that have had nothing new for longest come first.
    """
    late, every = p - 1, (1 << p) - 1
    unmet = others = every >> 1
    newest = {-1: others}  # for each complete block in order, those that have no newer one
    met: list[int] = []  # the number of each complete block, which met the late rank
    owners: dict[int, int] = {}  # of each complete block that some lack, the oldest first
    found = []
    while unmet or owners:
        queue, takers, givers = [newest[k] for k in sorted(newest)], others, every
        guest, passes = -1, []
        if unmet:
            guest = next(some for each in queue if (some := each & unmet)).bit_length() - 1
            unmet &= ~(1 << guest)
            takers &= ~(1 << guest)
            givers &= ~(1 << guest | 1 << late)
        for k, those in reversed(owners.items()):
            able = [some for each in queue if (some := each & takers & ~those)]
            n = min((those & givers).bit_count(), sum(each.bit_count() for each in able))
            if n:
                (giving,), able = smallest([those & givers], n), smallest(able, n)
                taking = sum(able)
                passes.append(Pass(met[k], giving, taking, able))
                givers &= ~giving
                takers &= ~taking
                owners[k] |= taking
                _renew(newest, k, taking)
        if guest >= 0:
            _renew(newest, len(met), 1 << guest)
            owners[len(met)] = 1 << guest | 1 << late
            met.append(guest)
        owners = {k: those for k, those in owners.items() if those != every}
        found.append(Turn(guest, passes))
    return found


def _renew(newest: dict[int, int], k: int, takers: int) -> None:
    """Note that numbers get block `k`."""
    for before, those in list(newest.items()):
        if before < k and (moved := those & takers):
            newest[k] = newest.get(k, 0) | moved
            if moved == those:
                del newest[before]
            else:
                newest[before] ^= moved


def messages(v: int, turn: Turn, p: int) -> tuple[Found | None, Found | None]:
    """Return the messages that number `v` sends and receives in a round: partner and block."""
    if turn.guest >= 0 and v in (turn.guest, p - 1):
        meeting = turn.guest + p - 1 - v, turn.guest
        return meeting, meeting
    given = taken = None
    bit = 1 << v
    for block, givers, takers, queue in turn.passes:
        if givers & bit:
            n = (givers & bit - 1).bit_count()
            for each in queue:
                if n < (count := each.bit_count()):
                    break
                n -= count
            given = nth(each, n), block
            if taken:
                break
        if takers & bit:
            n = 0
            for each in queue:
                if each & bit:
                    break
                n += each.bit_count()
            taken = nth(givers, n + (each & bit - 1).bit_count()), block
            if given:
                break
    return given, taken


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

    def message(found: Found | None) -> Any:
        return (rank_of(found[0]), found[1]) if found else ()

    for d in reversed(powers(2, p - 1)) if v < p - 1 else ():
        left, right = (v - d) % (p - 1), (v + d) % (p - 1)
        count = min(d, p - 1 - d)
        yield Exchange(
            send=(rank_of(right), following(right, count, p - 1)),
            recv=(rank_of(left), following(v, count, p - 1)),
            fold=True,
        )
    for turn in turns(p):
        given, taken = messages(v, turn, p)
        is_meeting = given is not None and given == taken
        yield Exchange(send=message(given), recv=message(taken), fold=is_meeting)
