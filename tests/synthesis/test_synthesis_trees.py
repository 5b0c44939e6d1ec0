"""Trees, bounds and rounds of the search, held against simpler ways to find them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("scipy")

from collectives.algorithms import get, names
from collectives.check import check
from collectives.simulate import simulate
from collectives.synthesis import trees
from collectives.synthesis.bounds import Demand, best_prices, latency_bound
from collectives.synthesis.hops import Trees, rounds, slots, there_and_back
from collectives.synthesis.matrices import Matrices
from collectives.synthesis.order import order
from collectives.synthesis.packing import Packing, chains, hosts, shared_out, spread
from collectives.synthesis.search import SEARCHED, Search
from collectives.topology import FatTree, Flat, Hosts, Links, Network, Torus

# One link of four is slower.
SLOW = [1e-9, 1e-9, 1e-9, 4e-9]


def star(rates: list[float]) -> Links:
    links = {(side, r): rate for r, rate in enumerate(rates) for side in ("out", "in")}
    return Links(len(rates), links, lambda s, t: (1e-6, [("out", s), ("in", t)]), gamma=0)


def every_tree(p: int, root: int) -> list[NDArray[np.int64]]:
    """Return all trees out of a root, by trying all parents."""
    found = []
    for parents in product(range(p), repeat=p):
        tree = np.array(parents)
        tree[root] = -1
        if parents[root] != 0 or (tree == np.arange(p)).any():
            continue
        here = tree.copy()
        for _ in range(p):
            here = np.where(here >= 0, tree[here], -1)
        if (here < 0).all():
            found.append(tree)
    return found


def cost(costs: NDArray[np.float64], tree: NDArray[np.int64]) -> float:
    return float(costs[trees.edges(tree)].sum())


@pytest.mark.parametrize("seed", range(8))
def test_cheapest_trees_are_those_of_a_complete_search(seed: int) -> None:
    random = np.random.default_rng(seed)
    p, root = 5, seed % 5
    costs = random.integers(1, 9, (p, p)).astype(float)
    least = min(cost(costs, tree) for tree in every_tree(p, root))
    assert cost(costs, trees.arborescence(costs, root)) == least
    both = costs + costs.T
    least = min(cost(both, tree) for tree in every_tree(p, root))
    assert cost(both, trees.spanning(both, root)) == least


@pytest.mark.parametrize(
    ("network", "wanted"),
    [
        (Flat(8, beta=1e-9), 2 * 7 / 8 * 1e-9),  # each rank sends so much
        (Torus((4, 4), beta=1e-9), 2 * 15 / 16 * 1e-9),
        (star(SLOW), 4e-9),  # the slow rank sends its array
        (Hosts(4, 4, beta=1e-9), 2 * 3 / 4 * 1e-9),  # as the cards of hosts
        (FatTree(4, 2, 2, 4.0, beta=1e-9), 2 * 1e-9),  # once over the core, at half the speed
    ],
)
def test_bound_of_an_allreduce_is_the_one_of_the_textbook(network: Network, wanted: float) -> None:
    found, prices, _ = best_prices(Demand(Matrices(network, 1e6), None), 20)
    assert found == pytest.approx(wanted, rel=1e-3)
    assert prices.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("roots", "wanted"), [([0], 4e-9), ([3], 4e-9), ([0, 1, 2, 3], 3e-9), ([3, 3, 3, 0], 3e-9)]
)
def test_bound_of_a_broadcast_is_what_the_slow_rank_takes(roots: list[int], wanted: float) -> None:
    found, _, _ = best_prices(Demand(Matrices(star(SLOW), 1e6), roots), 20)
    assert found == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    ("collective", "slow", "fast"),
    [
        ("broadcast", "into", "out of"),
        ("allgather", "into", "out of"),
        ("reduce", "out of", "into"),
    ],
)
def test_bound_names_the_slow_port(collective: str, slow: str, fast: str) -> None:
    """The cable of the last rank is slow in one direction only."""
    links = {(side, r): 1e-9 for side in ("into", "out of") for r in range(4)}
    links[slow, 3] = 4e-9
    network = Links(4, links, lambda s, t: (1e-6, [("out of", s), ("into", t)]), gamma=0)
    search = Search(collective, network, 1 << 20, 0, 2)
    search._bound(lambda part, text: None)
    assert search.bound is not None
    assert f"port {slow} rank 3" in search.bound.scarce
    assert f"port {fast} rank 3" not in search.bound.scarce


@pytest.mark.parametrize("collective", SEARCHED)
def test_no_algorithm_of_the_library_beats_the_bound(collective: str) -> None:
    flat = Flat(8, gamma=0, delay=1e-4), Flat(4, alpha=0, gamma=0, delay=1e-4)
    hosts = Hosts(2, 4, gamma=0), Hosts(2, 4, gamma=0, delay=2e-5)
    for network in (star(SLOW), Torus((2, 4), gamma=0), *flat, *hosts):
        for nbytes in (64, 1 << 20):
            search = Search(collective, network, nbytes, 0, 2)
            search._bound(lambda part, text: None)
            assert search.bound is not None
            for name in names(collective):
                time = simulate(collective, name, nbytes, network).time
                assert time >= search.bound.seconds * (1 - 1e-9)


def test_ports_are_free_during_a_delay() -> None:
    """The next message of a rank starts before its last one has arrived."""
    for p, alpha, delay, told in [(8, 1, 100, 107), (4, 1, 100, 103), (8, 10, 0, 30), (8, 0, 9, 9)]:
        machine = Matrices(Flat(p, alpha=alpha * 1e-6, delay=delay * 1e-6), 8)
        assert latency_bound(machine, 0) == pytest.approx(told * 1e-6)
    # Ranks know it at 0, 3, 4, 5, 6 (twice: a rank that knows since 3 tells another), ...
    machine = Matrices(Flat(6, alpha=1, delay=2), 8)
    assert latency_bound(machine, None) == pytest.approx(6)


def test_the_library_row_is_the_fastest_of_all_that_were_simulated() -> None:
    network = Flat(12)
    search = Search("broadcast", network, 1 << 20, 0, 60)
    search._shipped(lambda part, text: None)
    assert search.shipped is not None
    assert search.left_out == []
    able = [name for name in names("broadcast") if get("broadcast", name).refusal(12) is None]
    assert search.tried == len(able)
    for name in able:
        assert search.shipped[0] <= simulate("broadcast", name, 1 << 20, network).time
    assert search.shipped[1] == "circulant"
    nested = Search("allreduce", Hosts(2, 2), 8, 0, 60)
    nested._shipped(lambda part, text: None)
    assert nested.tried > len(names("allreduce"))


def test_latency_bound_knows_of_relays() -> None:
    far = {(s, t): (1e-6 * abs(s - t) ** 2, []) for s in range(5) for t in range(5) if s != t}
    machine = Matrices(Links(5, {}, far), 1)
    assert latency_bound(machine, None) == pytest.approx(4e-6)
    assert latency_bound(machine, 2) == pytest.approx(3e-6)  # three doublings


def test_packed_trees_meet_the_bound() -> None:
    machine = Matrices(star(SLOW), 1e6)
    packed = Packing(machine, [k % 4 for k in range(32)], True).trees(4e-9, 10)
    busy = np.zeros(machine.resources)
    for tree in packed:
        assert (tree < 0).sum() == 1
        up, down = trees.edges(tree)
        busy += machine.loads(up, down) + machine.loads(down, up)
    assert busy.max() / 32 == pytest.approx(4e-9, rel=0.01)


def test_spread_trees_meet_the_bound_and_are_flat() -> None:
    """Eight stars need more time than the bound on a network of many speeds, and paths are deep."""
    machine = Matrices(star([1e-9 * (1 + r / 8) for r in range(8)]), 1e6)
    goal, _, known = best_prices(Demand(machine, None), 20)
    parts = spread(machine, known, goal, 10)
    assert sum(part for part, _ in parts) == pytest.approx(1)
    assert sum(part * trees.depth(tree) for part, tree in parts) < 3
    every = shared_out(parts, 512)
    assert sum(each.blocks for each in every) == 512
    busy = np.zeros(machine.resources)
    for up, down, blocks in every:
        assert up is down
        ends = trees.edges(down)
        busy += blocks * (machine.loads(*ends) + machine.loads(*ends[::-1]))
    assert goal * (1 - 1e-9) <= busy.max() / 512 < 1.02 * goal


def test_a_tree_keeps_its_edges_when_it_is_hung_up_at_its_center() -> None:
    path = np.array([-1, 0, 1, 2, 3])
    found = trees.centered(path)
    assert found.tolist() == [1, 2, -1, 2, 3]
    assert (trees.depth(path), trees.depth(found)) == (4, 2)


def test_slots_have_room_for_their_transfers() -> None:
    """A port is free again in the next slot, a block goes on in the slot after it came."""
    p, room, nbytes = 5, 3, 1e6
    machine = Matrices(star([1e-9, 1e-9, 2e-9, 1e-9, 1e-9]), nbytes)
    every = [Trees(tree, tree, 8) for tree in every_tree(p, 0)[:3]]
    length = room * 2e-9 * nbytes + 1e-6
    came: dict[tuple[int, int], int] = {}
    for number, slot in enumerate(slots(machine, every, nbytes, room)):
        for side in (0, 1):
            busy = np.zeros(p)
            for each in slot:
                busy[each[side]] += nbytes * machine.seconds_per_byte[each.source, each.target]
            assert busy.max() <= length * (1 + 1e-6)
        for each in slot:
            assert came.get((each.source, each.block), -1) < number
        came.update({(each.target, each.block): number for each in slot})
    assert len(came) == 24 * p


def test_hosts_are_ranks_that_share_a_card() -> None:
    assert hosts(Matrices(Hosts(3, 2), 1e6)) == [[0, 1], [2, 3], [4, 5]]
    assert hosts(Matrices(FatTree(4, 2, 2, 2.0), 1e6)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for network in (Flat(4), star(SLOW), Torus((2, 4)), Hosts(4, 1)):
        assert hosts(Matrices(network, 1e6)) == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_one_rank_of_a_host_sends_all_that_leaves_it(ranks: int) -> None:
    machine = Matrices(Hosts(3, ranks), 1e6)
    tour = [list(range(k * ranks, (k + 1) * ranks)) for k in range(3)]
    found = there_and_back(machine, chains(machine, tour, [tour[0][0], tour[2][0]], 2), 1e6)
    for slot in found:
        for each in slot:
            if each.source // ranks != each.target // ranks:
                wanted = (0, ranks - 1) if each.fold else (ranks - 1, 0)
                assert (each.source % ranks, each.target % ranks) == wanted
    assert all(rounds(3 * ranks, found))


def test_order_follows_a_ring_whose_ranks_are_shuffled() -> None:
    places = np.random.default_rng(3).permutation(12)
    apart = np.abs(places[:, None] - places[None, :])
    costs = np.minimum(apart, 12 - apart).astype(float)
    tour = order(costs)
    assert sorted(tour) == list(range(12))
    assert sum(costs[a, b] for a, b in zip(tour, tour[1:] + tour[:1], strict=True)) == 12


@pytest.mark.parametrize("collective", SEARCHED)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
@pytest.mark.usual(5)
def test_every_candidate_is_proven_and_simulated(collective: str, p: int) -> None:
    for network in (Flat(p), star([1e-9 * (1 + r % 3) for r in range(p)])):
        search = Search(collective, network, 1 << 20, p - 1, 1)
        search._bound(lambda part, text: None)
        tried = 0
        for how, blocks, make in search._candidates():
            search.best = None
            search._try(how, blocks, make())  # raises an error where the proof fails
            assert search.best is not None
            assert search.bound is not None
            assert search.best.seconds >= search.bound.seconds * (1 - 1e-9)
            tried += 1
            if tried == 3:
                break
        assert tried > 1


@pytest.mark.parametrize("collective", SEARCHED)
@pytest.mark.parametrize("root", [0, 4, 5])
def test_rings_of_hosts_are_proven(collective: str, root: int) -> None:
    search = Search(collective, Hosts(3, 3), 9 << 20, root, 1)
    search._bound(lambda part, text: None)
    for how, blocks, make in search._candidates():
        if "along" in how:
            search._try(how, blocks, make())  # raises an error where the proof fails
            return
    raise AssertionError("no candidate")


@pytest.mark.parametrize(
    ("network", "how", "most"),
    [
        (star([1e-9] * 7 + [4e-9]), "256 blocks over trees", 1.05),
        (Hosts(4, 4, beta=1e-9, inside=(1e-6, 0.1e-9), gamma=0), "64 blocks along", 1.06),
    ],
)
def test_candidates_come_near_the_bound(network: Network, how: str, most: float) -> None:
    search = Search("allreduce", network, 256 << 20, 0, 4)
    search._bound(lambda part, text: None)
    assert search.bound is not None
    name, blocks, make = next(each for each in search._candidates() if each[0].startswith(how))
    search._try(name, blocks, make())
    assert search.best is not None
    assert search.best.seconds < most * search.bound.seconds


def test_search_beats_the_library_where_one_link_is_slow() -> None:
    search = Search("allreduce", star(SLOW), 16 << 20, 0, 5)
    search.run()
    assert search.best is not None
    assert search.shipped is not None
    assert search.bound is not None
    assert search.best.seconds < search.shipped[0]
    assert search.best.seconds < 1.1 * search.bound.seconds
    row = search._row(search.best.rounds, search.best.blocks)
    assert check(row, p=4).sent[3] == 1  # the slow rank sends its array once
