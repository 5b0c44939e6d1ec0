"""Which algorithm, and why: the caller's word, else the measured table, else the cost formulas.

`measured.json` has, for shared memory and for each family of MPI, collective and number of ranks,
the algorithm and segment size that were fastest up to a number of bytes, with machine, date and
command. The row with the nearest number of ranks (on a logarithmic scale) is used. Where it has no
row for a
collective, or its algorithm will not do for this call, the formulas choose among those that will.
A requirement that p does not meet excludes an algorithm, and nothing is ever put in the place of
one that was asked for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from collectives import spec
from collectives.errors import ArgumentError
from collectives.registry import Algorithm, get, names
from collectives.schedule import compile
from collectives.spec import Collective
from collectives.words import count, size_text

__all__ = ["Decision", "decide"]

# Bytes of a segment for an algorithm that the table does not choose at this size, so that it has
# not measured its best segment.
SEGMENT = 128 << 10

# What the cost formulas are multiplied by: seconds for a message, for a byte sent, and for a byte
# folded. Open MPI took 0.65 us, 0.05 ns and 0.022 ns, MPICH 4.7 us, 0.07 ns and 0.023 ns (medians
# of 3 runs of mpiexec -n 2 python benchmarks/measure_model.py; 2 cores, AMD EPYC, 2026-11-20).
ALPHA, BETA, GAMMA = 1e-6, 0.06e-9, 0.022e-9


@dataclass(frozen=True)
class Decision:
    """What will run, and why.

    Attributes
    ----------
    algorithm : Algorithm
    segment : int
        Bytes of a block that travel at a time; 0 for the whole block.
    p, nbytes : int
        Number of ranks, and bytes of the message.
    reason : str
    """

    algorithm: Algorithm
    segment: int
    p: int
    nbytes: int
    reason: str

    def __str__(self) -> str:
        row = self.algorithm
        lines = [
            f"{row.collective.name} of {size_text(self.nbytes)} on {count(self.p, 'rank')}: "
            f"{row.name}",
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
                f"  time      {row.cost}",
            ]
        blocks = _blocks(row, self.p)
        piece = self.segment or -(-self.nbytes // blocks)
        lines.append(
            f"  pieces    {count(blocks, 'block')}, in segments of {size_text(piece)} at most"
        )
        if row.source:
            lines.append(f"  source    {row.source}")
        return "\n".join(lines)


@cache
def measured() -> dict[str, Any]:
    """Return the shipped table. Local."""
    path = os.path.join(os.path.dirname(__file__), "measured.json")
    with open(path, encoding="utf-8") as file:
        table: dict[str, Any] = json.load(file)
    return table


def decide(
    collective: str,
    name: str | None,
    *,
    p: int,
    nbytes: int,
    family: str = "shm",
    ordered: bool = False,
    vector: bool = False,
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
        Bytes of the caller's whole array: the larger side, where input and output differ.
    family : str
        How the ranks talk: ``"shm"`` through shared memory, or the family of the MPI between hosts,
        ``"mpich"``, ``"openmpi"``, ``"intel"`` or ``"other"``.
    ordered : bool
        Whether contributions must be folded in rank order: the operation is not commutative.
    vector : bool
        Whether it is the vector form, in which each part has a count of its own.

    Raises
    ------
    ArgumentError
        If there is no such algorithm, or it cannot run on `p` ranks, or does not keep an order
        that must be kept.
    """
    contract = spec.collective(collective)
    # The core keeps one decision for all sizes with equally many bits.
    largest = (1 << nbytes.bit_length()) - 1
    row = _measured_row(contract, p, largest, family)
    suits = _suits(contract, p, ordered, vector)
    if name is not None:
        algorithm = get(collective, name)
        refusal = algorithm.refusal(p) or _disorder(algorithm, ordered)
        if refusal:
            raise ArgumentError(refusal)
        segment = row.segment if row and row.name == algorithm.name else SEGMENT
        reason = "asked for by the caller"
    elif p == 1:
        algorithm, segment = get(collective, names(collective)[0]), SEGMENT
        reason = "one rank only copies"
    elif row and suits(get(collective, row.name)):
        algorithm, segment, reason = get(collective, row.name), row.segment, row.reason
    else:
        algorithm, segment = _cheapest(contract, p, largest, suits), SEGMENT
        reason = "least time by the cost formulas"
        if not row:
            reason += f"; {collective} has not been measured"
        elif ordered:
            reason += " among those that fold in rank order, as op is not commutative"
        else:
            reason += " among those in which no block passes through a third rank"
    override = os.environ.get("COLLECTIVES_SEGMENT")
    if override is not None:
        if not override.isdigit():
            raise ArgumentError(f"COLLECTIVES_SEGMENT is {override!r}, and must be bytes, or 0")
        segment = int(override)
    return Decision(algorithm, int(segment), p, nbytes, reason)


def _blocks(algorithm: Algorithm, p: int) -> int:
    """Return the number of blocks in the caller's whole array."""
    contract = algorithm.collective
    return algorithm.blocks(p) // contract.parts(p) * contract.per_array(p)


class _Row(NamedTuple):
    """What the table chooses."""

    name: str
    segment: int
    reason: str


def _measured_row(contract: Collective, p: int, nbytes: int, family: str) -> _Row | None:
    """Return what the table says, or None if it has nothing on this collective."""
    tables = measured()["tables"]
    known = family if family in tables else "mpich"
    rows = tables[known].get(contract.name)
    if not rows:
        return None
    nearest = min(rows, key=lambda size: (abs(math.log2(int(size) / p)), -int(size)))
    limit, name, segment = next(row for row in rows[nearest] if row[0] is None or nbytes <= row[0])
    upto = "any size" if limit is None else f"up to {size_text(limit)}"
    where = "in shared memory" if known == "shm" else f"with {known}"
    return _Row(name, segment, f"measured fastest {where} on {nearest} ranks, {upto}")


def _suits(
    contract: Collective, p: int, ordered: bool, vector: bool
) -> Callable[[Algorithm], bool]:
    """Return the function that says whether an algorithm may be chosen for a call."""

    def suits(algorithm: Algorithm) -> bool:
        if algorithm.refusal(p) or _disorder(algorithm, ordered):
            return False
        # In an alltoallv, only the ranks that a block goes between know its length.
        third = vector and contract.parts(p) > p and compile(algorithm, p, 0).workspace()
        return not third

    return suits


def _disorder(algorithm: Algorithm, ordered: bool) -> str | None:
    """Say why an algorithm must not fold in this call, or None if it may."""
    if not ordered or algorithm.keeps_order or not algorithm.collective.reduces:
        return None
    collective = algorithm.collective.name
    able = [name for name in names(collective) if get(collective, name).keeps_order]
    return (
        f"op is not commutative, and {collective} {algorithm.name!r} does not fold in rank order; "
        f"pass algorithm=None or one that does: {', '.join(able)}"
    )


def _cheapest(
    contract: Collective, p: int, nbytes: int, suits: Callable[[Algorithm], bool]
) -> Algorithm:
    """Return the included algorithm of least time by its cost formulas."""

    def seconds(algorithm: Algorithm) -> float:
        rounds, sent, folded = algorithm.totals(p) or (math.inf, 0.0, 0.0)
        # Each round waits for a segment of the one before, also where a rank sends little.
        on_the_way = rounds * min(SEGMENT, nbytes / _blocks(algorithm, p))
        return rounds * ALPHA + max(sent * nbytes, on_the_way) * BETA + folded * nbytes * GAMMA

    rows = [get(contract.name, name) for name in names(contract.name)]
    return min((row for row in rows if row.included and suits(row)), key=seconds)
