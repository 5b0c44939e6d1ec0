"""Messages between hosts, as the model counts them."""

from dataclasses import replace

import pytest

from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import get
from collectives.choice import model, select
from collectives.choice.model import crossings

TWO_BY_TWO, FOUR = Groups.sized([2, 2]), Groups.sized([1] * 4)


@pytest.mark.parametrize(
    ("name", "groups", "queued", "inner"),
    [
        ("butterfly", TWO_BY_TWO, 1, 1),  # a round inside, and one with two messages from each host
        ("all_to_all", TWO_BY_TWO, 3, 0),
        ("all_to_all", FOUR, 2, 0),
        ("butterfly", FOUR, 0, 0),
        ("ring", FOUR, 0, 0),
        ("tree", FOUR, 0, 0),
        ("hierarchical(flat,butterfly)", TWO_BY_TWO, 0, 2),
        ("hierarchical(direct,butterfly)", TWO_BY_TWO, 1, 2),
    ],
)
def test_messages_are_counted(name, groups, queued, inner):
    assert crossings(get("allreduce", name, groups), groups) == (queued, inner)


def test_a_message_that_waits_for_another_costs_a_part_of_the_latency():
    known = model.NETWORK

    def seconds(name, nbytes, groups):
        algorithm = get("allreduce", name, groups)
        return model.seconds(algorithm, 4, nbytes, known, 0, groups)

    for nbytes in (0, 1 << 24):
        plain = model.seconds(get("allreduce", "all_to_all"), 4, nbytes, known, 0)
        more = 2 * model.GAP * known.alpha  # beside its bytes
        assert seconds("all_to_all", nbytes, FOUR) == pytest.approx(plain + more)
    leaders = seconds("hierarchical(flat,butterfly)", 0, TWO_BY_TWO)
    lanes = seconds("hierarchical(direct,butterfly)", 0, TWO_BY_TWO)
    assert lanes - leaders == pytest.approx(model.GAP * known.alpha)
    assert leaders < seconds("all_to_all", 0, TWO_BY_TWO)


def test_a_message_that_waits_for_another_does_not_wait_for_its_delay():
    near, far = model.NETWORK, replace(model.NETWORK, alpha=model.NETWORK.alpha + 1e-4)
    rounds, waits = 1, 2  # of all_to_all between four hosts
    times = [
        model.seconds(get("allreduce", "all_to_all"), 4, 0, known, 0, FOUR) for known in (near, far)
    ]
    assert times[0] == pytest.approx((rounds + waits * model.GAP) * near.alpha)
    assert times[1] == pytest.approx(times[0] + rounds * 1e-4)


@pytest.mark.parametrize(
    ("sizes", "queued"), [([1] * 4, 2), ([2, 2], 3), ([1] * 2, 0), ([4], 0), ([1] * 65, 0)]
)
def test_the_probe_counts_the_messages_of_one_round(sizes, queued):
    """On many hosts, it does not connect all ranks with each other."""
    assert model._queued(Groups.sized(sizes)) == queued


# Of four hosts with 1 Gbit/s on two cores, and of the same with 100 us of delay.
@pytest.mark.parametrize(
    ("alpha", "gap", "name"), [(30e-6, 26e-6, "butterfly"), (170e-6, 42e-6, "all_to_all")]
)
def test_a_gap_that_was_measured_decides_how_many_messages_a_round_has(alpha, gap, name):
    known = replace(model.NETWORK, alpha=alpha, gap=gap)
    ranks = {"p": 4, "family": "ucx", "groups": FOUR}
    choice = select.decide("allreduce", None, nbytes=8, parameters=known, **ranks)
    assert choice.algorithm.name == name
    algorithm = get("allreduce", "all_to_all")
    time = model.seconds(algorithm, 4, 0, known, 0, FOUR)
    assert time == pytest.approx(alpha + 2 * gap)
    # No message waits longer than a message takes.
    known = replace(known, gap=2 * alpha)
    assert model.seconds(algorithm, 4, 0, known, 0, FOUR) == pytest.approx(3 * alpha)


@pytest.mark.parametrize("sizes", [[2, 2], [2] * 4, [8] * 4, [3, 2, 2]])
def test_few_bytes_go_between_leaders(sizes):
    groups = Groups.sized(sizes)
    decision = select.decide("allreduce", None, p=groups.p, nbytes=8, family="mpich", groups=groups)
    assert decision.algorithm.name.startswith("hierarchical(flat,")
    assert not decision.algorithm.has_lanes
