"""Measure how good the model is: its parameters, and the times that it should predict.

Run it under the MPI that is to be measured, once for each number of ranks, on a quiet machine::

    mpiexec -n 2 python benchmarks/measure_simulation.py benchmarks/results/model/mpich.json

It replaces the runs of that number of ranks in the file, collective by collective, and leaves the
others. Both transports are measured: shared memory, and the MPI between the ranks of a host. Where
each rank is on a host of its own, there is the MPI only, and the machine is a flat network.

The machine may change while it is measured: so parameters are measured anew before each collective,
and predict the times of that one.

Parameters come from small measurements only, never from the collectives that are predicted: calls
of one rank, copies and folds, and pairs of ranks that pass a block back and forth (`passing`).

All ranks begin a call at one time on the clock, which they have agreed on before; it has taken as
long as the last of them says. With more ranks than cores they cannot do so, and hosts have clocks
of their own: there calls follow each other, with a barrier behind each where ranks could run ahead,
whose time is taken off. The result is the time below which a tenth of the tries lie. If the kernel
reports that another process had a core, the measurement is tried again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simulation
from clocks import Chain, Clock, Tries, own_core, partner_core, timed
from mpi4py import MPI
from turns import options, sizes

import collectives as cc
from collectives import _core, algorithms
from collectives.algorithms import Exchange
from collectives.choice import select
from collectives.cli.arguments import operations
from collectives.measuring import candidates, state
from collectives.measuring.contest import environment
from collectives.measuring.operations import OPERATIONS, Arrays
from collectives.process import binding
from collectives.text import files

SHORT, LONG = 2, 10  # how often blocks are passed, for the difference
PASSED = (8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 1 << 20)  # bytes of a block
ARRAYS = (2 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20)
COMMAND = "benchmarks/measure_simulation.py"
PATTERNS = ("hops", "swaps", "bursts")
LEARNED = 8 << 20  # bytes of all ranks from which on the library tries how to store (configure.pxi)


def passing(name: str, pairs: int) -> None:
    """Register an allgather in which pairs pass their blocks on `k` times before it.

    Parameters
    ----------
    name : str
        ``"hops"``: the block of the first rank goes back and forth. ``"swaps"``: both go, at once.
        ``"bursts"``: the first rank sends its own again and again, and waits for nothing.
    pairs : int
        How many pairs do so: ranks 0 and 1, 2 and 3, ...
    """

    @algorithms.algorithm("allgather", name=name, parameters={"k": 2})
    def generate(r, p, k):
        "Pairs pass blocks on before an allgather."
        other, mine, theirs = r ^ 1, r, r ^ 1
        first = r & ~1
        for turn in range(k if other < p and r < 2 * pairs else 0):
            sender = first if name == "bursts" else first + turn % 2
            if name == "swaps":
                yield Exchange(send=(other, mine), recv=(other, theirs))
                mine, theirs = theirs, mine
            elif r == sender:
                yield Exchange(send=(other, first))
            else:
                yield Exchange(recv=(other, first))
        peers = [s for s in range(p) if s != r]
        yield Exchange(send=[(s, r) for s in peers], recv=[(s, s) for s in peers])


def memory(mpi: Any, cores: int) -> dict[str, list[list[float]]]:
    """Return seconds of copies and folds: rows of bytes, with one core at work, and with all."""
    rank, p = mpi.Get_rank(), mpi.Get_size()
    add = cc.SUM.code
    nothing = np.zeros(1, np.float32)
    empty = timed(lambda: np.copyto(nothing, nothing))
    idle = timed(partial(_core.fold, add, nothing, nothing, nothing))
    rows: dict[str, list[list[float]]] = {"copy": [], "fold": []}
    for nbytes in ARRAYS:
        a, b, c = (np.ones(nbytes // 4, np.float32) for _ in range(3))
        copies = (
            (partial(np.copyto, c, a), empty),
            (partial(_core.stream_copy, c.view(np.uint8), a.view(np.uint8)), empty),
        )
        folds = ((partial(_core.fold, add, c, a, b), idle),)
        for name, calls in (("copy", copies), ("fold", folds)):
            row = [float(nbytes)]
            for workers in (1, min(p, cores)):
                mpi.Barrier()
                seconds = None
                if rank < workers:
                    seconds = min(timed(call) - other for call, other in calls)
                state.rest(mpi)
                told = [each for each in mpi.allgather(seconds) if each is not None]
                row.append(max(told))
            rows[name].append(row)
    return rows


def passed(
    comm: cc.Communicator, clock: Clock | Chain, name: str, sizes: tuple[int, ...]
) -> list[list[float]]:
    """Return rows of bytes, two numbers of times that a block of so many is passed, and the seconds
    of each.
    """
    rows = []
    for nbytes in sizes:
        x = np.ones(max(1, nbytes // 4), np.float32)
        out = np.empty(comm.size * x.size, np.float32)
        # Lanes have less room where more is published.
        short = comm.nodes == 1 and nbytes > 64 << 10
        few, many = SHORT, SHORT + 2 if short else LONG
        row = [float(nbytes), few, many]
        for k in (few, many):
            call = partial(comm.allgather, x, out, algorithm=f"{name}:{k}")
            row.append(clock.seconds(call)[-1])
        rows.append(row)
    return rows


def published(comm: cc.Communicator, clock: Clock, sizes: tuple[int, ...]) -> list[list[float]]:
    """Return rows of bytes, and the seconds of a rank that publishes so many and does not wait."""
    rows = []
    for nbytes in sizes:
        x = np.ones(max(1, nbytes // 4), np.float32)
        out = x if comm.rank == 0 else np.empty_like(x)
        call = partial(comm.broadcast, x if comm.rank == 0 else out, out, algorithm="flat")
        rows.append([float(nbytes), clock.seconds(call)[0]])
    return rows


def watch(comm: cc.Communicator, cores: int) -> Clock | Chain:
    """Return how calls of a communicator are timed."""
    return Clock(comm) if comm.nodes == 1 and comm.size <= cores else Chain(comm, cores)


def host_facts(comm: cc.Communicator, cores: int) -> dict[str, Any]:
    """Return the measurements on one host, beside copies. Collective."""
    shared = comm._segment is not None
    sizes, sent = (PASSED[:-1], PASSED[:-1]) if shared else (PASSED, PASSED[:1])
    wanted = {"COLLECTIVES_SEGMENT": "0"} | ({} if shared else {"COLLECTIVES_SHM": "0"})
    facts: dict[str, Any] = {}
    workers = max(2, min(comm.size, cores) // 2 * 2)
    with environment(**wanted), own_core(comm.rank, workers):
        few = comm.split(0 if comm.rank < workers else None)
        if few is not None:
            clock = Clock(few)
            facts["hops"] = passed(few, clock, "hops", sizes)
            facts["swaps"] = passed(few, clock, "swaps", sizes)
            facts["published"] = published(few, clock, sent)
        state.rest(comm.mpi)
        facts = comm.mpi.bcast(facts)
    if comm.size > cores:
        with environment(**wanted), partner_core(comm.rank, cores):
            whole = comm.dup()
            facts["turns"] = passed(whole, watch(whole, cores), "swaps", (8,))
    return facts


def network_facts(comm: cc.Communicator, cores: int) -> dict[str, Any]:
    """Return the measurements of messages between hosts, with all of them at work. Collective."""
    alone = comm.split(comm.rank)
    assert alone is not None
    x = np.ones(2, np.float32)
    call = timed(partial(alone.allreduce, x, np.empty_like(x)))
    facts: dict[str, Any] = {"call": comm.mpi.allreduce(call, op=MPI.MAX)}
    with environment(COLLECTIVES_SEGMENT="0"):
        whole = comm.dup()
        clock = watch(whole, cores)
        facts["bursts"] = passed(whole, clock, "bursts", PASSED[:1])
        facts["swaps"] = passed(whole, clock, "swaps", PASSED)
    return facts


def facts(communicators: list[cc.Communicator], cores: int) -> list[dict[str, Any]]:
    """Return the measurements beside collectives, for each communicator. Collective."""
    comm = communicators[0]
    common: dict[str, Any] = {"p": comm.size, "cores": cores}
    common["round_trip"] = state.round_trip(comm, comm.mpi)
    common["lane"] = comm._segment.lane_bytes if comm._segment else 0
    with own_core(comm.rank, min(comm.size, cores)):
        common.update(memory(comm.mpi, cores))
    found = []
    for each in communicators:
        beside = host_facts if each.nodes == 1 else network_facts
        found.append({**common, **beside(each, cores)})
    return found


def points(
    comm: cc.Communicator, cores: int, collective: str, sizes: list[int]
) -> list[dict[str, Any]]:
    """Return the measured time of every algorithm at every size. Collective."""
    p, rank = comm.size, comm.rank
    clock = watch(comm, cores)
    operation = OPERATIONS[collective]
    names = [name for name in candidates.chosen("all", collective, p)[0] if name not in PATTERNS]
    rows = []
    for wanted in sizes if operation.moves else [0]:
        count = operation.elements(wanted // 4, p)
        nbytes = 4 * count if operation.moves else 1
        parts = operation.contract.inputs(rank, p, 0)
        length = sum(size for _, _, size in operation.pieces(parts, count, p))
        arrays = Arrays(operation, count, p, rank, 0, cc.SUM, np.ones(length, np.float32))
        for name in names:
            decision = select.decide(collective, name, p=p, nbytes=nbytes, family=comm.transport)
            learned = comm.transport == "shm" and nbytes * p >= LEARNED
            call, warm = arrays.ours(comm, name), 6 if learned else 2
            if isinstance(clock, Clock):
                seconds = clock.seconds(call, warm)[-1]
            else:
                seconds = clock.seconds(call, warm, operation.runs_ahead)[-1]
            rows.append(
                {
                    "algorithm": name,
                    "nbytes": nbytes,
                    "segment": decision.segment,
                    "measured": seconds,
                }
            )
    return rows


def least(one: Any, other: Any) -> Any:
    """Return the lesser of two passes, in each time of which disturbances are more or less."""
    if isinstance(one, dict):
        return {key: least(one[key], other[key]) for key in one}
    if isinstance(one, list):
        return [least(*each) for each in zip(one, other, strict=True)]
    return min(one, other) if isinstance(one, float) else one


def main() -> None:
    """Measure, predict, and write what came out on rank 0."""
    arguments = options(
        __doc__,
        file=Path,
        collectives=(operations, "all"),
        begin=8,
        end=16 << 20,
        factor=8,
        cores=0,
        label="",
        repeat=1,
        tries=4,
    )
    Tries.number = arguments.tries
    listed = list(sizes(arguments.begin, arguments.end, arguments.factor))
    began = time.monotonic()
    comm = cc.Communicator(timeout=60)
    if comm.size < 2:
        raise SystemExit("this needs 2 ranks or more")
    communicators = [comm]
    if comm._segment is not None:
        with environment(COLLECTIVES_SHM="0"):
            communicators.append(cc.Communicator(timeout=60))
    p, cores = comm.size, arguments.cores or comm._hosts.cores * comm.nodes
    if comm.nodes not in (1, p):
        raise SystemExit("all ranks must be on one host, or each on one of its own")
    passing("hops", 1)
    passing("swaps", p // 2)
    passing("bursts", p // 2)
    for collective in arguments.collectives:
        passes: Any = None
        for _ in range(arguments.repeat):
            # Before and after, as one disturbance of them spoils all predictions.
            found = facts(communicators, cores)
            rows = [points(each, cores, collective, listed) for each in communicators]
            found = least(found, facts(communicators, cores))
            made = [
                {"facts": some, "rows": measured}
                for some, measured in zip(found, rows, strict=True)
            ]
            passes = least(passes, made) if passes else made
        runs = []
        for each, measured in zip(communicators, passes, strict=True):
            label = arguments.label or ("shm" if each._segment else "MPI")
            place = {"ranks": p, "transport": label, "collective": collective}
            runs.append({**place, **measured})
        if comm.rank == 0:
            save(arguments, runs)
            seconds = time.monotonic() - began
            print(f"{collective} on {p} ranks, {seconds:.0f} s", file=sys.stderr, flush=True)
    if comm.rank == 0:
        print(simulation.text(json.loads(arguments.file.read_text())))


def save(arguments: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Put runs into the file, with their predicted times, in the place of earlier runs."""
    document: dict[str, Any] = {"runs": []}
    if arguments.file.exists():
        document = json.loads(arguments.file.read_text())
    new = [place_of(run) for run in runs]
    document["runs"] = [run for run in document["runs"] if place_of(run) not in new]
    head = {
        "mpi": binding.library_name(MPI),
        "host": state.host(),
        "date": datetime.date.today().isoformat(),
        "command": f"mpiexec -n RANKS python {shlex.join([COMMAND, *sys.argv[1:]])}",
    }
    # The predictions are those of the file.
    made = simulation.rounded(runs)
    simulation.predict({**head, "runs": made})
    document.update({**head, "runs": document["runs"] + made})
    files.write_json(arguments.file, simulation.rounded(document))


def place_of(run: dict[str, Any]) -> tuple[int, str, str]:
    """Return what tells a run from the others in a file."""
    return run["ranks"], run["transport"], run["collective"]


if __name__ == "__main__":
    main()
