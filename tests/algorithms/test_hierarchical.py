"""Compositions of algorithms on groups of ranks: proofs, costs, order, errors, drawings, times."""

from zlib import crc32

import pytest

from collectives import algorithms
from collectives.algorithms.composition import candidates
from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import compositions, numbered
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.choice import select
from collectives.draw import grid
from collectives.errors import ArgumentError
from collectives.picture.text import drawing
from collectives.simulate import simulate
from collectives.topology import FatTree, Hosts

COMPOSED = [each for each in COLLECTIVES if compositions(each)]
EQUAL = [[0], [0, 1], [0, 1, 2, 0, 1, 2], [1, 0, 0, 1]]
UNEQUAL = [[0, 0, 0, 1, 1], [0, 1, 0, 2, 0, 1]]


def placed(collective, name, of):
    return algorithms.get(collective, name, Groups.read(of))


@pytest.mark.parametrize("collective", COMPOSED)
def test_every_composition_is_proven(collective):
    for name in compositions(collective):
        is_chosen = name in candidates(collective)
        for of in [*EQUAL, *UNEQUAL] if is_chosen else [EQUAL[2], UNEQUAL[0]]:
            row, p = placed(collective, name, of), len(of)
            if row.has_lanes and of in UNEQUAL and row.collective.parts(p) > 1:
                assert "needs groups of equal length" in row.refusal(p)
                continue
            assert row.refusal(p) is None
            for root in [p - 1] if row.collective.rooted else [0]:
                proof = check(row, p=p, root=root, record=False)
            if collective == "allreduce" and of in EQUAL:
                counted = proof.depth, float(max(proof.sent)), float(max(proof.folded))
                assert row.totals(p) == pytest.approx(counted), name


def test_lanes_send_what_a_ring_of_hosts_does():
    """Three hosts of four: each host sends 2 (3 - 1) / 3 of the array, in four lanes."""
    of = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    proof = check("allreduce", "hierarchical(direct,ring)", p=12, groups=of)
    across = {pair: n for pair, n in proof.links.items() if of[pair[0]] != of[pair[1]]}
    for host in range(3):
        sent = [n for (source, _), n in across.items() if of[source] == host]
        assert len(sent) == 4
        assert float(sum(sent)) == pytest.approx(4 / 3)


def test_leaders_send_one_message_a_host():
    of = [0, 0, 0, 1, 1, 1]
    proof = check("allreduce", "hierarchical(flat,butterfly)", p=6, groups=of)
    across = [e for e in proof.events if of[e.source] != of[e.target]]
    assert sorted((e.source, e.target) for e in across) == [(0, 3), (3, 0)]


def test_rank_order_is_kept_only_in_blocks():
    for name in ("hierarchical(direct,all_to_all)", "hierarchical(flat,butterfly)"):
        assert placed("allreduce", name, [0, 0, 1, 1]).keeps_order
        assert not placed("allreduce", name, [0, 1, 0, 1]).keeps_order
    assert not placed("allreduce", "hierarchical(direct,all_to_all)", [0, 0, 1]).keeps_order
    assert not placed("allreduce", "hierarchical(direct,ring)", [0, 0, 1, 1]).keeps_order


def test_names():
    row = algorithms.get("allreduce", " hierarchical( direct , kary:3 )")
    assert row.name == "hierarchical(direct,kary:3)"
    assert row.between.name == "kary:3"
    assert algorithms.get("allreduce", row.name, row.groups).generate is row.generate
    name = "hierarchical(direct,ring)"
    assert numbered("allreduce", crc32(name.encode())) == name


@pytest.mark.parametrize(
    ("collective", "name", "text"),
    [
        ("allreduce", "hierarchical(direct,rign)", "has no algorithm 'rign'; did you mean"),
        ("allreduce", "hierarchical(rign,ring)", "no hierarchical algorithm with 'rign' inside"),
        ("allreduce", "hierarchical", "must name an algorithm inside groups of ranks and one"),
        ("allreduce", "hierarchical(direct)", "as in 'hierarchical(direct,"),
        ("alltoall", "hierarchical(direct,direct)", "alltoall has no hierarchical algorithm"),
    ],
)
def test_wrong_names(collective, name, text):
    with pytest.raises(ArgumentError) as caught:
        algorithms.get(collective, name)
    assert text in str(caught.value)


def test_wrong_groups():
    for of in (3, [], ["a"]):
        with pytest.raises(ArgumentError, match="must be a sequence with the number of the group"):
            check("allreduce", "hierarchical(direct,ring)", p=2, groups=of)
    with pytest.raises(ArgumentError, match="its groups have 3 ranks"):
        check("allreduce", "hierarchical(direct,ring)", p=4, groups=[0, 0, 1])


def test_drawing():
    text = drawing("allreduce", "hierarchical(direct,all_to_all)", 4, groups=Groups.sized([2, 2]))
    assert text.startswith(
        "allreduce 'hierarchical(direct,all_to_all)' on 4 ranks, 2 groups of 2 ranks\n"
    )
    cyclic = check("allreduce", "hierarchical(direct,all_to_all)", p=4, groups=[0, 1, 0, 1])
    assert grid(cyclic).splitlines()[2] == "rank 0  0 0   | 02 0   | * 0    | * *"


@pytest.mark.parametrize("machine", [Hosts, lambda hosts, ranks: FatTree(hosts, ranks, 2, 2)])
def test_simulated_on_hosts(machine):
    """The groups are those of the machine, and the array leaves each host once."""
    n = 4 << 20
    flat, composed = (
        simulate("allreduce", name, n, machine(4, 4), segment=n // 64)
        for name in ("halving_doubling", "hierarchical(direct,halving_doubling)")
    )
    assert composed.links["out", 0] == pytest.approx(2 * 3 / 4 * n)
    assert composed.time < flat.time


def test_choice_on_several_hosts():
    """Several ranks a host: compositions; one rank a host, or one host: other algorithms."""

    def chosen(sizes, nbytes, **options):
        groups = Groups.sized(sizes)
        found = select.decide(
            "allreduce", None, p=groups.p, nbytes=nbytes, family="other", groups=groups, **options
        )
        return found.algorithm

    assert chosen([2, 2], 1 << 20).name.startswith("hierarchical(direct,")
    assert chosen([8] * 4, 8).name.startswith("hierarchical(")
    assert chosen([2, 2], 1 << 20, ordered=True).keeps_order
    for sizes in ([1, 1, 1, 1], [4]):
        assert "hierarchical" not in chosen(sizes, 1 << 20).name
