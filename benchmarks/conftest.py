"""The measurements of ``collectives bench`` as rounds of benchmarks.

::

    make bench                                          # all, under MPICH
    python -m pytest benchmarks                         # all, in this environment
    python -m pytest benchmarks -k "calls or plans"     # some
    python -m pytest benchmarks --benchmark-json new.json --benchmark-compare

Groups stand in one table, ours beside another's. With ``--benchmark-disable`` everything runs once,
on small arrays, and nothing is timed.
"""

import json
import subprocess
import sys
from functools import cache
from itertools import chain

import pytest

DEADLINE = 300  # seconds for one run of `collectives bench`


@pytest.fixture(scope="session")
def brief(request):
    """Return True if nothing is timed, and everything may be small."""
    return request.config.getoption("benchmark_disable")


@pytest.fixture(scope="session")
def measured(tmp_path_factory, brief):
    """Return a function that runs ``collectives bench`` once for each choice of words.

    Several ranks are timed there and nowhere else: it takes the time of blocks between barriers,
    MPI's and ours in turns.
    """

    @cache
    def rows(words):
        path = tmp_path_factory.mktemp("bench") / "bench.json"
        extra = ["--iters", "2", "--repeat", "1"] if brief else []
        command = [sys.executable, "-m", "collectives", "bench", *words.split(), *extra]
        done = subprocess.run(
            [*command, "--json", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(path.read_text())["runs"][0]["rows"]

    return rows


@pytest.fixture
def benchmark_with(request):
    """Return a function that makes the benchmark of a test, with a timer of its own."""

    def made(timer, group):
        request.node.add_marker(pytest.mark.benchmark(timer=timer, group=group))
        return request.getfixturevalue("benchmark")

    return made


@pytest.fixture
def replay(benchmark_with):
    """Return a function that makes rounds of blocks that were timed elsewhere: us of a call."""

    def replayed(blocks, group, **information):
        # Read before a round and after it: nothing passes but the block's time.
        readings = chain.from_iterable((0.0, us * 1e-6) for us in blocks)

        def timer():
            return next(readings)

        benchmark = benchmark_with(timer, group)
        benchmark.extra_info.update(information)
        benchmark.pedantic(lambda: None, rounds=len(blocks), iterations=1, warmup_rounds=0)

    return replayed
