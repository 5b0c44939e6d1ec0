"""Tests under an outer launcher: ``mpiexec -n 4 python -m pytest tests/mpi``.

All ranks run the same tests.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

os.environ.setdefault("COLLECTIVES_VALIDATE", "1")  # all communicators read it

import pytest
import usual
from accelerated import Pair
from mpi4py import MPI
from together import *  # noqa: F403  pytest's hooks, and the environment, which comes first

import collectives as cc
from collectives.errors import PeerAbortedError, StallError
from collectives.mpi4py import accelerate, communicators

communicators.FIRST = 0  # collectives run here from the first on; test_accelerated_first.py sets it

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

usual.Here.mpi = "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"
usual.Here.ranks = MPI.COMM_WORLD.size

# Tests that cannot run if ranks share no memory, or have no MPI, or if their messages between hosts
# are not those of MPI's windows.
UNABLE = []
if HOSTS > 1 or os.environ.get("COLLECTIVES_SHM", "auto") == "0":
    UNABLE += ["round_trip|shared_memory|accelerated_revoked"]  # who revokes tells it there
if HOSTED:
    UNABLE += ["accelerated|communicators|device|gpu|hierarchical|making|nccl|shared_memory|survey"]
if HOSTS > 1 and os.environ.get("COLLECTIVES_MESSAGES") == "ucx":
    UNABLE += [r"accelerated_windows.py::test_a_barrier_makes_progress_on_windows\b"]
pytest.register_assert_rewrite("fake_devices")  # a plugin of some modules, which import it first


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here."""
    if UNABLE:
        names = re.compile(f"(^|.*/)test_({'|'.join(UNABLE)})")
        others = [item for item in items if names.match(item.nodeid)]
        items[:] = [item for item in items if not names.match(item.nodeid)]
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


@pytest.fixture(params=["world", "plain"])
def either(request: pytest.FixtureRequest) -> Group:
    """With the agreement before each call, and without."""
    return request.getfixturevalue(request.param)


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


@pytest.fixture(scope="module", params=["1", "0"], ids=["validated", "unvalidated"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """An accelerated communicator of mpi4py, and a plain one."""
    ours = accelerate(MPI.COMM_WORLD.Dup())
    with environment(COLLECTIVES_VALIDATE=request.param):
        ours.Barrier()  # the first call makes the communicator that runs them
    theirs = MPI.COMM_WORLD.Dup()
    yield Pair(ours, theirs)
    ours.Free()
    theirs.Free()


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
            comm = cc.Communicator()
        comm.timeout = timeout  # of calls: making it takes longer on a busy machine
        _broken.append(comm)
        return comm

    return make


_broken: list[cc.Communicator] = []


@pytest.fixture
def stalls() -> Any:
    """Return a context for a call that waits for a rank in vain, as long as its communicator does.

    A rank that comes when another one has waited as long hears of that at once. The context
    gives the error of either case.
    """

    @contextlib.contextmanager
    def stalls(comm: cc.Communicator, match: str) -> Any:
        with pytest.raises((StallError, PeerAbortedError)) as caught:
            yield caught
        if caught.type is StallError:
            assert caught.match(match)
        else:
            assert caught.match("gave up: StallError")

    return stalls
