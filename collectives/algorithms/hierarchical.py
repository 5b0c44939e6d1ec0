"""Hierarchical algorithms: one algorithm inside groups of ranks, and another between them.

A group is a host, or other ranks that are near each other. There are two kinds:

- *Lanes.* The array is cut into as many parts as the smallest group has ranks. The k-th ranks of
  all groups are lane k, and carry part k between the groups. So all ranks send at the same time,
  each a part of the array. If a group has more ranks than there are lanes, the other ranks send
  their contributions to the lanes before, and receive the result after.
- *Leaders.* One rank of each group carries the whole array between the groups: its lowest, or the
  root.

`embedded` runs the algorithm of a phase on some of the ranks and blocks. `composition` makes the
rows of the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from collectives.algorithms.exchange import Exchange, consecutive, moved
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import HIERARCHICAL, Algorithm, names
from collectives.errors import ArgumentError
from collectives.text.words import known

SOURCE = (
    "Träff: Decomposing collectives for exploiting multi-lane communication, 2019, arXiv:1910.13373"
)

Piece = Callable[[int], Sequence[int]]


def embedded(
    rounds: Iterator[Exchange], rank_of: Callable[[int], int], piece: Piece
) -> Iterator[Exchange]:
    """Run the rounds of an algorithm on some of the ranks and blocks.

    Rank `k` of the algorithm is rank ``rank_of(k)``; its block `b` is the blocks ``piece(b)``.
    """

    def side(messages: Any) -> list[Any]:
        if not messages:
            return []
        pairs = messages if isinstance(messages[0], list | tuple) else [messages]
        return [moved(each, rank_of(each[0]), _joined(each[1], piece)) for each in pairs]

    for each in rounds:
        yield each._replace(send=side(each.send), recv=side(each.recv))


@dataclass(frozen=True)
class Pieces:
    """Block `b` of an algorithm is `width` blocks, of which the first is ``start + b * width``."""

    start: int
    width: int

    def __call__(self, b: int) -> Sequence[int]:
        return consecutive(self.start + b * self.width, self.width)


def _joined(blocks: Any, piece: Piece) -> Sequence[int]:
    """Return the pieces of blocks that travel together, as a range if they are consecutive."""
    if isinstance(piece, Pieces) and isinstance(blocks, range) and blocks.step == 1:
        return consecutive(piece.start + blocks.start * piece.width, len(blocks) * piece.width)
    pieces = [piece(b) for b in (blocks if isinstance(blocks, range | list | tuple) else [blocks])]
    if len(pieces) == 1:
        return pieces[0]
    if all(
        isinstance(before, range) and isinstance(after, range) and before[-1] + 1 == after[0]
        for before, after in pairwise(pieces)
    ):
        return range(pieces[0][0], pieces[-1][-1] + 1)
    return [b for each in pieces for b in each]


class Phases(NamedTuple):
    """The three phases of a composition on its groups, and the blocks of their parts.

    Attributes
    ----------
    groups : Groups
    lanes : int
        The number of ranks of each group that communicate with other groups.
    first, between, last : Algorithm or None
        The algorithms inside a group, between groups, and again inside.
    unit : int
        Blocks of a lane's part of the array; of a rank's, if arrays are cut by rank.
    total : int
        Blocks of the whole array.
    """

    groups: Groups
    lanes: int
    first: Algorithm | None
    between: Algorithm
    last: Algorithm | None
    unit: int
    total: int

    def inside(
        self, row: Algorithm | None, r: int, ranks: int, root: int = 0
    ) -> Iterator[Exchange]:
        """The rounds of `r` inside its group, of which the first `ranks` ranks take part.

        The algorithm works on the whole array, with its own number of blocks.
        """
        assert row is not None
        group, number = self.groups.place(r)
        width = self.total // row.blocks(ranks)
        yield from embedded(
            row.run(number, ranks, root),
            lambda k: self.groups.rank(group, k),
            Pieces(0, width),
        )

    def across(
        self, r: int, leader: Callable[[int], int], root: int = 0, lane: int = 0
    ) -> Iterator[Exchange]:
        """The rounds of `r` between the groups; ``leader(group)`` is a leader's number there."""
        group, _ = self.groups.place(r)
        number = self.groups.number
        width = self.unit // self.between.blocks(number)
        yield from embedded(
            self.between.run(group, number, root),
            lambda k: self.groups.rank(k, leader(k)),
            Pieces(lane * self.unit, width),
        )

    def lane(self, r: int, root: int = 0) -> Iterator[Exchange]:
        """The rounds of `r` in its lane."""
        _, number = self.groups.place(r)
        yield from self.across(r, lambda group: number, root, number)

    def part(self, lane: int) -> Sequence[int]:
        """The blocks that a lane carries; where arrays are cut by rank, those of a rank."""
        return consecutive(lane * self.unit, self.unit)

    def parts_in_lane(self, r: int) -> Iterator[Exchange]:
        """The rounds of `r` in its lane, where arrays are cut by rank.

        Part `k` of the algorithm between groups is the part of the lane's rank in group `k`.
        """
        group, number = self.groups.place(r)
        yield from embedded(
            self.between.run(group, self.groups.number),
            lambda k: self.groups.rank(k, number),
            self._cut(self.between, self.groups.number, lambda k: [self.groups.rank(k, number)]),
        )

    def parts_of_groups(self, r: int) -> Iterator[Exchange]:
        """The rounds of a leader `r` between the groups, where arrays are cut by rank.

        Part `k` of the algorithm consists of the parts of all ranks of group `k`.
        """
        group, _ = self.groups.place(r)
        yield from embedded(
            self.between.run(group, self.groups.number),
            lambda k: self.groups.rank(k, 0),
            self._cut(self.between, self.groups.number, lambda k: self.groups.members[k]),
        )

    def parts_inside(self, row: Algorithm | None, r: int) -> Iterator[Exchange]:
        """The rounds of `r` inside its group, where arrays are cut by rank.

        Part `k` of the algorithm consists of the parts of all ranks of lane `k`.
        """
        assert row is not None
        group, number = self.groups.place(r)
        groups = range(self.groups.number)
        yield from embedded(
            row.run(number, self.lanes),
            lambda k: self.groups.rank(group, k),
            self._cut(row, self.lanes, lambda k: [self.groups.rank(each, k) for each in groups]),
        )

    def _cut(self, row: Algorithm, ranks: int, of: Callable[[int], Sequence[int]]) -> Piece:
        """Return the pieces of an algorithm whose part `k` consists of the parts ``of(k)``."""
        cut = row.blocks(ranks) // ranks
        width = self.unit // cut

        def piece(b: int) -> Sequence[int]:
            within = b % cut * width
            return _joined(
                list(of(b // cut)), lambda rank: consecutive(rank * self.unit + within, width)
            )

        return piece

    def given(self, r: int) -> Iterator[Exchange]:
        """Ranks that are in no lane send each lane of their group its part."""
        group, number = self.groups.place(r)
        size = _size(self.groups, group)
        if size == self.lanes:
            return
        if number < self.lanes:
            others = [self.groups.rank(group, k) for k in range(self.lanes, size)]
            yield Exchange(recv=[(rank, self.part(number)) for rank in others], fold=True)
        else:
            own = [(self.groups.rank(group, k), self.part(k)) for k in range(self.lanes)]
            yield Exchange(send=own)

    def taken(self, r: int, but: int = -1) -> Iterator[Exchange]:
        """Ranks that are in no lane receive the result from the lanes, except rank `but`."""
        group, number = self.groups.place(r)
        size = _size(self.groups, group)
        if size == self.lanes:
            return
        others = [self.groups.rank(group, k) for k in range(self.lanes, size)]
        if number < self.lanes:
            yield Exchange(send=[(rank, self.part(number)) for rank in others if rank != but])
        elif r != but:
            own = [(self.groups.rank(group, k), self.part(k)) for k in range(self.lanes)]
            yield Exchange(recv=own)


def _size(groups: Groups, group: int) -> int:
    """Return the number of ranks of a group, which may be an array if all are equally long."""
    return groups.sizes[0] if len(groups.sizes) == 1 else len(groups.members[group])


# -- lanes -------------------------------------------------------------------------------------


def _allreduce_lanes(r: int, at: Phases, root: int) -> Iterator[Exchange]:
    """Reduce-scatter inside each group, allreduce each part between groups, allgather inside."""
    _, number = at.groups.place(r)
    yield from at.given(r)
    if number < at.lanes:
        yield from at.inside(at.first, r, at.lanes)
        yield from at.lane(r)
    yield from at.taken(r)
    if number < at.lanes:
        yield from at.inside(at.last, r, at.lanes)


def _reduce_lanes(r: int, at: Phases, root: int) -> Iterator[Exchange]:
    """Reduce-scatter inside each group, reduce each part to the root's group, gather there."""
    group, number = at.groups.place(r)
    home, seat = at.groups.place(root)
    yield from at.given(r)
    if number < at.lanes:
        yield from at.inside(at.first, r, at.lanes)
        yield from at.lane(r, home)
    if r == root:
        others = [k for k in range(at.lanes) if k != seat]
        yield Exchange(recv=[(at.groups.rank(home, k), at.part(k)) for k in others])
    elif group == home and number < at.lanes:
        yield Exchange(send=(root, at.part(number)))


def _broadcast_lanes(r: int, at: Phases, root: int) -> Iterator[Exchange]:
    """Scatter in the root's group, broadcast each part between the groups, allgather inside."""
    group, number = at.groups.place(r)
    home, seat = at.groups.place(root)
    if r == root:
        others = [k for k in range(at.lanes) if k != seat]
        yield Exchange(send=[(at.groups.rank(home, k), at.part(k)) for k in others])
    elif group == home and number < at.lanes:
        yield Exchange(recv=(root, at.part(number)))
    if number < at.lanes:
        yield from at.lane(r, home)
    yield from at.taken(r, but=root)
    if number < at.lanes:
        yield from at.inside(at.last, r, at.lanes)


def _allgather_lanes(r: int, at: Phases, root: int) -> Iterator[Exchange]:
    """Allgather in each lane, then allgather the blocks of all lanes inside each group."""
    yield from at.parts_in_lane(r)
    yield from at.parts_inside(at.last, r)


def _reduce_scatter_lanes(r: int, at: Phases, root: int) -> Iterator[Exchange]:
    """Reduce-scatter the parts of each lane inside each group, then the sums in each lane."""
    yield from at.parts_inside(at.first, r)
    yield from at.parts_in_lane(r)


# -- leaders -----------------------------------------------------------------------------------


def _through_leaders(r: int, at: Phases, root: int) -> Iterator[Exchange]:
    """Reduce to the leader of each group, communicate between the leaders, broadcast inside."""
    group, number = at.groups.place(r)
    home, seat = at.groups.place(root)
    size = _size(at.groups, group)

    def leader(of: int) -> int:
        return seat if of == home else 0

    if at.first is not None:
        yield from at.inside(at.first, r, size, leader(group))
    if number == leader(group):
        yield from at.across(r, leader, home)
    if at.last is not None:
        yield from at.inside(at.last, r, size, leader(group))


def _allgather_leaders(r: int, at: Phases, root: int) -> Iterator[Exchange]:
    """Gather at the leader of each group, allgather between the leaders, broadcast inside."""
    group, _ = at.groups.place(r)
    leader, *others = at.groups.members[group]
    if r == leader:
        yield Exchange(recv=[(rank, at.part(rank)) for rank in others])
        yield from at.parts_of_groups(r)
    else:
        yield Exchange(send=(leader, at.part(r)))
    yield from at.inside(at.last, r, 1 + len(others))


def _reduce_scatter_leaders(r: int, at: Phases, root: int) -> Iterator[Exchange]:
    """Reduce to the leader of each group, reduce-scatter between the leaders, scatter inside."""
    group, _ = at.groups.place(r)
    leader, *others = at.groups.members[group]
    yield from at.inside(at.first, r, 1 + len(others))
    if r == leader:
        yield from at.parts_of_groups(r)
        yield Exchange(send=[(rank, at.part(rank)) for rank in others])
    else:
        yield Exchange(recv=(leader, at.part(r)))


class Form(NamedTuple):
    """The phases of a composition.

    Attributes
    ----------
    generate : callable
    first, last : str
        The collectives that run inside the groups, before and after; empty for none.
    at_root : str
        The direct messages in the group of the root, or in each group: scatter or gather.
    """

    generate: Callable[[int, Phases, int], Iterator[Exchange]]
    first: str
    last: str
    at_root: str = ""

    def insides(self) -> list[str]:
        """Return the names of the algorithms that both phases have."""
        wanted = [each for each in (self.first, self.last) if each]
        return [name for name in names(wanted[0]) if name in names(wanted[-1])]


LANES = {
    "allreduce": Form(_allreduce_lanes, "reduce_scatter", "allgather"),
    "reduce": Form(_reduce_lanes, "reduce_scatter", "", "gather"),
    "broadcast": Form(_broadcast_lanes, "", "allgather", "scatter"),
    "allgather": Form(_allgather_lanes, "", "allgather"),
    "reduce_scatter": Form(_reduce_scatter_lanes, "reduce_scatter", ""),
}
LEADERS = {
    "allreduce": Form(_through_leaders, "reduce", "broadcast"),
    "reduce": Form(_through_leaders, "reduce", ""),
    "broadcast": Form(_through_leaders, "", "broadcast"),
    "barrier": Form(_through_leaders, "reduce", "broadcast"),
    "allgather": Form(_allgather_leaders, "", "broadcast", "gather"),
    "reduce_scatter": Form(_reduce_scatter_leaders, "reduce", "", "scatter"),
}


def form_of(collective_name: str, inside: str) -> tuple[bool, Form]:
    """Return whether the algorithm `inside` makes lanes, and the form of the composition."""
    if collective_name not in LANES and collective_name not in LEADERS:
        able = ", ".join(dict.fromkeys((*LANES, *LEADERS)))
        raise ArgumentError(
            f"{collective_name} has no {HIERARCHICAL} algorithm; there is one of {able}"
        )
    base = inside.partition(":")[0]
    within: list[str] = []
    for has_lanes, forms in ((True, LANES), (False, LEADERS)):
        if form := forms.get(collective_name):
            if base in form.insides():
                return has_lanes, form
            within += form.insides()
    raise ArgumentError(
        f"{collective_name} has no {HIERARCHICAL} algorithm with {inside!r} inside; "
        f"{known(base, within, 'there are')}"
    )
