"""More elements than fit in 32 bits. Needs 9 GiB: COLLECTIVES_TEST_LARGE=1, on two ranks."""

import os

import numpy as np
import pytest

import collectives as cc

pytestmark = pytest.mark.skipif(
    os.environ.get("COLLECTIVES_TEST_LARGE", "0") in ("", "0"),
    reason="needs 9 GiB: set COLLECTIVES_TEST_LARGE=1",
)

COUNT = 2**32 + 5
CHUNK = 2**26
PERIOD = 251  # a prime: what lands in another place does not fit


def chunks(pattern):
    """Cut the whole range; give for each part the numbers that repeat a pattern of PERIOD."""
    longest = np.resize(pattern, CHUNK + PERIOD)
    for first in range(0, COUNT, CHUNK):
        length = min(CHUNK, COUNT - first)
        phase = first % PERIOD
        yield slice(first, first + length), longest[phase : phase + length]


def pattern_of(rank):
    return (np.arange(PERIOD) + 3 * rank).astype(np.int8)


@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_more_than_four_billion_elements(plain, algorithm):
    comm = plain.comm
    if comm.size != 2:
        pytest.skip("two ranks fill the memory already")
    x = np.empty(COUNT, np.int8)
    for where, numbers in chunks(pattern_of(comm.rank)):
        x[where] = numbers
    assert comm.allreduce(x, x, algorithm=algorithm) is x
    for where, numbers in chunks(pattern_of(0) + pattern_of(1)):
        assert (x[where] == numbers).all(), where


def test_the_range_of_a_count_is_told(plain):
    assert plain.comm.explain("allreduce", COUNT).nbytes == COUNT
    assert cc.size() >= 1
