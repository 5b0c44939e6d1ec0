"""The function that simulates a call: `columns` has its schedule, and `clock` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.exchange import BlockRanges
from collectives.algorithms.registry import Algorithm, get
from collectives.algorithms.spec import collective as contract_of
from collectives.errors import ArgumentError
from collectives.plans.program import WINDOW
from collectives.simulation.clock import Clock
from collectives.simulation.columns import (
    LENGTHS,
    STARTS,
    Columns,
    Scattered,
    columns,
    run_number,
)
from collectives.simulation.networks import Network, Topology
from collectives.simulation.result import RECORDED, Simulation


def simulate(
    collective: str,
    algorithm: str | Algorithm,
    nbytes: int,
    topology: Topology,
    *,
    root: int = 0,
    segment: int = 0,
    window: int = WINDOW,
    record: bool | None = None,
) -> Simulation:
    """Run an algorithm in simulated time. Local.

    Parameters
    ----------
    collective : str
    algorithm : str or Algorithm
        Its name, as in ``algorithm=`` of a call, or a row of the registry.
    nbytes : int
        Bytes of the caller's whole array, the larger one if input and output differ in size.
    topology : Topology
        The machine, which also determines the number of ranks. An algorithm such as
        ``hierarchical(direct,ring)`` has the hosts of the machine as its groups.
    root : int
        The root of a rooted collective.
    segment : int
        The largest size of a segment in bytes; 0 for whole blocks. Longer blocks are cut as the
        executor cuts them.
    window : int
        Number of segments that a rank has in flight.
    record : bool, optional
        Whether to record each message; by default if there are at most 200 000.

    Raises
    ------
    ArgumentError
        If there is no such algorithm, it cannot run on so many ranks, or a number is out of range.
    ProofError
        If a rank sends a message that no rank receives, or ranks wait for each other; see `check`.

    Examples
    --------
    >>> from collectives.simulate import simulate
    >>> from collectives.topology import Flat
    >>> machine = Flat(4, alpha=1e-6, beta=1e-9, gamma=0)
    >>> ring = simulate("allreduce", "ring", 4000, machine)
    >>> print(f"{ring.time * 1e6:g} us")  # 6 rounds of 1 us, and 1000 bytes in each
    12 us
    """
    return simulate_again(
        None,
        collective,
        algorithm,
        nbytes,
        topology,
        root=root,
        segment=segment,
        window=window,
        record=record,
    )


def simulate_again(
    kept: Kept | None,
    collective: str,
    algorithm: str | Algorithm,
    nbytes: int,
    topology: Topology,
    *,
    root: int = 0,
    segment: int = 0,
    window: int = WINDOW,
    record: bool | None = None,
) -> Simulation:
    """Do as `simulate`, with the schedule that is kept if it is that of the call before. Local."""
    row = _checked(collective, algorithm, nbytes, topology, root, segment, window)
    assert isinstance(topology, Network)  # checked above
    p = topology.p
    cut = Cut(nbytes, row.array_blocks(p))
    segments = segments_of(row, p, nbytes, segment)
    if kept is None:
        messages = columns(row, p, root, size=cut.total, apart=segments > 1)
    else:
        messages = kept.columns(row, p, root, cut, segments > 1)
    total = len(messages.target) * segments
    clock = Clock(
        messages,
        topology,
        segments,
        window,
        total <= RECORDED if record is None else record,
    )
    clock.run(row.title(p, root))
    return Simulation(
        row,
        nbytes,
        root,
        segments,
        topology,
        float(clock.finish.max()),
        clock.finish,
        clock.rounds,
        total,
        clock.sent_bytes,
        dict(zip(topology.names, clock.carried.tolist(), strict=True)),
        clock.transfers(),
        clock.critical_path(),
    )


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

    def sizes(self, runs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the bytes of each of many runs of blocks, as `run_number` has them. Local."""
        starts, lengths = np.divmod(runs.astype(np.int64), LENGTHS)
        if not self.rest:
            found = (self.each * lengths).astype(np.float64)
        else:
            found = (self.start(starts + lengths) - self.start(starts)).astype(np.float64)
        same = found.size and (found == found[0]).all()
        return np.broadcast_to(found[0], found.shape) if same else found

    def total(self, blocks: Sequence[Any]) -> Any:
        """Return the bytes of blocks that travel together. Local."""
        if not self.rest:
            return self.each * len(blocks)
        if isinstance(blocks, range | BlockRanges) and blocks.step == 1:
            return self.start(blocks.stop) - self.start(blocks.start)
        return sum(self.size(b) for b in blocks)


class Kept:
    """The schedule of the last simulation, for others that differ in bytes or segments."""

    def __init__(self) -> None:
        self.of: tuple[Any, ...] = ()
        self.made: dict[bool, Columns | None] = {}

    def columns(self, row: Algorithm, p: int, root: int, cut: Cut, apart: bool) -> Columns:
        """Return the schedule of an algorithm, for arrays that are cut in this way. Local."""
        if self.of != (row, p, root):
            self.of, self.made = (row, p, root), {}
        if apart not in self.made:
            self.made[apart] = None
            if row.blocks(p) << row.scratch < STARTS:
                with suppress(Scattered):
                    self.made[apart] = columns(row, p, root, size=run_number, apart=apart)
        made = self.made[apart]
        if made is None:
            return columns(row, p, root, size=cut.total, apart=apart)
        return replace(made, size=cut.sizes(made.size))


def segments_of(row: Algorithm, p: int, nbytes: int, segment: int) -> int:
    """Return the number of segments that the longest block is cut into. Local."""
    longest = -(-nbytes // row.array_blocks(p))
    return max(1, -(-longest // segment)) if segment else 1


def _checked(
    collective: str,
    algorithm: str | Algorithm,
    nbytes: int,
    topology: Topology,
    root: int,
    segment: int,
    window: int,
) -> Algorithm:
    """Check the arguments of `simulate`; return the row of the registry."""
    row = algorithm if isinstance(algorithm, Algorithm) else get(collective, algorithm)
    if not isinstance(topology, Network):
        raise ArgumentError(f"topology is {topology!r}, and must be one of collectives.topology")
    p = topology.p
    if row.collective.name != collective:
        contract_of(collective)  # refuses a name that no collective has
        raise ArgumentError(
            f"{row.name!r} is an algorithm of {row.collective.name}, not {collective}"
        )
    for what, value, least in (
        ("nbytes", nbytes, 0),
        ("segment", segment, 0),
        ("window", window, 1),
    ):
        if not isinstance(value, int | np.integer):
            raise ArgumentError(f"{what} is {value!r}, and must be a whole number")
        if value < least:
            raise ArgumentError(f"{what} is {value}, and must be {least} or more")
    if not 0 <= root < p:
        raise ArgumentError(f"root is {root}, and must be in 0..{p - 1}")
    if topology.groups is not None:
        row = row.placed(topology.groups)
    refusal = row.refusal(p)
    if refusal:
        raise ArgumentError(refusal)
    return row.at(p, nbytes)
