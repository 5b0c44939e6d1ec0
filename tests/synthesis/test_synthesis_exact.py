"""The exact search: its fronts against theory, a complete search, and the library's algorithms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, combinations, product
from pathlib import Path

import pytest

pytest.importorskip("ortools")

from collectives.algorithms import get, unregister
from collectives.check import check
from collectives.cli import arguments, main
from collectives.simulation.graph import machine
from collectives.synthesis.exact import Exact, Pair, Spread
from collectives.synthesis.matrices import Matrices
from collectives.text.progress import Bar

Capture = pytest.CaptureFixture[str]
Front = list[tuple[int, int]]

# Neighbours of a DGX-1 over NVLink: two squares with diagonals, and a link between their corners.
DGX1 = [
    *((a + host, b + host) for host in (0, 4) for a, b in combinations(range(4), 2)),
    *((a, a + 4) for a in range(4)),
]


def written(folder: Path, p: int, links: list[Pair], one_way: bool = False) -> str:
    path = folder / "mine.json"
    listed = [[*link, "1GB/s"] for link in links]
    path.write_text(json.dumps({"ranks": p, "one_way" if one_way else "links": listed}))
    return str(path)


def found(collective: str, p: int, cut: int = 1, topology: str = "flat", root: int = 0) -> Front:
    """Return the points of the front, which the search has proven."""
    search = Exact(collective, machine(topology).make(p), 1 << 20, root, 60, cut, workers=1)
    search.run()
    assert search.open == []
    assert all(point.optimal for point in search.points)
    assert all(point.sent >= search.least for point in search.points)
    return [point[:2] for point in search.points]


def doublings(p: int) -> int:
    return (p - 1).bit_length()


def matchings(pairs: list[Pair]) -> Iterator[list[Pair]]:
    """Yield all sets of messages of a round."""
    for size in range(1, len(pairs) + 1):
        for each in combinations(pairs, size):
            if all(len(set(ends)) == size for ends in zip(*each, strict=True)):
                yield list(each)


def by_trial(p: int, holders: list[int], pairs: list[Pair], rounds: int) -> Front:
    """Return the front up to so many rounds, by trying all that can be sent in each."""
    blocks = range(len(holders))
    least = {tuple(frozenset(k for k in blocks if holders[k] == v) for v in range(p)): 0}
    front: Front = []
    for number in range(1, rounds + 1):
        after: dict[tuple[frozenset[int], ...], int] = {}
        for has, cost in least.items():
            for messages in matchings(pairs):
                news = [sorted(has[u] - has[v]) for u, v in messages]
                if not all(news):
                    continue
                for sent in product(*map(subsets, news)):
                    now = list(has)
                    for (_, v), each in zip(messages, sent, strict=True):
                        now[v] |= set(each)
                    state, total = tuple(now), cost + max(map(len, sent))
                    after[state] = min(total, after.get(state, total))
        least = after
        total = least.get((frozenset(blocks),) * p)
        if total is not None and (not front or total < front[-1][1]):
            front.append((number, total))
    return front


def subsets(each: list[int]) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(each, size + 1) for size in range(len(each))))


@pytest.mark.parametrize("p", range(2, 10))
def test_broadcast_of_one_block_doubles_the_ranks_in_each_round(p: int) -> None:
    assert found("broadcast", p) == [(doublings(p), doublings(p))]


@pytest.mark.parametrize("p", range(2, 10))
def test_allgather_receives_each_part_once_in_as_few_rounds(p: int) -> None:
    assert found("allgather", p) == [(doublings(p), p - 1)]
    assert found("reduce_scatter", p) == [(doublings(p), p - 1)]


@pytest.mark.parametrize(("p", "cut"), [(3, 4), (4, 4), (5, 3), (8, 2)])
def test_front_of_a_broadcast_ends_with_single_blocks(p: int, cut: int) -> None:
    """The last point is the optimum of the circulant broadcast, where a message is one block."""
    front = found("broadcast", p, cut)
    assert front[0] == (doublings(p), cut * doublings(p) if p in (4, 8) else front[0][1])
    assert front[-1] == (cut - 1 + doublings(p),) * 2
    assert found("reduce", p, cut) == front


@pytest.mark.parametrize("p", [4, 6, 8])
def test_allgather_on_a_ring_exchanges_between_neighbours(p: int) -> None:
    assert found("allgather", p, topology=f"torus={p}") == [(p // 2, p - 1)]


def test_allreduce_joins_the_fronts_of_its_halves() -> None:
    assert found("allreduce", 8) == [(6, 14)]
    assert found("allreduce", 6, topology="torus=6") == [(6, 10)]


def test_allgather_of_dgx1_takes_three_rounds_over_its_links(tmp_path: Path) -> None:
    assert found("allgather", 8, topology=written(tmp_path, 8, DGX1)) == [(3, 7)]


def test_fronts_of_the_manual(tmp_path: Path) -> None:
    front = [(3, 12), (4, 8), (5, 7), (6, 6)]
    assert found("broadcast", 8, 4) == front
    assert found("broadcast", 8, 4, written(tmp_path, 8, DGX1)) == front
    assert found("broadcast", 8, 4, "torus=8") == [(4, 16), (5, 10), (6, 9), (7, 7)]


# Ranks, links, and whether these lead one way. Allgathers of four ranks have too many schedules.
NETWORKS: list[tuple[int, list[Pair], bool]] = [
    (3, [(0, 1), (1, 2)], False),
    (3, [(0, 1), (1, 2), (2, 0)], True),
    (3, [(0, 1), (1, 2), (2, 0), (0, 2)], True),
    (4, [(0, 1), (0, 2), (0, 3)], False),
    (4, [(0, 1), (1, 2), (2, 3), (3, 0)], False),
]


@pytest.mark.parametrize(
    ("p", "links", "one_way", "rooted"),
    [(*each, rooted) for each in NETWORKS for rooted in (True, False) if rooted or each[0] < 4],
)
def test_front_is_that_of_a_complete_search(
    p: int, links: list[Pair], one_way: bool, rooted: bool, tmp_path: Path
) -> None:
    collective, back = ("broadcast", "reduce") if rooted else ("allgather", "reduce_scatter")
    cut = 2 if rooted else 1
    topology = written(tmp_path, p, links, one_way)
    for root in range(p) if rooted else [0]:
        front = found(collective, p, cut, topology, root)
        holders = [root] * cut if rooted else list(range(p))
        pairs = links + [(b, a) for a, b in links if not one_way]
        spread = Spread(Matrices(machine(topology).make(p), 1), holders)
        assert sorted(spread.pairs) == sorted(pairs)
        assert front == by_trial(p, holders, pairs, front[-1][0] + 2)
    turned = written(tmp_path, p, [(b, a) for a, b in links], one_way)
    assert found(back, p, cut, turned, root) == front


def test_ranks_that_share_a_card_send_one_message_at_a_time() -> None:
    """Each host needs the four parts of the other, one in a round of the card."""
    assert found("allgather", 4, topology="hosts=2x2")[-1][1] == 3
    spread = Spread(Matrices(machine("hosts=2x4").make(8), 1), list(range(8)))
    assert [room for room, _ in spread.shared] == [1] * 4


@pytest.mark.parametrize(
    ("collective", "name", "p"),
    [
        ("allgather", "bruck", 7),
        ("allgather", "recursive", 8),
        ("reduce_scatter", "bruck", 7),
        ("reduce_scatter", "recursive", 8),
        ("allreduce", "halving_doubling", 8),
    ],
)
def test_algorithms_of_the_library_lie_on_the_front(collective: str, name: str, p: int) -> None:
    proof = check(collective, name, p=p)
    parts = 1 if collective == "broadcast" else p
    front = [(rounds, Fraction(sent, parts)) for rounds, sent in found(collective, p)]
    assert front == [(proof.depth, max(proof.sent))]


def test_broadcasts_of_the_library_are_the_ends_of_the_front() -> None:
    """A tree sends whole arrays, circulant single blocks; their rounds are the bytes, too."""
    for p in range(2, 10):
        spread = Spread(Matrices(machine("flat").make(p), 1), [0] * 16)
        assert spread.least_rounds() == check("broadcast", "tree", p=p).depth
        assert spread.least_sent() == check("broadcast", "circulant", p=p).depth


def test_butterfly_takes_fewer_rounds_than_two_halves() -> None:
    assert check("allreduce", "butterfly", p=8).depth < found("allreduce", 8)[0][0]


def words(*more: str) -> list[str]:
    return ["synthesize", *more, "--exact", "-b", "1M"]


def test_command_prints_the_front_and_writes_a_file(tmp_path: Path, capsys: Capture) -> None:
    out = str(tmp_path / "found.py")
    asked = words("broadcast", "-p", "4", "--root", "1", "--blocks", "3", "--out", out)
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert text.startswith("broadcast of 1 MiB on 4 ranks, root 1, flat\n")
    rows = [line.split() for line in text.splitlines()[2:5]]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("2", "6", "optimal"),
        ("3", "5", "optimal"),
        ("4", "4", "optimal"),
    ]
    assert "any number of rounds: at least 1.333 MiB" in text
    assert f"The algorithm is in {out}" in text
    try:
        arguments.load([out])
        for root in range(4):
            check(get("broadcast", "synthesized"), p=4, root=root)
    finally:
        unregister("broadcast", "synthesized")


def test_search_that_is_stopped_prints_the_front_so_far(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(self: Bar, part: float | None, text: str) -> None:
        if text.startswith("the front has 1 point"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "show", show)
    out = tmp_path / "found.py"
    assert main(words("broadcast", "-p", "8", "--blocks", "16", "--out", str(out))) == 130
    text = capsys.readouterr().out
    assert text.startswith("The search was stopped. This is the best so far.")
    assert "the time was too short to decide on rounds: " in text
    assert out.exists()


def test_search_without_time_finds_a_first_schedule() -> None:
    search = Exact("broadcast", machine("flat").make(4), 1 << 20, 0, 0, 2, workers=1)
    search.run()
    assert [point[:2] for point in search.points] == [(2, 4)]
    assert (search.open, search.ended) == ([3], True)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["allgather", "-p", "10"], "an exact search for 10 ranks is not possible: it takes 9 at"),
        (["allgather", "-p", "8", "--blocks", "17"], "takes 128 blocks at most, not 136"),
        (["alltoall", "-p", "4"], "there is no search for 'alltoall'"),
    ],
)
def test_impossible_search_is_refused(asked: list[str], told: str, capsys: Capture) -> None:
    assert main(words(*asked)) == 2
    assert told in capsys.readouterr().err
