"""The choice of an algorithm: by the caller, the profile of the machine, the table, or the model.

If the caller does not name an algorithm, the first of these that has an entry decides:

1. the profile of this machine (`profile`; ``collectives tune`` writes it), for the nearest number
   of ranks that was measured, within a factor of two;
2. in shared memory, the table that comes with the library, ``measured.json``: a profile of another
   machine, for the nearest number of ranks, however far;
3. the least time by the cost formulas, with the alpha, beta and gamma that were measured here (in
   the profile, or by the probe of ``COLLECTIVES_TUNE=probe``), or else with typical values.

In shared memory the table comes before the formulas, because these count messages between ports and
do not model blocks that are published once and read by all ranks, nor several folds in one pass.
For calls through MPI messages the table is not used: measurements on one machine say little about
another, and the formulas came closer to the best algorithm (docs/results/choice.md has numbers).

An algorithm is not chosen if p does not meet one of its requirements. An algorithm that the caller
names is never replaced by another.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

from collectives.algorithms import spec
from collectives.algorithms.bits import ANY, ONCE, PAIRS, SIZE, row_name
from collectives.algorithms.composition import candidates
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import ANYWHERE, Algorithm, get, loaded, names
from collectives.algorithms.spec import Collective
from collectives.choice import model
from collectives.choice.model import LENDS, MEMCPY, PAYLOADS, RESULTS, SEGMENT, Parameters
from collectives.errors import ArgumentError, CommunicatorError
from collectives.plans.order import folds_at_once, has_fixed_order
from collectives.plans.schedule import passes_on
from collectives.process import environment
from collectives.text.words import count, size_text, time_text

if TYPE_CHECKING:
    from collectives.choice.profile import Profile
    from collectives.choice.sections import Row, Section


# The counterparts that fold in the fixed order, for calls whose bits must not depend on the size.
# The measurements of an algorithm are taken for its counterpart, which has as many rounds or moves
# as much. A chain is for long arrays in shared memory, where `direct` was faster than `near_tree`.
IN_FIXED_ORDER = {
    ("allreduce", "round_robin"): "direct",
    ("allreduce", "ring"): "direct",
    ("allreduce", "halving_doubling"): "near_halving",
    ("reduce", "tree"): "near_tree",
    ("reduce", "chain"): "direct",
    ("reduce", "reduce_scatter_gather"): "near_halving",
    ("reduce_scatter", "ring"): "direct",
    ("reduce_scatter", "recursive"): "near_halving",
    ("scan", "recursive"): "rank_order",
    ("exscan", "recursive"): "rank_order",
}

# The bytes of a segment of messages by UCX: with its headers, it is one fragment of UCX's transport
# for TCP, which has 64 KiB. UCX copies a longer message once more where it arrives. With
# COLLECTIVES_SEGMENT=128K, allreduces of 256 KiB, 1, 4 and 16 MiB take 0.97, 1.02, 1.31 and 1.32
# times as long (medians of 8 turns of collectives bench allreduce -b 256K -e 16M -f 4 --repeat 9,
# as a job without MPI on 2 namespaces without a limit; AMD EPYC of family 25, near, 2026-11-27).
UCX_SEGMENT = 63 << 10


class Timing(NamedTuple):
    """The measured time of an algorithm.

    Attributes
    ----------
    seconds : float
    nbytes, p : int
        Bytes and number of ranks of the measured point that is nearest to the call.
    origin : str
    """

    seconds: float
    nbytes: int
    p: int
    origin: str

    def __str__(self) -> str:
        size = f", {size_text(self.nbytes)}" if self.nbytes else ""
        return f"{time_text(self.seconds)} on {count(self.p, 'rank')}{size} ({self.origin})"


@dataclass(frozen=True, repr=False)
class Decision:
    """The algorithm that runs, and why.

    Attributes
    ----------
    algorithm : Algorithm
    segment : int
        Size in bytes of the segments that a block is sent in; 0 for whole blocks.
    p, nbytes : int
        Number of ranks, and bytes of the message.
    reason : str
    parameters : Parameters
        The alpha, beta and gamma of the prediction.
    measured : Timing or None
        The time in the profile, at the nearest point.
    family, groups
        As for `decide`.
    is_given : bool
        Whether the caller or the profile of this machine chose the algorithm, so that it stays.
    ways : int
        The way to store blocks, as in `lessons`.
    trials : tuple of (float, str)
        The seconds and the setting of each of the last trials, the fastest first.
    bits, root
        As for `decide`.
    """

    algorithm: Algorithm
    segment: int
    p: int
    nbytes: int
    reason: str
    parameters: Parameters = model.DEFAULT
    measured: Timing | None = None
    family: str = "shm"
    groups: Groups | None = None
    is_given: bool = False
    ways: int = -1
    trials: tuple[tuple[float, str], ...] = ()
    bits: str = ANY
    root: int = 0

    @cached_property
    def predicted(self) -> float | None:
        """Seconds by the cost formulas; None if the algorithm states no cost."""
        time = model.seconds(
            self.algorithm, self.p, self.nbytes, self.parameters, self.segment, self.groups
        )
        return time if isfinite(time) else None

    def __repr__(self) -> str:
        return f"<Decision: {self._choice()}, {self.reason}>"

    def name(self) -> str:
        """Return the setting in words. Local."""
        return setting(self.algorithm.name, self.segment, self.ways, self.nbytes)

    def _choice(self) -> str:
        row = self.algorithm
        size = size_text(self.nbytes)
        return f"{row.collective.name} of {size} on {count(self.p, 'rank')}: {row.name}"

    def __str__(self) -> str:
        row = self.algorithm
        lines = [
            self._choice(),
            f"  why       {self.reason}",
            f"  what      {row.summary}",
        ]
        totals = row.totals(self.p)
        if totals:
            rounds, sent, folded = totals
            lines += [
                f"  rounds    {rounds:g}",
                f"  per rank  sends up to {size_text(sent * self.nbytes)}, "
                f"folds up to {size_text(folded * self.nbytes)}",
            ]
            if row.cost is not None:
                lines.append(f"  time      {row.cost}")
        if row.groups is not None:
            lines.append(f"  ranks     {row.groups}")
        if self.predicted is not None:
            lines.append(f"  predicted {time_text(self.predicted)}, by {self.parameters}")
        if self.measured is not None:
            lines.append(f"  measured  {self.measured}")
        for seconds, name in self.trials:
            lines.append(f"  tried     {time_text(seconds)} by {name}")
        blocks = row.array_blocks(self.p)
        piece = self.segment or -(-self.nbytes // blocks)
        lines.append(
            f"  pieces    {count(blocks, 'block')}, in segments of {size_text(piece)} at most"
        )
        if stored(self.ways):
            lines.append(f"  stores    {stored(self.ways)}")
        if self.bits == SIZE:
            lines.append("  bits      of an element do not depend on the size of the array")
        if row.order == PAIRS:
            lines.append("  folds     in pairs of neighbouring ranks, then in pairs of these")
        if row.source:
            lines.append(f"  source    {row.source}")
        return "\n".join(lines)


def setting(name: str, segment: int, ways: int, nbytes: int) -> str:
    """Return an algorithm, its segment and its way to store blocks in words. Local."""
    cut = f"/{size_text(segment)}" if 0 < segment < nbytes else ""
    return f"{name}{cut}{', ' if ways > 0 else ''}{stored(ways)}"


def stored(ways: int) -> str:
    """Return a way to store blocks in words, if it is not the usual one. Local."""
    past = (PAYLOADS, "payloads"), (RESULTS, "results")
    blocks = [name for bit, name in past if ways > 0 and ways & bit]
    words = [f"{' and '.join(blocks)} past the cache"] if blocks else []
    words += ["private arrays lent"] if ways > 0 and ways & LENDS else []
    words += ["copied by memcpy"] if ways > 0 and ways & MEMCPY else []
    return ", ".join(words)


@cache
def measured() -> Profile:
    """Return the table that comes with the library. Local."""
    from collectives.choice.profile import parse  # not needed before the first decision

    path = os.path.join(os.path.dirname(__file__), "measured.json")
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as error:
        raise CommunicatorError(f"the table of measurements cannot be read: {error}") from error


def decide(
    collective: str,
    name: str | None,
    *,
    p: int,
    nbytes: int,
    family: str = "shm",
    ordered: bool = False,
    vector: bool = False,
    profile: Section | None = None,
    parameters: Parameters | None = None,
    groups: Groups | None = None,
    bits: str = ANY,
    root: int = 0,
) -> Decision:
    """Decide which algorithm runs. Local.

    Parameters
    ----------
    collective : str
    name : str or None
        The algorithm that the caller asked for, or None to choose.
    p : int
        Number of ranks.
    nbytes : int
        Bytes of the caller's whole array: the larger one, if input and output differ in size.
    family : str
        The transport of the ranks: ``"shm"`` through shared memory, or the family of the MPI
        library between hosts, ``"mpich"``, ``"openmpi"``, ``"intel"`` or ``"other"``.
    ordered : bool
        Whether contributions must be folded in rank order, because the operation is not
        commutative.
    vector : bool
        Whether it is the vector form, in which each part has a count of its own.
    profile : Section, optional
        The measurements of this transport on this machine.
    parameters : Parameters, optional
        The alpha, beta and gamma that were measured here.
    groups : Groups, optional
        The ranks of each host, if there are several.
    bits : str
        One of `BITS`: with ``"size"`` an algorithm has to fold every element in the fixed order of
        its collective, so that its bits do not depend on the size of the array. Or `ONCE`: it has
        to fold all contributions to an element in one step.
    root : int

    Raises
    ------
    ArgumentError
        If there is no such algorithm, it cannot run on `p` ranks, or it does not fold in the order
        that is needed.
    ProofError
        If the cost formulas of a user's algorithm are wrong.
    """
    contract = spec.collective(collective)
    # The core keeps one decision for all sizes of the same bit length. Most are powers of two.
    typical = 5 << nbytes.bit_length() >> 3
    if not contract.folds:
        bits = ANY
    suits = _suits(contract, p, ordered, vector, bits, root)
    own = _found(profile, contract, p, typical, bits, is_own=True)
    shipped = _found(_shipped(family), contract, p, typical, bits, is_own=False)
    if bits != ANY:
        own, shipped = (_counterpart(contract, each, suits) for each in (own, shipped))
    known = parameters or (model.DEFAULT if groups is None or groups.number == 1 else model.NETWORK)
    able = (each for each in (own, shipped) if each and _able(contract, each, suits, groups))
    row = next(able, None)
    if name is not None:
        algorithm = _compared(collective, name, groups)
        refusal = algorithm.refusal(p) or _disorder(algorithm, ordered)
        if refusal := refusal or _unfixed(algorithm.at(p, nbytes), p, bits, root):
            raise ArgumentError(refusal)
        same = [each for each in (own, shipped) if each and each.row.algorithm == algorithm.name]
        segment = same[0].row.segment if same else _usual(algorithm, p, family)
        reason = "asked for by the caller"
    elif p == 1:
        algorithm, segment = loaded(collective)[0], SEGMENT
        reason = "one rank only copies"
    elif row:
        algorithm, segment = _compared(collective, row.row.algorithm, groups), row.row.segment
        reason = row.reason()
    else:
        free = _suits(contract, p, ordered, vector, ANY, root)
        algorithm = _cheapest(contract, p, typical, free, known, groups, ANY)
        if not suits(algorithm):
            algorithm = _cheapest(contract, p, typical, suits, known, groups, bits)
        segment = _usual(algorithm, p, family)
        third = vector and contract.parts(p) > p
        reason = _formulas(parameters, bool(own or shipped), ordered, third, bits)
    segment = _override(segment)
    timing = own and own.timing(algorithm.name, segment, nbytes)
    is_given = name is not None or p == 1 or (row is not None and row is own)
    algorithm = _ordered(algorithm.at(p, nbytes), p, bits, root)
    decided = Decision(algorithm, segment, p, nbytes, reason, known, timing, family, groups)
    return replace(decided, is_given=is_given, bits=bits, root=root)


def _formulas(
    parameters: Parameters | None, is_measured: bool, ordered: bool, third: bool, bits: str
) -> str:
    """Return the reason of a decision by the cost formulas, in words."""
    reason = "least time by the cost formulas"
    if parameters is not None:
        reason += f" with the times measured here ({parameters.origin})"
    elif not is_measured:
        reason += " with usual numbers, as nothing was measured here"
    if ordered:
        reason += " among those that fold in rank order, as op is not commutative"
    elif third:
        reason += " among those in which no block passes through a third rank"
    elif bits == SIZE:
        reason += f"; of those that fold in the fixed order, as bits is {SIZE!r}"
    elif bits == ONCE:
        reason += "; of those that fold all contributions at once, for a sum that is rounded once"
    return reason


def _compared(collective: str, name: str, groups: Groups | None) -> Algorithm:
    """Return an algorithm; raise an error if its cost formulas contradict its proof."""
    row = get(collective, name, groups)
    if row.cost is not None and not row.included:
        from collectives.plans.proof import compare_cost  # few programs need this slow import

        compare_cost(row)
    return row


def alternatives(
    decision: Decision,
    most: int,
    *,
    ordered: bool = False,
    vector: bool = False,
) -> list[Decision]:
    """Return alternatives to a choice, sorted by their time by the cost formulas. Local.

    They have its segment, or the default one, if they use segments. If the choice promises equal
    bits on all ranks, so do they.
    """
    chosen, p = decision.algorithm, decision.p
    suits = _suits(chosen.collective, p, ordered, vector, decision.bits, decision.root)

    def alternative(row: Algorithm) -> Decision:
        usual = _usual(row, p, decision.family)
        segment = _override(usual and (decision.segment or usual))
        reason = f"an alternative to {chosen.name}"
        row = _ordered(row, p, decision.bits, decision.root)
        return replace(
            decision, algorithm=row, segment=segment, reason=reason, measured=None, is_given=False
        )

    others = [
        alternative(row)
        for row in _included(chosen.collective, decision.groups, decision.bits)
        if row.name != chosen.name and row.same_bits >= chosen.same_bits and suits(row)
    ]
    return sorted(others, key=lambda each: each.predicted or 0.0)[:most]


def _usual(algorithm: Algorithm, p: int, family: str) -> int:
    """Return the bytes of a segment if none was measured; 0 if segments have no advantage.

    With MPI's messages they have none if blocks are neither passed on nor folded: there is nothing
    to overlap, and MPI itself cuts messages where this is useful.
    """
    if family == "ucx":
        return UCX_SEGMENT
    rounds, _, folded = algorithm.totals(p) or (inf, 0, 0)
    return 0 if family != "shm" and rounds <= 1 and not folded else SEGMENT


def _override(segment: int) -> int:
    """Return `segment`, or the bytes of a segment that the environment sets."""
    return environment.size("COLLECTIVES_SEGMENT", segment, least=0)


class _Found(NamedTuple):
    """A row of the profile or the table, and the number of ranks that it was measured on."""

    row: Row
    p: int
    transport: str
    profile: str  # empty for the table
    instead_of: str = ""  # the algorithm that was measured, if another one stands for it

    def reason(self) -> str:
        """Return the reason to choose the algorithm of the row, in words."""
        upto = "any size" if self.row.limit is None else f"up to {size_text(self.row.limit)}"
        where = "in shared memory" if self.transport == "shm" else f"with {self.transport}"
        here = f"; {self.profile}" if self.profile else ""
        like = f"as {self.instead_of}, but in a fixed order, which was " if self.instead_of else ""
        return f"{like}measured fastest {where} on {count(self.p, 'rank')}, {upto}{here}"

    def timing(self, name: str, segment: int, nbytes: int) -> Timing | None:
        """Return the measured time of an algorithm, if the row has it."""
        point = self.row.nearest(nbytes)
        if (
            self.instead_of
            or point is None
            or (self.row.algorithm, self.row.segment) != (name, segment)
        ):
            return None
        return Timing(point[1], point[0], self.p, self.profile)


def _shipped(family: str) -> Section | None:
    """Return the section of the table that comes with the library, if it has one."""
    return next((each for each in measured().sections if each.transport == family), None)


def _found(
    section: Section | None, contract: Collective, p: int, nbytes: int, bits: str, *, is_own: bool
) -> _Found | None:
    """Return the row of a section for a call, if it has one; the table has one for each p. Rows
    for calls of these `bits` come before rows for any.
    """
    options = {} if is_own else {"within": inf}
    if section is None:
        return None
    names = [row_name(contract.name, bits), contract.name] if bits == SIZE else [contract.name]
    rows = (section.row(name, p, nbytes, **options) for name in names)
    found = next(filter(None, rows), None)
    if found is None:
        return None
    profile = f"the profile of {section.date}" if is_own else ""
    return _Found(found[1], found[0], section.transport, profile)


def _able(
    contract: Collective,
    found: _Found,
    suits: Callable[[Algorithm], bool],
    groups: Groups | None,
) -> bool:
    """Return whether the algorithm of a row is registered, and may be chosen."""
    try:
        return suits(get(contract.name, found.row.algorithm, groups))
    except ArgumentError:
        return False


def _suits(
    contract: Collective, p: int, ordered: bool, vector: bool, bits: str, root: int
) -> Callable[[Algorithm], bool]:
    """Return the test for algorithms that may be chosen for a call."""

    def suits(algorithm: Algorithm) -> bool:
        if algorithm.refusal(p) or _disorder(algorithm, ordered):
            return False
        # In an alltoallv, only the source and the destination of a block know its length.
        if vector and contract.parts(p) > p and passes_on(algorithm, p):
            return False
        return _keeps(algorithm, p, bits, root)

    return suits


def _keeps(algorithm: Algorithm, p: int, bits: str, root: int) -> bool:
    """Return whether an algorithm folds as the mode `bits` demands."""
    if bits == ANY:
        return True
    if bits == ONCE:
        return folds_at_once(algorithm, p, root)
    return has_fixed_order(_ordered(algorithm, p, bits, root), p, root)


def _ordered(algorithm: Algorithm, p: int, bits: str, root: int) -> Algorithm:
    """Return an algorithm, which folds in pairs if `bits` demand it."""
    if bits != SIZE or has_fixed_order(algorithm, p, root):
        return algorithm
    return algorithm.folding(PAIRS)


def _disorder(algorithm: Algorithm, ordered: bool) -> str | None:
    """Return why the folding order of an algorithm forbids its use in this call, or None."""
    if not ordered or algorithm.keeps_order or not algorithm.collective.reduces:
        return None
    collective = algorithm.collective.name
    able = [name for name in names(collective) if get(collective, name).keeps_order]
    return (
        f"op is not commutative, and {collective} {algorithm.name!r} does not fold in rank order; "
        f"pass algorithm=None or one that does: {', '.join(able)}"
    )


def _counterpart(
    contract: Collective, found: _Found | None, suits: Callable[[Algorithm], bool]
) -> _Found | None:
    """Return a row, or one with the counterpart of its algorithm, if this one does not suit."""
    if found is None or _able(contract, found, suits, None):
        return found
    name = found.row.algorithm
    other = IN_FIXED_ORDER.get((contract.name, name))
    if other is None:
        return None
    return found._replace(row=found.row._replace(algorithm=other), instead_of=name)


def _unfixed(algorithm: Algorithm, p: int, bits: str, root: int) -> str | None:
    """Return why an algorithm does not fold as the mode `bits` demands, or None if it does."""
    if _keeps(algorithm, p, bits, root):
        return None
    name = algorithm.collective.name
    rows = (get(name, each) for each in names(name))
    able = [each.name for each in rows if not each.refusal(p) and _keeps(each, p, bits, root)]
    where = f"{name} {algorithm.name!r} on {count(p, 'rank')}"
    if bits == ONCE:
        return (
            f"op is SUM_REPRODUCIBLE, and a plan of {where} would not fold all contributions at "
            f"once; pass algorithm=None, or one of: {', '.join(able)}"
        )
    return (
        f"bits is {SIZE!r}, but {where} does not fold each element in the fixed order; pass "
        f"algorithm=None, bits={ANY!r}, or one of: {', '.join(able)}"
    )


def _included(collective: Collective, groups: Groups | None, bits: str) -> list[Algorithm]:
    """Return the included algorithms to choose from, with compositions on several hosts.

    A composition folds in the fixed order only if it is like a simpler algorithm.
    """
    found = loaded(collective.name)
    if bits == ANY:
        if groups is not None and groups.are_nested:
            found += [get(collective.name, name, groups) for name in candidates(collective.name)]
        found = [row for row in found if row.chosen == ANYWHERE]
    return [row for row in found if row.included]


def _cheapest(
    contract: Collective,
    p: int,
    nbytes: int,
    suits: Callable[[Algorithm], bool],
    known: Parameters,
    groups: Groups | None,
    bits: str,
) -> Algorithm:
    """Return the included algorithm with the least time by its cost formulas."""
    rows = (row for row in _included(contract, groups, bits) if not row.refusal(p))
    seconds = partial(model.seconds, p=p, nbytes=nbytes, known=known, groups=groups)
    return next(row for row in sorted(rows, key=seconds) if suits(row))
