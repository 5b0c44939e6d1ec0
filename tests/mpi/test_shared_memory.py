"""Ranks that share memory: whatever they call, in whatever order, however they are placed."""

import numpy as np
import pytest
from cases import FULL, digest
from forms import CUT, VECTOR, WHOLE
from mpi4py import MPI
from schedules import Schedule

import collectives as cc

FORMS = (*WHOLE, *CUT, *VECTOR)
STEPS = 300
SEEDS = range(34 if FULL else 1)  # so that a whole run has 10 000 steps
TINY = 4096  # bytes of a lane, in which short arrays have many segments
COMMUNICATORS = 200


def runnable(form, p):
    return [
        name
        for name in form.algorithms()
        if cc.algorithms.get(form.collective, name).refusal(p) is None
    ]


def with_each_algorithm(p, lengths, seed=0, **options):
    """Yield (form, algorithm) for all of them."""
    for form in FORMS:
        for turn, name in enumerate(runnable(form, p)):
            for n in lengths:
                yield form(p, n, root=(turn + seed) % p, seed=seed, **options), name


@pytest.fixture
def made(environ):
    """Return a function that makes communicators under an environment; they are freed after."""
    comms = []

    def make(mpi=MPI.COMM_WORLD, **variables):
        variables = {"COLLECTIVES_VALIDATE": "0"} | variables
        with environ(**{name: str(value) for name, value in variables.items()}):
            comms.append(cc.Communicator(mpi))
        return comms[-1]

    yield make
    for comm in reversed(comms):
        comm.free()


def variety(make):
    """Return communicators of all kinds."""
    rank = MPI.COMM_WORLD.rank
    comms = {
        "world": make(),
        "dup": make(),
        "validated": make(COLLECTIVES_VALIDATE=1),
        "tiny": make(COLLECTIVES_SHM_LANE=TINY),
        "streamed": make(COLLECTIVES_SHM_STORES="streamed", COLLECTIVES_SHM_LANE=TINY * 4),
        "file": make(COLLECTIVES_SHM="file"),
        "mpi": make(COLLECTIVES_SHM=0),
        "hosts": make(COLLECTIVES_HOST=rank // 2),
        "self": make(MPI.COMM_SELF),
    }
    for name, color, key in (("halves", rank % 2, rank), ("reversed", 0, -rank)):
        mpi = MPI.COMM_WORLD.Split(color, key)
        comms[name] = make(mpi)
        mpi.Free()
    return comms


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules(world, made, seed):
    """Mixtures of everything, against NumPy."""
    schedule = Schedule(variety(made), seed)
    schedule.run(STEPS)
    world.agree(digest(np.array(schedule.bits)))
