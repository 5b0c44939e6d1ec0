"""Windows of MPI beside accelerated communicators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from accelerated import Pair
from mpi4py import MPI

MAKES: dict[str, Any] = {
    "Create": lambda comm: MPI.Win.Create(np.zeros(4), comm=comm),
    "Allocate": lambda comm: MPI.Win.Allocate(32, comm=comm),
}


def test_a_subclass_makes_its_own_windows(pair: Pair) -> None:
    class Window(MPI.Win):
        pass

    for make in (Window.Create, Window.Allocate, Window.Create_dynamic):
        args = (np.zeros(4),) if make == Window.Create else (32,)
        window = make(*(() if make == Window.Create_dynamic else args), comm=pair.ours)
        assert type(window) is Window
        window.Free()


@pytest.mark.several
@pytest.mark.parametrize("name", ["Barrier", "barrier"])
@pytest.mark.parametrize("make", MAKES)
def test_a_barrier_makes_progress_on_windows(pair: Pair, make: str, name: str) -> None:
    """`Win.Test` finds messages that have arrived during the barrier, as with MPI's own."""
    results = []
    for comm in pair:
        barrier = getattr(comm, name)
        window = MAKES[make](comm)
        everybody = window.Get_group()
        others = everybody.Excl([0]) if comm.rank == 0 else everybody.Incl([0])
        for _ in range(5):
            if comm.rank == 0:
                window.Start(others)
                barrier()
                window.Complete()
                barrier()
            else:
                window.Post(others)
                early = window.Test()
                barrier()
                barrier()
                late = window.Test()
                if not late:
                    window.Wait()
                results.append((early, late))
        for each in (others, everybody, window):
            each.Free()
    assert results == [(False, True)] * len(results)
