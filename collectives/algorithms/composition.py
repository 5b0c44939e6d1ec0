"""Compositions as rows of the registry: ``hierarchical(inside,between)``.

Both are names of registered algorithms, with a parameter or not. If `inside` is one of
reduce_scatter and allgather, the composition has lanes. If it is one of reduce and broadcast, it
has leaders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import lcm
from typing import Any, NamedTuple

from collectives.algorithms.groups import Groups
from collectives.algorithms.hierarchical import LANES, LEADERS, SOURCE, Form, Phases, form_of
from collectives.algorithms.registry import HIERARCHICAL, WHERE, Algorithm, Composer, get, loaded
from collectives.algorithms.spec import collective
from collectives.errors import ArgumentError


class Phase(NamedTuple):
    """A phase of a composition, for its cost.

    Attributes
    ----------
    row : Algorithm
    ranks : int
        The number of ranks that run it.
    share : float
        The part of the array that it works on.
    near : bool
        Whether these ranks are in one group.
    """

    row: Algorithm
    ranks: int
    share: float
    near: bool


@dataclass(frozen=True, eq=False, repr=False)
class Composition(Algorithm):
    """A row of the registry that composes others on groups of ranks.

    Attributes
    ----------
    collective, name, generate, blocks, cost, source, requires, same_bits, keeps_order, included
        As in an `Algorithm`.
    parameters, groups
        As in an `Algorithm`.
    first, between, last : Algorithm or None
        The algorithms of the phases.
    at_root : Algorithm or None
        The algorithm that runs in the group of the root beside these.
    has_lanes : bool
        Whether all ranks communicate between groups, and not only leaders.
    """

    first: Algorithm | None = None
    between: Algorithm | None = None
    last: Algorithm | None = None
    at_root: Algorithm | None = None
    has_lanes: bool = False

    def placed(self, groups: Groups) -> Algorithm:
        """Return the composition on these `groups` of ranks. Local."""
        return get(self.collective.name, self.name, groups)

    def on(self, p: int) -> Groups:
        """Return the groups of `p` ranks. Local."""
        return self.groups or Groups.halves(p)

    def phases(self, p: int) -> list[Phase]:
        """Return the phases on `p` ranks, with the largest group. Local."""
        groups = self.on(p)
        lanes = _lanes(groups, self.has_lanes)
        within = lanes if self.has_lanes else groups.sizes[-1]
        found = [
            (self.first, Phase(self.first or self, within, 1.0, True)),
            (self.between, Phase(self.between or self, groups.number, 1 / lanes, False)),
            (self.last, Phase(self.last or self, within, 1.0, True)),
            (self.at_root, Phase(self.at_root or self, within, 1.0, True)),
        ]
        return [phase for row, phase in found if row is not None and phase.ranks > 1]

    def totals(self, p: int) -> tuple[float, float, float] | None:
        """Return (rounds, sent, folded) on `p` ranks: the sums of the phases. Local.

        These are exact for groups of equal length whose phases load all ranks alike, and bounds for
        others.
        """
        rounds = sent = folded = others = 0.0
        for phase in self.phases(p):
            stated = phase.row.totals(phase.ranks)
            if stated is None:
                return None
            rounds += stated[0]
            folded += stated[2] * phase.share
            if phase.row is self.first and not self.has_lanes:
                others = stated[1]  # sent by the ranks that are no leaders
            else:
                sent += stated[1] * phase.share
        sent = max(sent, others)
        groups = self.on(p)
        if self.has_lanes and len(groups.sizes) > 1:
            beyond = groups.sizes[-1] - groups.sizes[0]
            rounds, sent = rounds + 2, sent + 1 + beyond / groups.sizes[0]
            folded += beyond / groups.sizes[0]
        return rounds, sent, folded

    def refusal(self, p: int) -> str | None:
        """Return why the composition cannot run on `p` ranks, or None if it can. Local."""
        groups = self.on(p)
        if (told := super().refusal(p)) is not None:
            return told
        if self.has_lanes and self.collective.parts(2) > 1 and len(groups.sizes) > 1:
            return (
                f"{self.collective.name} {self.name!r} needs groups of equal length, and there are "
                f"{groups}"
            )
        refusals = (each.row.refusal(each.ranks) for each in self.phases(p))
        return next((told for told in refusals if told), None)


def _lanes(groups: Groups, has_lanes: bool) -> int:
    return groups.sizes[0] if has_lanes else 1


def candidates(collective_name: str) -> list[str]:
    """Return the compositions of `collective_name` that the library chooses from. Local."""
    return [
        f"{HIERARCHICAL}({inside},{between})"
        for inside, between in pairs(collective_name)
        if inside in ("direct", "flat")
    ]


def pairs(collective_name: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the algorithms that can be composed, inside and between. Local."""
    for forms in (LANES, LEADERS):
        if form := forms.get(collective_name):
            for inside in form.insides():
                for between in loaded(collective_name):
                    parts = _rows(form, collective_name, inside, between.name)
                    if not any(row.scratch for row in parts if row is not None):
                        yield inside, between.name


def _rows(
    form: Form, collective_name: str, inside: str, between: str
) -> tuple[Algorithm | None, Algorithm, Algorithm | None]:
    """Return the algorithms of the three phases, or None for a phase that the form lacks."""
    first, last = (get(each, inside) if each else None for each in (form.first, form.last))
    return first, get(collective_name, between), last


def compose(collective_name: str, inside: str, between: str, groups: Groups | None) -> Composition:
    """Return a composition of algorithms, on `groups` or, if None, on two halves. Local."""
    has_lanes, form = form_of(collective_name, inside)
    first, middle, last = _rows(form, collective_name, inside, between)
    at_root = get(form.at_root, "flat") if form.at_root else None
    every = [row for row in (first, middle, last) if row is not None]
    for row in every:
        if row.scratch:
            raise ArgumentError(
                f"{row.collective.name} {row.name!r} has scratch blocks, and cannot be composed"
            )

    @cache
    def phases(p: int) -> Phases:
        on = groups or Groups.halves(p)
        lanes = _lanes(on, has_lanes)
        cuts = [_cut(middle, on.number)]
        for size in (lanes,) if has_lanes else on.sizes:
            cuts += [_cut(row, size) for row in (first, last) if row is not None]
        unit = lcm(*cuts)
        total = unit * (p if contract.parts(2) > 1 else lanes)
        return Phases(on, lanes, first, middle, last, unit, total)

    def generate(r: int, p: int, root: int = 0) -> Iterator[Any]:
        yield from form.generate(r, phases(p), root)

    contract = collective(collective_name)
    generate.__doc__ = form.generate.__doc__
    in_order = all(row.keeps_order or not row.collective.reduces for row in every)
    if has_lanes:
        in_order = in_order and groups is not None and len(groups.sizes) == 1
    return Composition(
        collective=contract,
        name=f"{HIERARCHICAL}({(first or last or middle).name},{middle.name})",
        generate=generate,
        blocks=lambda p: phases(p).total,
        cost=None,
        source=SOURCE,
        requires=(),
        same_bits=middle.same_bits,
        keeps_order=in_order and (groups is None or groups.are_consecutive),
        included=all(row.included for row in every),
        first=first,
        between=middle,
        last=last,
        at_root=at_root,
        groups=groups,
        chosen=max((row.chosen for row in every), key=WHERE.index),
        has_lanes=has_lanes,
    )


Composer.compose, Composer.pairs = compose, pairs


def _cut(row: Algorithm, ranks: int) -> int:
    """Return the number of blocks that an algorithm cuts each part of its array into."""
    return row.blocks(ranks) // row.collective.parts(ranks)
