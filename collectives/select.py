"""Which algorithm, and why: the caller's word, else the measured table.

`measured.json` has, for each family of MPI, collective and number of ranks, the algorithm and
segment size that were fastest up to a number of bytes, with machine, date and command. The row
with the nearest number of ranks (on a logarithmic scale) is used; a requirement that p does not
meet excludes an algorithm, and nothing is ever put in the place of one that was asked for.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from collectives import spec
from collectives.errors import ArgumentError
from collectives.registry import Algorithm, get, names

__all__ = ["Decision", "decide"]

# Bytes of a segment for an algorithm that the table does not choose at this size, so that it has
# not measured its best segment.
SEGMENT = 128 << 10


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
            f"{row.collective.name} of {size_text(self.nbytes)} on {_count(self.p, 'rank')}: "
            f"{row.name}",
            f"  why       {self.reason}",
            f"  what      {row.summary}",
        ]
        if row.cost:
            rounds, sent, folded = row.cost.evaluate(self.p, **row.parameters)
            lines += [
                f"  rounds    {rounds:g}",
                f"  per rank  sends up to {size_text(sent * self.nbytes)}, "
                f"folds up to {size_text(folded * self.nbytes)}",
                f"  time      {row.cost}",
            ]
        blocks = row.blocks(self.p)
        piece = self.segment or -(-self.nbytes // blocks)
        lines.append(
            f"  pieces    {_count(blocks, 'block')}, in segments of {size_text(piece)} at most"
        )
        if row.source:
            lines.append(f"  source    {row.source}")
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_text(nbytes: float) -> str:
    """Write a number of bytes for people: ``1.5 MiB``. Local."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


@cache
def measured() -> dict[str, Any]:
    """Return the shipped table. Local."""
    text = files("collectives").joinpath("measured.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def decide(
    collective: str, name: str | None, *, p: int, nbytes: int, family: str = "mpich",
    ordered: bool = False, vector: bool = False,
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
        Bytes of the message.
    family : str
        Family of the MPI: ``"mpich"``, ``"openmpi"``, ``"intel"`` or ``"other"``.

    Raises
    ------
    ArgumentError
        If there is no such algorithm, or it cannot run on `p` ranks.
    """
    contract = spec.collective(collective)
    # The core keeps one decision for all sizes with equally many bits.
    largest = (1 << nbytes.bit_length()) - 1
    tables = measured()["tables"]
    known = family if family in tables else next(iter(tables))
    if vector and name is None and collective == "alltoall":
        name = "direct"
    rows = tables[known].get(contract.name, {"2": [[None, names(contract.name)[-1], 131072]]})
    nearest = min(rows, key=lambda size: (abs(math.log2(int(size) / p)), -int(size)))
    limit, chosen, segment = next(
        row for row in rows[nearest] if row[0] is None or largest <= row[0]
    )
    if name is not None:
        algorithm = get(collective, name)
        refusal = algorithm.refusal(p)
        if refusal:
            raise ArgumentError(refusal)
        reason = "asked for by the caller"
        if chosen != name:
            segment = SEGMENT
    else:
        algorithm = get(collective, chosen)
        upto = "any size" if limit is None else f"up to {size_text(limit)}"
        reason = f"measured fastest with {known} on {nearest} ranks, {upto}"
        if p == 1:
            algorithm, reason = get(collective, names(collective)[0]), "one rank only copies"
    override = os.environ.get("COLLECTIVES_SEGMENT")
    if override is not None:
        if not override.isdigit():
            raise ArgumentError(f"COLLECTIVES_SEGMENT is {override!r}, and must be bytes, or 0")
        segment = int(override)
    return Decision(algorithm, int(segment), p, nbytes, reason)
