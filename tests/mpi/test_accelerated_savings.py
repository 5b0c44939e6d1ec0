"""Estimates of the time that collectives here have saved, beside MPI's own."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from accelerated import Pair, as_it_is, every_second
from mpi4py import MPI

from collectives.mpi4py import Saved, accelerate, communicators, savings


@pytest.fixture
def comm(pair: Pair) -> Any:
    made = accelerate(pair.theirs.Dup())
    yield made
    made.Free()


def some_calls(comm: Any) -> dict[str, int]:
    """Make calls of all kinds; return the number of those that are compared."""
    p = comm.size
    x, y, parts = np.ones(2), np.ones(2), np.ones(2 * p)
    for _ in range(5):
        comm.Allreduce(x, y)
    comm.Allreduce(np.ones(1000), np.ones(1000))
    for form in (as_it_is, every_second):  # the second by a datatype
        comm.Bcast(form([1.0, 2.0])[0])
    comm.Barrier()
    comm.barrier()
    for name in ("Reduce", "Scan", "Exscan"):
        getattr(comm, name)(x, y)
    for name in ("Allgather", "Allgatherv", "Gather", "Gatherv"):
        getattr(comm, name)(x, parts)
    for name in ("Scatter", "Scatterv", "Reduce_scatter_block"):
        getattr(comm, name)(parts, y)
    comm.Reduce_scatter(parts, y, [2] * p)
    for name in ("Alltoall", "Alltoallv"):
        getattr(comm, name)(parts, np.ones(2 * p))
    for name in ("bcast", "gather", "allgather", "reduce", "allreduce", "scan", "exscan"):
        getattr(comm, name)(1.5)
    comm.scatter(range(p))
    comm.alltoall(range(p))
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        comm.Iallreduce(x, y).Wait()
    return dict.fromkeys(savings.ARGUMENTS, 1) | {"Allreduce": 6, "Bcast": 2}


def test_all_collectives_are_compared(comm: Any) -> None:
    wanted = some_calls(comm)
    before = comm.served()
    saved = comm.saved()
    assert {name: each.calls for name, each in saved.items()} == wanted
    assert all(math.isfinite(each.seconds) for each in saved.values())
    assert comm.allgather(saved) == [saved] * comm.size
    after = comm.served()
    assert after.pop("allgather").here == 2
    assert before.pop("allgather").here == 1
    assert after == before  # nothing of the comparison counts
    comm.Barrier()


def test_nothing_to_compare(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicators, "FIRST", 3)
    fresh, part = accelerate(pair.theirs.Dup()), pair.ours.Split()
    part.Barrier()  # in MPI
    assert fresh.saved() == part.saved() == {}
    assert part._state.comm is None
    for each in (fresh, part):
        each.Free()


def test_sizes(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of about the same size are compared at their mean, and long ones in proportion."""
    lengths = []

    def arguments(n: int, p: int) -> tuple[Any, ...]:
        lengths.append(8 * n)
        return (np.ones(n),)

    monkeypatch.setattr(savings, "_gain", lambda *args: 2.0)
    monkeypatch.setattr(savings, "LONGEST", 4096)
    monkeypatch.setitem(savings.ARGUMENTS, "Bcast", arguments)
    for nbytes in (512, 512, 1000, 65536):
        comm.Bcast(np.zeros(nbytes, np.uint8))
    comm.Bcast([np.zeros(2048, np.uint8), (512, 3), MPI.BYTE])
    assert comm.saved() == {"Bcast": Saved(5, 4 * 2.0 + 16 * 2.0)}
    assert lengths == [(3 * 512 + 1000) // 4 // 8 * 8, 4096]


def test_communicators_of_a_report_are_compared_together(
    comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a report does not grow with the number of communicators."""
    gains = iter([2.0, 3.0])
    monkeypatch.setattr(savings, "_gain", lambda *args: next(gains))
    row = savings.Row
    rows = [row("Bcast", 1, 512), row("Bcast", 2, 8192), row("Bcast", 3, 3 * 1000)]
    assert comm._estimate(rows) == {"Bcast": Saved(6, 4 * 2.0 + 2 * 3.0)}


def test_sizes_of_parts(comm: Any) -> None:
    """Each is that of all parts, where a rank knows its own only, it takes all to be alike."""
    p, me = comm.size, comm.rank
    counts = list(range(1, p + 1))
    x, y = np.zeros(counts[me]), np.zeros(sum(counts))
    comm.Gatherv(x, [y, counts], root=p - 1)
    comm.Scatterv([y, counts], x, root=p - 1)
    comm.Allgatherv(x, [y, counts])
    comm.Reduce_scatter(y, x, counts)
    mine = 8 * (sum(counts) if me == p - 1 else counts[me] * p)
    names = {"Gatherv": mine, "Scatterv": mine, "Allgatherv": y.nbytes, "Reduce_scatter": y.nbytes}
    assert comm._state.rows() == [(name, 1, names[name]) for name in sorted(names)]


def test_the_estimate(comm: Any) -> None:
    """A call that takes ten milliseconds less saves about as much each time."""
    comm.Barrier()
    slow, fast = SimpleNamespace(Barrier=lambda: time.sleep(0.01)), SimpleNamespace(Barrier=int)
    rows = [savings.Row("Barrier", 10, 0), savings.Row("Barrier", 20, 0)]
    for ways, least, most in (((slow, fast), 0.15, math.inf), ((fast, slow), -math.inf, -0.15)):
        saved = savings.estimate(comm._comm, *ways, rows)
        assert saved["Barrier"].calls == 30
        assert least < saved["Barrier"].seconds < most
