"""Ranks that share memory: whatever they call, in whatever order, however they are placed."""

import threading
import time
import warnings

import numpy as np
import pytest
from cases import FULL, digest
from forms import CUT, VECTOR, WHOLE, Allreduce, Broadcast
from mpi4py import MPI
from schedules import Schedule

import collectives as cc
from collectives import _core, algorithms
from collectives.process import segment

FORMS = (*WHOLE, *CUT, *VECTOR)
STEPS = 300
SEEDS = range(34 if FULL else 1)  # so that a whole run has 10 000 steps
TINY = 4096  # bytes of a lane, in which short arrays have many segments
LEARNED, STREAMED = 8 << 20, 32 << 20  # bytes of all ranks; as in calls/configure.pxi
COMMUNICATORS = 200 if FULL or MPI.COMM_WORLD.size < 4 else 60


def with_each_algorithm(p, lengths, seed=0, **options):
    """Yield (form, algorithm) for all of them."""
    for form in FORMS:
        for turn, name in enumerate(form.runnable(p)):
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


def test_side_by_side(world, made):
    """Two threads, each with communicators of its own."""
    schedules = [
        Schedule({"shm": made(), "tiny": made(COLLECTIVES_SHM_LANE=TINY)}, seed) for seed in (1, 2)
    ]
    errors = []

    def work(schedule):
        try:
            schedule.run(STEPS // 4)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in schedules]
    for thread in threads:
        thread.start()
    while not errors and any(thread.is_alive() for thread in threads):
        time.sleep(0.005)
    if errors:
        raise errors[0]
    world.agree([schedule.bits for schedule in schedules])


def test_thresholds_of_long_arrays(made):
    """The sizes from which calls learn how to store, and count as larger than the cache."""
    comm = made()
    learned, streamed = (nbytes // comm.size // 4 for nbytes in (LEARNED, STREAMED))
    calls = [(Allreduce, learned + more, 3) for more in (-1, 0, 1)]
    calls += [(Broadcast, learned, 1)]
    calls += [(Allreduce, streamed + more, 1) for more in (-1, 0, 1)]
    for kind, n, turns in calls:
        form = kind(comm.size, n, dtype="int32", root=comm.size - 1)
        for _ in range(turns):
            x, out = form.shared(comm.rank)
            form.verify(form.call(comm, x, out), comm.rank)


def test_each_way_to_store(made):
    """Long arrays go to the cache or past it, each way in turn; also where nothing is aligned."""
    comm = made()
    n = LEARNED // 4 // comm.size + 13
    x = np.arange(n + 1, dtype=np.float32)[1:]
    out = np.empty(n + 3, np.float32)[3:]
    planned = comm.plan("allreduce", x, out)
    for turn in range(40):
        out[:] = -1
        if turn % 4 == 3:
            planned()
        else:
            comm.allreduce(x, out)
        assert np.array_equal(out, x * comm.size)
        out[::17] += comm.rank
        comm.broadcast(out, out, root=comm.size - 1)
        assert out[17] == 18 * comm.size + comm.size - 1


def test_communicators_come_and_go(world, made):
    """They are made of each other, and freed in any order, while others work."""
    rng = np.random.default_rng(5)
    comms = [made().dup()]
    for turn in range(30):
        parent = comms[int(rng.integers(len(comms)))]
        way = int(rng.integers(3))
        if way == 0 and len(comms) < 8:
            comms.append(parent.dup())
        elif way == 1 and len(comms) < 8:
            comms.append(parent.split(0, -parent.rank if turn % 2 else parent.rank))
        elif len(comms) > 1:
            comms.pop(int(rng.integers(len(comms)))).free()
        requests = [each.iallreduce(np.full(turn * 500, each.rank)) for each in comms]
        for each, request in zip(comms, requests, strict=True):
            assert (request.wait() == each.size * (each.size - 1) // 2).all()
    for each in reversed(comms):
        each.free()


def test_many_communicators(world, environ, monkeypatch):
    """Their segments become smaller, and then there are none; the program goes on."""
    monkeypatch.setattr(segment, "_has_warned", False)
    limit = _core.mapped_bytes() + 20 * MPI.COMM_WORLD.size * 8 * segment.LANE_BYTES
    with (
        environ(COLLECTIVES_SHM_LIMIT=str(limit), COLLECTIVES_VALIDATE="0"),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        comms = [cc.Communicator() for _ in range(COMMUNICATORS)]
    x = np.full(3000, world.comm.rank + 1)
    total = world.comm.size * (world.comm.size + 1) // 2
    for comm in comms:
        assert (comm.allreduce(x) == total).all()
    if world.comm.size > 1:
        assert _core.mapped_bytes() <= limit
        assert comms[0].transport == "shm" != comms[-1].transport
    # The first rank of the host says so, once.
    kinds = [each.category for each in caught]
    assert kinds == [cc.errors.SharedMemoryWarning] * (world.comm.rank == 0 < world.comm.size - 1)
    for k in np.random.default_rng(3).permutation(COMMUNICATORS):
        comms[k].free()


def test_one_rank(made):
    """Nothing is shared with nobody."""
    comm = made(MPI.COMM_SELF)
    assert comm._segment is None
    for form, name in with_each_algorithm(1, (0, 1, 1000), dtype="float64"):
        form.verify(form.call(comm, algorithm=name), 0)


@pytest.mark.parametrize("lane", [1, 65, 5000])
def test_small_lanes(made, lane):
    """Whatever number of bytes is allowed works."""
    comm = made(COLLECTIVES_SHM_LANE=lane)
    p = comm.size
    assert p == 1 or comm.transport == "shm"
    for form, name in with_each_algorithm(p, (700,), seed=lane, dtype="complex128"):
        form.verify(form.call(comm, algorithm=name), comm.rank)


def test_more_publications_than_lines(world, made):
    """Such a plan runs over MPI, beside others that do not."""
    comm = made()
    p = comm.size

    @algorithms.algorithm("broadcast", name="crumbs", blocks=64)
    def crumbs(r, p, root):
        for q in range(p):
            if r == root != q:
                yield algorithms.Exchange(send=(q, range(64)))
            elif r == q != root:
                yield algorithms.Exchange(recv=(root, range(64)))

    try:
        requests = []
        for root in range(p):
            requests.append(
                comm.ibroadcast(np.full(1000, comm.rank), root=root, algorithm="crumbs")
            )
            requests.append(comm.ibroadcast(np.full(1000, comm.rank), root=root))
        for k, request in enumerate(requests):
            assert (request.wait() == k // 2).all()
    finally:
        algorithms.unregister("broadcast", "crumbs")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_equal_bits(world, made, dtype):
    """The transport of a plan does not change its result."""
    carriers = {
        "mpi": made(COLLECTIVES_SHM=0),
        "shm": made(),
        "tiny": made(COLLECTIVES_SHM_LANE=TINY),
        "hosts": made(COLLECTIVES_SHM_LANE=TINY, COLLECTIVES_HOST=world.comm.rank % 2),
    }
    p, rank = world.comm.size, world.comm.rank
    for op in ("SUM", "AVG") if dtype == "float32" else ("PROD",):
        for form, name in with_each_algorithm(p, (3, 1009), dtype=dtype, op=op):
            if not form.reduces or (op == "AVG" and "scan" in form.collective):
                continue
            results = [form.call(comm, algorithm=name) for comm in carriers.values()]
            form.verify(results[0], rank)
            if results[0] is not None:
                bits = {way: digest(y) for way, y in zip(carriers, results, strict=True)}
                assert len(set(bits.values())) == 1, (form.name, name, form.n, bits)


# The host that a rank believes to be on.
PLACEMENTS = {
    "halves": lambda r, p: 2 * r // p,
    "in turn": lambda r, p: r % 2,
    "one alone": lambda r, p: int(r == p - 1),
    "one first": lambda r, p: int(r == 0),
    "three": lambda r, p: min(r, 2),
}


@pytest.mark.filterwarnings("ignore::collectives.errors.SharedMemoryWarning")
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("private", [None, 0])
def test_hosts(world, made, placement, private):
    """Plans in which some messages go through shared memory and some through MPI.

    On one of the hosts there may be no shared memory.
    """
    p, rank = world.comm.size, world.comm.rank
    host = PLACEMENTS[placement](rank, p)
    shm = {"COLLECTIVES_SHM_LIMIT": 1} if host == private else {}
    comm = made(COLLECTIVES_HOST=host, COLLECTIVES_SHM_LANE=TINY, **shm)
    assert comm.nodes == len({PLACEMENTS[placement](r, p) for r in range(p)})
    x = comm.empty(5000, "int16")
    x[:] = 1
    assert (comm.allreduce(x, x) == p).all()
    requests = []
    for form, name in with_each_algorithm(p, (2, 1500), seed=3, dtype="int16"):
        requests.append((form, name, form.call(comm, algorithm=name, start=True)))
        if len(requests) == 6:
            for started, _, request in requests[::-1]:
                started.verify(request.wait(), rank)
            requests.clear()
    for started, _, request in requests:
        started.verify(request.wait(), rank)
