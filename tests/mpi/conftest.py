"""Tests under an outer launcher: ``mpiexec -n 4 python -m pytest tests/mpi``.

All ranks run the same tests.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
import zlib
from typing import Any, NamedTuple

os.environ.setdefault("COLLECTIVES_VALIDATE", "1")  # all communicators read it

from together import *  # noqa: F403  pytest's hooks, and the environment, which comes first

import cases  # isort: skip
import pytest
from mpi4py import MPI

import collectives as cc
from collectives.errors import PeerAbortedError, StallError

# Ranks believe to be on so many hosts: neighbours share no memory.
HOSTS = int(os.environ.get("COLLECTIVES_TEST_HOSTS", "1"))
if HOSTS > 1:
    os.environ["COLLECTIVES_HOST"] = f"host {MPI.COMM_WORLD.Get_rank() % HOSTS}"

# The library shall do without MPI: then the tests only hold its results against MPI's. Its ranks
# meet in a folder.
HOSTED = os.environ.get("COLLECTIVES_TEST_HOSTED", "0") != "0"
if HOSTED:
    name = f"{tempfile.gettempdir()}/collectives-{os.getpid()}"
    os.environ["COLLECTIVES_RENDEZVOUS"] = MPI.COMM_WORLD.bcast(name)
    os.environ["COLLECTIVES_RANK"] = str(MPI.COMM_WORLD.rank)
    os.environ["COLLECTIVES_SIZE"] = str(MPI.COMM_WORLD.size)
    cc.world()
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        shutil.rmtree(name)

# What tests shared memory itself is left out where ranks talk otherwise.
SHARES = HOSTS == 1 and os.environ.get("COLLECTIVES_SHM", "auto") != "0"
OF_SHARED_MEMORY = (
    "test_round_trip.py",
    "test_shared_memory.py",
    "test_shared_memory_errors.py",
)

SHARED_FROM = 3  # ranks
OF_DEVICES = "test_device", "test_nccl"
OF_MPI = (
    "test_communicators",
    "test_gpu",
    "test_hierarchical",
    "test_making",
    "test_shared_memory",
    "test_survey",
)
# How arrays of a framework are read does not depend on MPI, and each rank imports it for seconds.
OF_FRAMEWORKS = re.compile("torch|tensor|jax")
OPEN_MPI = "Open MPI" in MPI.Get_library_version()
pytest.register_assert_rewrite("fake_devices")  # a plugin of some modules, which import it first


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Two ranks have half of the tests; from three on, and on two with Open MPI, it is a sixth.

    On each of these numbers of ranks they are others. Of those of devices,
    which hardly depend on MPI, one and two ranks have a quarter as well, and those of frameworks
    are left out with Open MPI. ``COLLECTIVES_TEST_FULL=1`` runs all on each.
    """
    if not SHARES:
        others = [item for item in items if item.path.name in OF_SHARED_MEMORY]
        items[:] = [item for item in items if item.path.name not in OF_SHARED_MEMORY]
        config.hook.pytest_deselected(items=others)
    if HOSTED:
        left_out = *OF_DEVICES, *OF_MPI
        others = [item for item in items if item.path.name.startswith(left_out)]
        items[:] = [item for item in items if not item.path.name.startswith(left_out)]
        config.hook.pytest_deselected(items=others)
    if len({item.path for item in items}) == 1 or cases.FULL:
        return  # a file that is run alone is run whole
    size = MPI.COMM_WORLD.Get_size()
    is_shared = size >= (2 if OPEN_MPI else SHARED_FROM)
    mine, others = [], []
    for item in items:
        name = f"{item.path.name}::{item.nodeid.partition('::')[2]}"
        if OPEN_MPI and OF_FRAMEWORKS.search(item.name):
            others.append(item)
            continue
        one_in = 2 if size == 2 else 1
        if is_shared or item.path.name.startswith(OF_DEVICES):
            one_in = 6
        # Two ranks have with MPICH what they do not have with Open MPI.
        number = zlib.crc32(name.encode()) + size + (one_in == 2)
        (others if number % one_in else mine).append(item)
    items[:] = mine
    config.hook.pytest_deselected(items=others)


def pytest_report_header(config: pytest.Config) -> str:
    library = MPI.Get_library_version().replace("\0", "").splitlines()[0][:60]
    return f"mpi: {MPI.COMM_WORLD.size} ranks, {library}"


class Group(NamedTuple):
    """A communicator of the library, and one of mpi4py with the same ranks, for the test itself."""

    comm: cc.Communicator
    mpi: MPI.Intracomm

    def agree(self, value: Any) -> None:
        """Hold a value against those of the other ranks, which must be equal."""
        values = self.mpi.allgather(value)
        assert values.count(values[0]) == len(values), values


def _world() -> Group:
    return Group(cc.Communicator(None if HOSTED else MPI.COMM_WORLD), MPI.COMM_WORLD.Dup())


@pytest.fixture(scope="session")
def world() -> Group:
    """The default communicator."""
    return Group(cc.world(), MPI.COMM_WORLD.Dup())


@pytest.fixture(scope="session")
def plain() -> Group:
    """The same ranks, without the agreement before each call."""
    with environment(COLLECTIVES_VALIDATE="0"):
        return _world()


@pytest.fixture(scope="session", params=["world", "dup", "reversed", "halves", "self"])
def group(request: pytest.FixtureRequest, world: Group) -> Group:
    """Every kind of communicator, one after the other."""
    rank = world.comm.rank
    if request.param == "world":
        return world
    if request.param == "dup":
        return Group(world.comm.dup(), MPI.COMM_WORLD.Dup())
    keys = {"reversed": (0, -rank), "halves": (rank % 2, rank), "self": (rank, 0)}
    color, key = keys[request.param]
    comm = world.comm.split(color, key)
    assert comm is not None
    return Group(comm, MPI.COMM_WORLD.Split(color, key))


@contextlib.contextmanager
def environment(**variables: str) -> Any:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@pytest.fixture
def environ() -> Any:
    """`environment`, for tests that set variables in their middle."""
    return environment


@pytest.fixture
def segments() -> Any:
    """Return a context in which a communicator cuts its blocks into segments of so many bytes."""

    @contextlib.contextmanager
    def cut(comm: cc.Communicator, nbytes: int) -> Any:
        with environment(COLLECTIVES_SEGMENT=str(nbytes)):
            comm._engine.forget_choices()
            yield
        comm._engine.forget_choices()

    return cut


@pytest.fixture
def fresh() -> Any:
    """Make communicators that a test may break: nobody else uses them, and nobody frees them."""

    def make(*, validate: bool, timeout: float) -> cc.Communicator:
        with environment(COLLECTIVES_VALIDATE=str(int(validate))):
            comm = cc.Communicator(timeout=timeout)
        _broken.append(comm)
        return comm

    return make


_broken: list[cc.Communicator] = []


@pytest.fixture
def stalls() -> Any:
    """Return a context for a call that waits for a rank in vain, as long as its communicator does.

    Who comes when another rank has waited as long already hears of that at once. What the context
    gives says which it was.
    """

    @contextlib.contextmanager
    def stalls(comm: cc.Communicator, match: str) -> Any:
        began = time.monotonic()
        with pytest.raises((StallError, PeerAbortedError)) as caught:
            yield caught
        if caught.type is StallError:
            assert caught.match(match)
        else:
            assert caught.match("gave up: StallError")
            assert time.monotonic() - began < comm.timeout / 2

    return stalls
