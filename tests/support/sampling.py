"""The shares of the tests that run: one table, by which all others leave tests out.

A usual run, ``make test``, has a share of the cases, always the same ones. A test with parameters
is one case for each of their values. Of those that ranks run together, in tests/mpi,

- 1 rank with MPICH has all, and of a test with MANY cases one in 2;
- 2 ranks with MPICH have one in 2, and of a test with MANY cases one in 4;
- 4 ranks with MPICH, and 2 and 5 ranks with Open MPI, have one in 6, and so has any other number of
  ranks that is asked for; of those of devices, 1 and 2 ranks have one in 6 as well.

Each of these has other cases: of a test with MANY, eleven in 12 are run somewhere, and of another
one all. A case that starts ranks itself runs with MPICH or with Open MPI, one in 2 with each, and
if its test has MANY cases, one in 4. All others run, and of a test with MANY cases one in 2, or of
the algorithms, plans and simulations one in 3, but every file is held against the limits of its
length.

``COLLECTIVES_TEST_FULL=1`` runs everything, and a file that is run alone is run whole.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).resolve().parents[1]
FULL = os.environ.get("COLLECTIVES_TEST_FULL", "0") not in ("", "0")
MANY = 8  # cases of one test
NEVER = 0
RANKS = [1, 2, 3, 4, 5, 8]  # the numbers of a full run of tests/mpi

# Ways to communicate other than shared memory and MPI: by messages of MPI only, without MPI, as on
# several hosts, or with messages of UCX between these.
MESSAGES = {"COLLECTIVES_SHM": "0"}
BY_UCX = {"COLLECTIVES_MESSAGES": "ucx"}
HOSTED = {"COLLECTIVES_TEST_HOSTED": "1"}
TWO_HOSTS = {"COLLECTIVES_TEST_HOSTS": "2"}
THREE_HOSTS = {"COLLECTIVES_TEST_HOSTS": "3"}


class Row(NamedTuple):
    """Tests that all ranks of a launcher run together.

    `tests` is a folder, files, or an expression for the names of tests. `mpi` and `ranks` are None
    for any. One case in `one_in` is run, or of a test with MANY cases one in `of_many`. Rows that
    are not `usual` are launched in full runs only, or where their number of ranks is asked for.
    `env` are the variables of a launch.
    """

    tests: str
    mpi: str | None
    ranks: tuple[int, ...] | None
    one_in: int = 1
    of_many: int = 2
    usual: bool = True
    env: dict[str, str] = {}  # noqa: RUF012  nobody writes it

    def is_of(self, test: str, mpi: str, ranks: int) -> bool:
        """Return True if this row has the share of a test."""
        return (
            re.match(self.tests, test) is not None
            and self.mpi in (None, mpi)
            and (self.ranks is None or ranks in self.ranks)
        )


# The first row that fits counts.
TABLE = (
    # Reading arrays of a framework does not depend on MPI, and each rank imports it for
    # seconds. Devices hardly depend on it.
    Row("mpi/.*::.*(torch|tensor|jax)", "openmpi", None, NEVER, NEVER),
    Row("mpi/test_(device|nccl)", None, None, 6, 6),
    Row("mpi", "mpich", (1,), 1, 2),
    Row("mpi", "mpich", (2,), 2, 4),
    Row("mpi", "mpich", (3,), 6, 6, env={**HOSTED, **THREE_HOSTS}),
    Row("mpi", "mpich", (4,), 6, 6, env=HOSTED),
    Row("mpi", "mpich", (5,), 6, 6, usual=False, env={**BY_UCX, **TWO_HOSTS}),
    Row("mpi", "openmpi", (2,), 6, 6, env=MESSAGES),
    Row("mpi", "openmpi", (5,), 6, 6, env=TWO_HOSTS),
    Row("mpi", None, None, 6, 6, usual=False),
    Row("frontends/torch_accelerators", "mpich", (1, 2)),
    Row("frontends/torch_accelerators", "mpich", (3,), usual=False),
    # On two ranks all algorithms give the same bits.
    Row("frontends/torch/test_torch_bits.py", "mpich", (3,)),
    Row("frontends/torch", "mpich", (2,)),
    Row("frontends/torch", "mpich", (3,), usual=False),
    Row("frontends/torch", "openmpi", (2,)),
    Row("frontends/tensorflow/test_tf_bits.py", "mpich", (3,)),
    Row("frontends/tensorflow", "mpich", (1, 2)),
    Row("frontends/tensorflow", "mpich", (4,), usual=False),
    Row("frontends/tensorflow/test_tf_tape.py", "openmpi", (2,), usual=False),
    Row("frontends/keras/test_keras_bits.py", "mpich", (3,), env={"KERAS_BACKEND": "jax"}),
    Row("frontends/keras", "mpich", (1, 2), env={"KERAS_BACKEND": "tensorflow"}),
    Row("frontends/keras", "mpich", (4,), usual=False, env={"KERAS_BACKEND": "tensorflow"}),
    Row("frontends/keras", "mpich", (2,), env={"KERAS_BACKEND": "torch"}),
    Row(
        "frontends/keras/test_keras_optimizer.py frontends/keras/test_keras_callbacks.py "
        "frontends/keras/test_keras_gradients.py",
        "mpich",
        (2,),
        env={"KERAS_BACKEND": "jax"},
    ),
    Row("frontends/jax/test_jax_bits.py", "mpich", (3,)),
    Row("frontends/jax", "mpich", (1, 2)),
    Row("frontends/jax", "mpich", (4,), usual=False),
    Row("project/test_layers", None, None, of_many=1),
    Row("(algorithms|plans|simulation)/", None, None, of_many=3),
    Row("", None, None),  # no ranks, or those that a test starts
)
# Tests that cannot run if ranks share no memory, or have no MPI, or if their messages between hosts
# are not those of MPI's windows: full runs omit them as well.
OF_SHARED_MEMORY = "mpi/test_(round_trip|shared_memory)"
OF_MPI = (
    "mpi/test_(accelerated|communicators|device|gpu|hierarchical|making|nccl|shared_memory|survey)"
)
OF_MPI_MESSAGES = "mpi/test_accelerated_windows.py::test_a_barrier_makes_progress_on_windows"

SHIFTS = {"mpich": 0, "openmpi": 3}  # on two ranks they have different halves


class Here:
    """The place of the tests, which the conftest of ranks says."""

    mpi = "mpich"
    ranks = 0  # no launcher
    unable: tuple[str, ...] = ()  # expressions for tests that cannot run


def row_of(test: str, mpi: str, ranks: int) -> Row:
    """Return the first row for a test, which may be a folder."""
    return next(row for row in TABLE if row.is_of(test, mpi, ranks))


def launches(folder: str) -> Iterator[tuple[Row, int]]:
    """Yield the rows of a folder, and the numbers of ranks, that this run has."""
    for row in TABLE:
        if row.tests.startswith(folder) and (row.usual or FULL):
            yield from ((row, ranks) for ranks in row.ranks or ())


def split(items: list[pytest.Item], share: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run, and those that are left out.

    `share` is K/N, for a run that has share K of N of those that start ranks with each MPI.
    """
    number, of = map(int, share.split("/"))
    names = {item: _name(item) for item in items}
    able = [item for item in items if not any(re.match(each, names[item]) for each in Here.unable)]
    cases = Counter(_function(item) for item in able)
    is_whole = FULL or len({item.path for item in able}) == 1

    def is_left_out(item: pytest.Item) -> bool:
        row = row_of(names[item], Here.mpi, Here.ranks)
        one_in = row.of_many if cases[_function(item)] >= MANY else row.one_in
        one_in = 1 if is_whole else one_in
        turn = Here.ranks + SHIFTS[Here.mpi]
        if item.get_closest_marker("each_mpi") is not None:
            one_in, turn = of * one_in, number
        return one_in == NEVER or (zlib.crc32(_short(item).encode()) - turn) % one_in != 0

    kept = [item for item in able if not is_left_out(item)]
    runs = set(kept)
    return kept, [item for item in items if item not in runs]


def _name(item: pytest.Item) -> str:
    """Return a test with its folder in that of the tests. Examples in docstrings have none."""
    folder = item.path.parent
    return (
        f"{folder.relative_to(TESTS)}/{_short(item)}"
        if TESTS in item.path.parents
        else _short(item)
    )


def _short(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.nodeid.partition('::')[2]}"


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
