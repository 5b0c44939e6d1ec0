"""Compositions on hosts: which ranks share one is pretended, in blocks, in turns and unequally."""

import numpy as np
import pytest
from cases import digest
from conftest import environment
from forms import Allgather, Allgatherv, Allreduce, Broadcast, Reduce, ReduceScatter, ReduceScatterv
from mpi4py import MPI

import collectives as cc
from collectives.algorithms.composition import candidates
from collectives.errors import ArgumentError

FORMS = (Allreduce, Reduce, Broadcast, Allgather, ReduceScatter, Allgatherv, ReduceScatterv)

PLACES = {
    "blocks": lambda r, p: 2 * r // p,
    "cyclic": lambda r, p: r % 2,
    "one apart": lambda r, p: int(r == p - 1),
}


@pytest.fixture(scope="module", params=PLACES)
def comm(request):
    mpi = MPI.COMM_WORLD
    host = f"place {PLACES[request.param](mpi.rank, mpi.size)}"
    with environment(COLLECTIVES_HOST=host, COLLECTIVES_VALIDATE="0"):
        made = cc.Communicator()
    yield made
    made.free()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_candidate(comm, segments, form):
    """Equal to NumPy's results, whole and in segments, for the first and the last root."""
    p = comm.size
    names = []
    for name in candidates(form.collective):
        row = cc.algorithms.get(form.collective, name, comm._chooser.groups)
        if row.refusal(p) is None:
            names.append(name)
    for name in [*names, None]:
        for n in (1, 1009):
            one = form(p, n, dtype="float32", root=p - 1 if n == 1 else 0, seed=n)
            one.verify(one.call(comm, algorithm=name), comm.rank)
    with segments(comm, 64):
        for name in names[:1] + names[-1:]:
            one = form(p, 1009, dtype="int32", seed=1)
            one.verify(one.call(comm, algorithm=name), comm.rank)


def test_same_bits_on_all_ranks(comm):
    x = np.random.default_rng(comm.rank).standard_normal(1009)
    for name in candidates("allreduce"):
        comm.barrier(algorithm="hierarchical(flat,dissemination)")
        found = MPI.COMM_WORLD.allgather(digest(comm.allreduce(x, algorithm=name)))
        assert len(set(found)) == 1


def test_choice(comm):
    """Hosts of several ranks run a composition; hosts of one rank, and one host, do not."""
    row = comm.explain("allreduce", 1 << 20).algorithm
    shares = comm.nodes > 1 and comm.size > 2
    assert row.name.startswith("hierarchical(") == shares
    if shares:
        assert row.groups.of[comm.rank] == comm.node


def test_order(comm):
    """An operation that is not commutative runs where rank order is kept, and is refused else."""

    def left(incoming, accumulator):
        accumulator[:] = incoming

    x = np.array([1.0 + comm.rank, 2.0])
    first = cc.reduction(left, commutative=False)
    name = "hierarchical(flat,all_to_all)"
    if comm.explain("allreduce", algorithm=name).algorithm.keeps_order:
        np.testing.assert_array_equal(comm.allreduce(x, op=first, algorithm=name), [1.0, 2.0])
    else:
        with pytest.raises(ArgumentError, match="does not fold in rank order"):
            comm.allreduce(x, op=first, algorithm=name)
    np.testing.assert_array_equal(comm.allreduce(x, op=first), [1.0, 2.0])
