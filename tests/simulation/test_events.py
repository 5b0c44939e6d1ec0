"""The plain simulator against times that were worked out by hand."""

import dataclasses
from math import inf

import events
import networks
import pytest
from events import Message
from networks import Network, Way

from collectives import algorithms
from collectives.algorithms import Exchange
from collectives.algorithms.spec import COLLECTIVES


def made(rounds, *, blocks=1):
    """Return an algorithm of rounds written as {rank: [Exchange, ...]}."""
    return dataclasses.replace(
        algorithms.get("allreduce", "ring"),
        name="made",
        generate=lambda r, p: iter(rounds.get(r, [])),
        blocks=lambda p: blocks,
    )


def crossing(source, target):
    return Message(source, target, 0, 0, 1, False)


def network(p, ways, capacity, gamma=0.0):
    return Network(p, gamma, lambda s, d: ways[s, d], capacity)


def spans(outcome):
    """Return {(source, target, segment): (start, end)}."""
    return {(m.source, m.target, m.segment): (m.start, m.end) for m in outcome.transfers}


# -- who gets how much of a link ---------------------------------------------------------------


def test_a_link_is_shared_evenly():
    ways = {(0, 1): Way(1, 0, ("wire",)), (2, 3): Way(1, 0, ("wire",))}
    assert events.fair([crossing(0, 1), crossing(2, 3)], network(4, ways, {"wire": 6.0})) == [3, 3]


def test_what_one_cannot_use_is_for_the_others():
    ways = {(0, 1): Way(1, 1.0, ("wire",)), (2, 3): Way(1, 0, ("wire",))}
    ways[4, 5] = Way(1, 0.01, ("wire",))
    messages = [crossing(*pair) for pair in ways]
    assert events.fair(messages, network(6, ways, {"wire": 6.0})) == [1.0, 2.5, 2.5]


def test_a_narrow_link_leaves_room_on_a_wide_one():
    ways = {
        (0, 1): Way(1, 0, ("narrow",)),
        (2, 3): Way(1, 0, ("narrow", "wide")),
        (4, 5): Way(1, 0, ("wide",)),
    }
    messages = [crossing(*pair) for pair in ways]
    capacity = {"narrow": 1.0, "wide": 10.0}
    assert events.fair(messages, network(6, ways, capacity)) == [0.5, 0.5, 9.5]


def test_without_links_each_has_its_own_bandwidth():
    ways = {(0, 1): Way(1, 0.5), (1, 0): Way(1, 0)}
    assert events.fair([crossing(0, 1), crossing(1, 0)], network(2, ways, {})) == [2.0, inf]


def test_the_longer_message_has_the_link_alone_after_the_shorter():
    rounds = {
        0: [Exchange(send=(2, 0))],
        1: [Exchange(send=(3, [1, 2, 3]))],
        2: [Exchange(recv=(0, 0))],
        3: [Exchange(recv=(1, [1, 2, 3]))],
    }
    ways = {(0, 2): Way(1, 0, ("wire",)), (1, 3): Way(1, 0, ("wire",))}
    outcome = events.simulate(made(rounds, blocks=4), 40, network(4, ways, {"wire": 1.0}))
    # 10 and 30 bytes at half a byte per second from second 1 on; 20 are left at second 21.
    assert outcome.finish == [21, 41, 21, 41]
    assert outcome.links == {"wire": 40}


def test_a_message_in_its_latency_takes_no_bandwidth():
    rounds = {
        0: [Exchange(send=(2, 0))],
        1: [Exchange(send=(3, 0))],
        2: [Exchange(recv=(0, 0))],
        3: [Exchange(recv=(1, 0))],
    }
    ways = {(0, 2): Way(1, 0, ("wire",)), (1, 3): Way(3, 0, ("wire",))}
    outcome = events.simulate(made(rounds), 10, network(4, ways, {"wire": 1.0}))
    # Two bytes of the first flow alone; then both share until it ends, with 2 bytes to go.
    assert outcome.finish == [19, 21, 19, 21]


# -- ports and rounds --------------------------------------------------------------------------

UNIT = networks.flat(4, 1.0, 1.0, 0.0)  # a message of 9 bytes takes 10 seconds


def test_one_message_at_a_time_comes_in_and_senders_wait_in_order():
    rounds = {
        0: [Exchange(recv=[(2, 0), (1, 0)])],
        1: [Exchange(send=(0, 0))],
        2: [Exchange(send=[(0, 0), (3, 0)])],
        3: [Exchange(recv=(2, 0))],
    }
    outcome = events.simulate(made(rounds), 9, UNIT)
    assert spans(outcome) == {(1, 0, 0): (0, 10), (2, 0, 0): (10, 20), (2, 3, 0): (20, 30)}
    assert outcome.finish == [20, 10, 30, 30]
    assert outcome.time == 30


def test_an_earlier_segment_is_first():
    rounds = {
        0: [Exchange(recv=(3, 0)), Exchange(recv=(1, 0))],
        1: [Exchange(send=(0, 0))],
        3: [Exchange(send=(0, 0))],
    }
    outcome = events.simulate(made(rounds), 18, UNIT, segment=9)
    assert spans(outcome) == {
        (3, 0, 0): (0, 10),
        (1, 0, 0): (10, 20),  # although the other was ready before
        (3, 0, 1): (20, 30),
        (1, 0, 1): (30, 40),
    }
    assert outcome.rounds == {0: 40, 1: 40}  # the last is the first round of rank 1


def test_a_message_waits_for_the_round_of_its_receiver():
    rounds = {
        0: [Exchange(send=(1, 0)), Exchange(recv=(2, 0))],
        1: [Exchange(recv=(0, 0))],
        2: [Exchange(send=(0, 0))],
    }
    outcome = events.simulate(made(rounds), 9, UNIT)
    assert spans(outcome)[2, 0, 0] == (10, 20)
    assert outcome.rounds == {0: 20, 1: 20}


def test_ports_go_both_ways_at_once():
    rounds = {r: [Exchange(send=(1 - r, 0), recv=(1 - r, 0))] for r in (0, 1)}
    assert events.simulate(made(rounds), 9, UNIT).finish == [10, 10, 0, 0]


def test_a_round_with_nothing_to_do_takes_no_time():
    rounds = {
        0: [Exchange(), Exchange(), Exchange(send=(1, 0))],
        1: [Exchange(recv=(0, 0)), Exchange()],
    }
    outcome = events.simulate(made(rounds), 9, UNIT)
    assert outcome.finish == [10, 10, 0, 0]
    assert outcome.rounds == {0: 10, 1: 10, 2: 10}


def test_no_bytes_take_the_latency():
    assert events.simulate(algorithms.get("barrier", "dissemination"), 0, UNIT).time == 2


def test_messages_between_two_ranks_match_in_order():
    rounds = {
        0: [Exchange(send=[(1, 0), (1, [1, 2])])],
        1: [Exchange(recv=(0, 0)), Exchange(recv=(0, [1, 2]))],
    }
    outcome = events.simulate(made(rounds, blocks=3), 9, UNIT)
    assert [(m.nbytes, m.start, m.end) for m in outcome.transfers] == [(3, 0, 4), (6, 4, 11)]
    assert outcome.rounds == {0: 11, 1: 11}


# -- folds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beta", "gamma", "finish"),
    [
        (1.0, 0.5, 10 + 10 + 4.5),  # the second is folded when it is in
        (1.0, 2.0, 10 + 18 + 18),  # the second waits for the first to be folded
    ],
)
def test_the_port_is_free_while_the_unit_folds(beta, gamma, finish):
    net = networks.flat(3, 1.0, beta, gamma)
    outcome = events.simulate(algorithms.get("reduce", "flat"), 9, net)
    assert outcome.finish == [finish, 10, 20]


def test_ports_are_free_while_a_message_is_delayed():
    # The root sends at 0, 10 and 20; each message is in 10 + 5 later.
    net = networks.delayed(UNIT, 5.0)
    outcome = events.simulate(algorithms.get("broadcast", "flat"), 9, net)
    assert outcome.finish == [30, 15, 25, 35]
    assert list(spans(outcome).values()) == [(0, 15), (10, 25), (20, 35)]
    # A message that comes in between is folded when it is there.
    net = dataclasses.replace(networks.delayed(UNIT, 5.0), gamma=1.0)
    outcome = events.simulate(algorithms.get("reduce", "flat"), 9, net)
    assert outcome.finish == [44, 10, 20, 30]


def test_a_cursor_that_waits_for_its_fold_lets_others_receive():
    # Segments of 9 bytes come in at 10 and 20, and are folded until 30 and 50.
    net = networks.flat(2, 1.0, 1.0, 20 / 9)
    outcome = events.simulate(algorithms.get("reduce", "chain"), 18, net, segment=9)
    assert outcome.finish == pytest.approx([50, 20])


def test_a_call_comes_before_the_first_round():
    net = dataclasses.replace(UNIT, call=5.0)
    assert events.simulate(algorithms.get("broadcast", "chain"), 9, net).finish == [15, 25, 35, 35]
    net = dataclasses.replace(networks.flat(1, 1.0, 1.0, 1.0), call=5.0)
    assert events.simulate(algorithms.get("allreduce", "ring"), 9, net).finish == [5]


def test_tables_are_lines_over_the_logarithm():
    table = [(4, 1.0), (16, 3.0), (64, 4.0)]
    sizes = [0, 1, 4, 8, 16, 32, 64, 1000]
    assert [networks.per_byte(table, n) for n in sizes] == [1, 1, 1, 2, 3, 3.5, 4, 4]
    assert networks.per_byte([(4, 1.0)], 9) == 1.0
    net = networks.flat(2, 1.0, table, [(8, 0.25)])
    assert events.simulate(algorithms.get("reduce", "flat"), 8, net).finish == [19, 17]


# -- segments ----------------------------------------------------------------------------------


def test_blocks_are_cut_as_arrays_are():
    assert [events.pieces(10, 4, b, 0) for b in range(5)] == [[2], [3], [2], [3], [2]]
    assert events.pieces(10, 4, 0, 2) == [1, 1]
    assert events.pieces(10, 4, 1, 2) == [1, 2]
    assert events.pieces(1, 2, 1, 1) == [1]
    assert events.pieces(3, 2, 0, 1) == [0, 1]
    assert events.pieces(0, 4, 1, 2) == [0]


@pytest.mark.parametrize("window", [2, 3, 4])
def test_segments_stream_down_a_chain(window):
    net = networks.flat(3, 1.0, 1.0, 0.0)
    algorithm = algorithms.get("broadcast", "chain")
    outcome = events.simulate(algorithm, 27, net, segment=9, window=window)
    assert outcome.finish == [30, 40, 40]


def test_a_window_of_one_is_one_segment_after_the_other_for_each_rank():
    net = networks.flat(3, 1.0, 1.0, 0.0)
    algorithm = algorithms.get("broadcast", "chain")
    outcome = events.simulate(algorithm, 27, net, segment=9, window=1)
    assert spans(outcome) == {
        (0, 1, 0): (0, 10),
        (1, 2, 0): (10, 20),
        (0, 1, 1): (20, 30),
        (1, 2, 1): (30, 40),
        (0, 1, 2): (40, 50),
        (1, 2, 2): (50, 60),
    }


def test_all_blocks_have_as_many_segments():
    rounds = {
        0: [Exchange(send=(1, 0))],
        1: [Exchange(recv=(0, 0))],
        2: [Exchange(send=(3, 1))],
        3: [Exchange(recv=(2, 1))],
    }
    outcome = events.simulate(made(rounds, blocks=2), 3, UNIT, segment=1)  # blocks of 1 and 2 bytes
    assert spans(outcome) == {
        (0, 1, 0): (0, 1),  # nothing but the latency
        (0, 1, 1): (1, 3),
        (2, 3, 0): (0, 2),
        (2, 3, 1): (2, 4),
    }


def test_blocks_in_segments_are_messages_of_their_own():
    rounds = {0: [Exchange(send=(1, [1, 0]))], 1: [Exchange(recv=(0, [1, 0]))]}
    outcome = events.simulate(made(rounds, blocks=2), 20, UNIT, window=1)
    assert [(m.nbytes, m.start, m.end) for m in outcome.transfers] == [(20, 0, 21)]
    outcome = events.simulate(made(rounds, blocks=2), 20, UNIT, segment=5, window=1)
    sent = sorted((m.start, m.end, m.nbytes, m.segment) for m in outcome.transfers)
    assert sent == [(0, 6, 5, 0), (6, 12, 5, 0), (12, 18, 5, 1), (18, 24, 5, 1)]


# -- networks ----------------------------------------------------------------------------------


def test_hosts_meet_at_their_ways_in_and_out():
    net = networks.hosts(2, 2, 1.0, 0.5, 0.0, (0.1, 0.25), memory=0.125)
    assert net.way(0, 1) == Way(0.1, 0.25, (("memory", 0),))
    assert net.way(1, 2) == Way(1.0, 0.5, (("out", 0), ("in", 1)))
    assert net.capacity["memory", 1] == 8.0
    assert net.capacity["in", 1] == 2.0
    # Two messages out of a host share its way out: 1 s, then 8 bytes at a byte per second.
    rounds = {r: [Exchange(send=(r + 2, 0))] for r in (0, 1)}
    rounds |= {r + 2: [Exchange(recv=(r, 0))] for r in (0, 1)}
    assert events.simulate(made(rounds), 8, net).finish == [9, 9, 9, 9]


def test_a_fat_tree_is_narrower_above_its_switches():
    net = networks.fat_tree(4, 1, 2, 4.0, 1.0, 0.5, 0.0, (0.1, 0.25))
    assert net.way(0, 1).links == (("out", 0), ("in", 1))
    assert net.way(1, 2).links == (("out", 1), ("in", 2), ("up", 0), ("down", 1))
    assert net.capacity["up", 0] == 1.0  # two hosts of 2 bytes per second each, by 4


def test_a_torus_goes_the_short_way_round():
    net = networks.torus((5, 4), 1.0, 0.5, 0.0, hop=0.1)
    assert net.way(0, 4).links == (((0, 0), 0, 1),)
    assert net.way(0, 16).links == (((0, 0), 0, -1),)
    assert net.way(0, 2).links == (((0, 0), 1, 1), ((0, 1), 1, 1))  # as short as the other way
    way = net.way(0, 13)  # to (3, 1)
    assert way.links == (((0, 0), 0, -1), ((4, 0), 0, -1), ((3, 0), 1, 1))
    assert way.latency == pytest.approx(1.3)


def test_every_algorithm_ends_and_moves_what_its_proof_says():
    net = networks.flat(6, 1.0, 1.0, 1.0)
    n = 240  # all numbers of blocks divide it
    for collective in COLLECTIVES:
        for name in algorithms.names(collective):
            algorithm = algorithms.get(collective, name)
            if algorithm.refusal(6) is None:
                outcome = events.simulate(algorithm, n, net, segment=2)
                assert outcome.time > 0
                sent = [sum(m.nbytes for m in outcome.transfers if m.source == r) for r in range(6)]
                assert max(sent) == pytest.approx(algorithm.totals(6)[1] * n)
