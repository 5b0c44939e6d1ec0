"""The ring of memory for payloads: nobody writes what another may still read, and it goes on."""

import numpy as np
import pytest

from collectives import _core

LANES = 8


def pages(rng, count, longest):
    """Operations of one page and of many, short and long, with and without payloads."""
    most = rng.choice([1, 3, 40])
    return [
        (int(rng.integers(1, most + 1)), int(rng.choice([0, rng.integers(1, longest + 1)])) & ~63)
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(200))
def test_memory_is_free_when_it_is_written(seed):
    rng = np.random.default_rng(seed)
    nbytes = LANES * int(rng.choice([64, 640, 65_536]))
    width = int(rng.integers(64, 2 * nbytes))
    places = _core.ring_places(nbytes, width, pages(rng, 60, nbytes // LANES))
    for page, (start, end, needs) in enumerate(places):
        assert 0 <= start <= end <= nbytes
        assert needs <= page, "it waits for itself or for what comes after it"
        for other in range(needs, page):
            begin, stop, _ = places[other]
            assert stop <= start or end <= begin, f"page {page} writes where page {other} is read"


def test_short_pages_take_turns_on_the_whole_width():
    places = _core.ring_places(1 << 20, 1 << 16, [(1, 1 << 12)] * 40)
    assert [start for start, _, _ in places] == [(k % 16) << 12 for k in range(40)]


def test_no_page_waits_for_memory_that_is_wide_enough():
    """More pages than a rank may be ahead fit into the width: only lanes are waited for."""
    places = _core.ring_places(1 << 20, 1 << 16, [(1, 1 << 12)] * 40)
    assert [needs for *_, needs in places] == [max(0, page + 1 - LANES) for page in range(40)]


def test_long_pages_have_four_places():
    places = _core.ring_places(1 << 20, 1 << 10, [(20, 1 << 17)])
    assert [start >> 17 for start, _, _ in places] == [k % 4 for k in range(20)]
    assert [needs for *_, needs in places][4:] == list(range(1, 17))


def test_an_operation_that_does_not_fit_begins_a_lap():
    places = _core.ring_places(1 << 20, 4096, [(1, 3072), (1, 2048)])
    assert places == [(0, 3072, 0), (3072, 5120, 0)]  # four pages of 2048 bytes fit
    places = _core.ring_places(4096, 4096, [(1, 3072), (1, 2048), (1, 64)])
    assert places == [(0, 3072, 0), (0, 2048, 1), (2048, 2112, 1)]
