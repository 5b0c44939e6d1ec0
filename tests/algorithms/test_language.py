"""The language of rounds: its forms are proven, drawn, simulated, exported and run."""

import re
import tempfile
from xml.etree import ElementTree

import interpreter
import language
import numpy as np
import pytest

from collectives import algorithms, draw, msccl
from collectives.algorithms import Exchange, Fold, Store, parallel
from collectives.algorithms.groups import Groups
from collectives.check import check
from collectives.choice.select import decide
from collectives.cli import main
from collectives.errors import ArgumentError, ProofError
from collectives.explorer.cases import cases, turned
from collectives.explorer.sources import Sources
from collectives.msccl.export import refusal
from collectives.picture import space_time
from collectives.picture.messages import message_text
from collectives.simulate import simulate
from collectives.simulation.columns import columns
from collectives.simulation.graph import machine as machine_of
from collectives.simulation.grid import simulated
from collectives.text.words import count
from collectives.topology import Flat

WAYS = [
    {"merged": merged, "in_place": in_place, "segments": segments, "hosts": hosts}
    for merged in (True, False)
    for in_place in (False, True)
    for segments in (1, 3)
    for hosts in (0, 1, 2)
]

every_example = pytest.mark.parametrize(("collective", "name"), language.EXAMPLES)


@pytest.fixture(autouse=True)
def registered():
    with language.registered():
        yield


@pytest.fixture
def made():
    """Return a function that registers a generator, which is gone after the test."""
    names = []

    def register(generate, collective="allreduce", **options):
        algorithms.algorithm(collective, name="made", replace=True, **options)(generate)
        names[:] = [collective]
        return algorithms.get(collective, "made")

    yield register
    for collective in names:
        algorithms.unregister(collective, "made")


def roots(row, p):
    return sorted({0, p - 1}) if row.collective.rooted else [0]


@pytest.mark.usual(2, 5)
@every_example
@pytest.mark.parametrize("p", range(1, 10))
def test_examples_are_proven_and_computed(collective, name, p):
    row = algorithms.get(collective, name)
    rng = np.random.default_rng(p)
    for root in roots(row, p):
        check(row, p=p, root=root)
        for n in (0, 1, p + 1, 101):
            sizes = interpreter.equal(row, p, n)
            inputs = interpreter.make_inputs(
                row, p, root, sizes, lambda r, n: rng.integers(-999, 999, n)
            )
            wanted = interpreter.expected(row, inputs, root, np.add, sizes)
            for way in WAYS:
                if way["in_place"] and collective == "alltoall":
                    continue
                hosts = tuple(tuple(range(k, p, way["hosts"])) for k in range(way["hosts"]))
                got = interpreter.run(
                    row, inputs, root, np.add, sizes, **{**way, "hosts": hosts}, seed=n
                )
                for have, want in zip(got, wanted, strict=True):
                    assert list(have) == list(want)
                    assert all(np.array_equal(have[part], want[part]) for part in want)


@every_example
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_all_readers_see_the_same_messages(collective, name, p):
    row = algorithms.get(collective, name)
    for root in roots(row, p):
        proof = check(row, p=p, root=root)
        table, rows = columns(row, p, root), list(proof.schedule)
        places = [
            table.first[r] + j * table.stride[r]
            for r, sent in enumerate(proof.schedule.sent)
            for j in range(len(sent))
        ]
        assert [(table.target[k], table.due[k], table.fold[k]) for k in places] == [
            (each.target, each.taken_in, each.fold) for each in rows
        ]
        found = cases(row, p, Sources(row.generate))
        case = found["roots"][0]
        if root and "turn" in found:
            case = turned(case, p, root, found["turn"])
        assert sorted((*m[:4], m[4] & 1) for m in case["messages"]) == sorted(
            (*each[:4], min(each.fold, 1)) for each in rows
        )
        root_element = ElementTree.fromstring(space_time(proof))
        titles = [each.text for each in root_element.iter("{http://www.w3.org/2000/svg}title")]
        assert {message_text(proof, event) for event in proof.events} <= set(titles)
        if refusal(row, p, root) is None:
            text = msccl.export(row, p, root)
            assert by_block(read_back(text, p, root)) == by_block(proof)
            other = read_back(re.sub(r' round="\d+"', "", text), p, root)
            assert other.sent == proof.sent


def by_block(proof):
    """Return the events of a proof; what is read joins messages of a round for one rank."""
    return {(each._replace(blocks=b)) for each in proof.events for b in each.blocks}


def read_back(text, p, root):
    """Return the proof of a file of MSCCL."""
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(text)
        file.flush()
        row = msccl.read(file.name).algorithm
    algorithms.unregister(row.collective.name, row.name)
    return check(row, p=p, root=root)


def test_one_round_folds_and_stores():
    proof = check("allreduce", "in_turns", p=3)
    assert draw.rounds(proof).splitlines()[1:3] == [
        "step 2  fold   0 -[1]-> 1   2 -[1]-> 1",
        "        store  0 -[0]-> 1   0 -[0]-> 2",
    ]
    assert re.findall(r"round 2  language.py:\d+  (\w+) +(.*)", str(proof.schedule)) == [
        ("fold", "0 -[1]-> 1   2 -[1]-> 1"),
        ("store", "0 -[0]-> 1   0 -[0]-> 2"),
    ]


def test_a_message_says_itself_whether_it_folds(made):
    """`fold` of the round is for pairs."""

    def swap(r, p):
        yield Exchange(send=(1 - r, [0, 1]), recv=Fold(1 - r, [0, 1]))
        yield Exchange(send=(1 - r, 2), recv=[Store(1 - r, 3), (1 - r, 2)], fold=True)

    found = [[type(m) for m in each.recv] for each in made(swap, blocks=4).rounds(0, 2)]
    assert found == [[Fold], [Store, Fold]]


def both_in_one(r, p):
    yield Exchange(send=[(1 - r, 0), (1 - r, 0)], recv=[Fold(1 - r, 0), Store(1 - r, 0)])


def sent(r, p):
    yield Exchange(send=Fold(1 - r, 0), recv=(1 - r, 0))


def of_three(r, p):
    yield Exchange(send=(1 - r, 0), recv=[Fold(1 - r, 0.5)])


REFUSED = {
    both_in_one: "rank 0, round 1: folds and stores block 0; a round can do one of them",
    sent: "rank 0, round 1: has a Fold or a Store in send=; only received messages are these",
    of_three: "rank 0, round 1: receives Fold(peer=1, blocks=0.5), which is not a pair",
}


@pytest.mark.parametrize("generate", REFUSED)
def test_wrong_rounds(made, generate):
    row = made(generate)
    for run in (lambda: check(row, p=2), lambda: columns(row, 2)):
        with pytest.raises(ProofError, match=re.escape(REFUSED[generate])):
            run()


def alone(r, p, root=0, blocks=range(1)):
    """A chain, in step: rank r receives in round r - 1."""
    for t in range(p - 1):
        yield Exchange(
            send=[(r + 1, b) for b in blocks if t == r],
            recv=[(r - 1, b) for b in blocks if t == r - 1],
        )


def test_streams_of_different_lengths(made):
    def generate(r, p, root):
        yield from parallel(alone(r, p), [], alone(r, p, blocks=range(1, 3)))
        yield from parallel()

    proof = check(made(generate, "broadcast", blocks=3), p=4)
    assert (proof.depth, proof.sent[0], proof.messages[0]) == (3, 1, 3)
    lines = re.findall(r"round 1  (\S+):", str(proof.schedule))
    assert lines == ["test_language.py"]


def share_a_block(r, p, root):
    yield from parallel(alone(r, p), alone(r, p))


def is_no_stream(r, p, root):
    yield from parallel(alone(r, p), alone)


def yields_a_pair(r, p, root):
    yield from parallel(alone(r, p), [(1, 0)])


def differ_in_both(r, p, root):
    streams = ([Exchange(recv=(1 - r, b), fold=True, both=bool(b))] for b in range(2))
    yield from parallel(*streams)


MERGED = {
    share_a_block: "rank 0, round 1: raises ArgumentError: parallel: streams 1 and 2 both have "
    "block 0 (test_language.py, line ",
    is_no_stream: "rank 0, round 1: raises ArgumentError: parallel: stream 2 is <function alone",
    yields_a_pair: "parallel: stream 2 yields (1, 0), no Exchange",
    differ_in_both: "parallel: rounds that come together differ in both=",
}


@pytest.mark.parametrize("generate", MERGED)
def test_streams_that_cannot_be_merged(made, generate):
    with pytest.raises(ProofError, match=re.escape(MERGED[generate])):
        check(made(generate, "broadcast", blocks=3), p=2)


def late_in_one(r, p):
    """Rank 0 sends block 1 a round later than rank 1 expects it, and block 2 in its place."""
    late = [Exchange()] * (r == 0)
    yield from parallel([*late, *alone(r, p, blocks=[1])], alone(r, p, blocks=[2]))


def each_waits_in_one(r, p):
    """The first stream is late on rank 1, and the second on rank 0."""
    listen, speak = Exchange(recv=(1 - r, r), fold=True), Exchange(send=(1 - r, 1 - r))
    streams = [listen], [Exchange(), speak]
    yield from parallel(*(streams[::-1] if r else streams))


OUT_OF_STEP = {
    late_in_one: "rank 1, round 1: expects block 1 from rank 0, which sends block 2",
    each_waits_in_one: "deadlock: rank 0 in round 1 waits for rank 1 to send; rank 1 in round 1 "
    "waits for rank 0 to send",
}


@pytest.mark.parametrize("generate", OUT_OF_STEP)
def test_streams_out_of_step(made, generate):
    with pytest.raises(ProofError, match=re.escape(OUT_OF_STEP[generate])):
        check(made(generate, blocks=3), p=2)


# -- a depth that follows the size ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "blocks"), [(0, 1), (1024, 1), (4095, 2), (4096, 4), (5000, 4), (1 << 30, 32)]
)
def test_blocks_follow_the_size(nbytes, blocks):
    """All sizes of one bit length, which are one class of calls, have the same plan."""
    row = algorithms.get("broadcast", "pipelined_chain")
    at = row.at(5, nbytes)
    assert (at.blocks(5), at.name) == (blocks, f"{row.name} in {count(blocks, 'block')}")
    assert at is row.at(5, nbytes) is decide("broadcast", row.name, p=5, nbytes=nbytes).algorithm
    assert check(at, p=5, root=2).depth == blocks + 3


def test_without_a_size_it_is_one_mebibyte():
    row = algorithms.get("broadcast", "pipelined_chain")
    assert row.blocks(3) == row.at(3, 1 << 20).blocks(3) == 32
    plain = algorithms.get("broadcast", "chain")
    assert plain.at(3, 1 << 20) is plain


def test_simulations_are_of_the_size():
    machine, sizes = Flat(4, alpha=0, beta=1e-9, gamma=0), [1 << 10, 1 << 12, 6000, 1 << 13]
    row = algorithms.get("broadcast", "pipelined_chain")
    times = [simulate("broadcast", row, size, machine).time for size in sizes]
    for size, time in zip(sizes, times, strict=True):
        blocks = row.at(4, size).blocks(4)
        assert time == pytest.approx((blocks + 2) * size / blocks * 1e-9, rel=1e-3)
    table = simulated([row], machine_of("flat"), [4], sizes, root=0, segment=0, limit=10**6)
    assert len(table.times[4][row.name]) == len(set(table.times[4][row.name])) == len(sizes)


def test_explain_at_a_size(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from collectives.algorithms import Exchange, algorithm\n"
        "@algorithm('broadcast', blocks=lambda p, nbytes: nbytes // 1024, replace=True)\n"
        "def piped(r, p, root, blocks):\n"
        "    for b in range(blocks):\n"
        "        yield Exchange(send=(1, b)) if r == 0 else Exchange(recv=(0, b))\n"
    )
    try:
        assert main(["explain", str(file), "-n", "2", "-b", "3K"]) == 0
        text = capsys.readouterr().out
        assert "pieces    2 blocks" in text
        assert re.search(r"block +0 1 +\|", text)
        assert main(["simulate", str(file), "-p", "2", "-b", "4K"]) == 0
        assert main(["explain", str(file), "-n", "2", "-b", "4"]) == 2
        told = "broadcast 'piped' on 2 ranks, root 0, 4 B, has 0 blocks, and needs one at least"
        assert told in capsys.readouterr().err
    finally:
        algorithms.unregister("broadcast", "piped")


def test_blocks_that_are_not_a_function(made):
    turns = iter(range(1, 9))
    row = made(alone, "broadcast", blocks=lambda p, nbytes: next(turns))
    told = "has 1 blocks, and then 2; blocks= must depend on p and the bytes alone"
    with pytest.raises(ProofError, match=told):
        row.at(2, 8)
    row = made(alone, "broadcast", blocks=lambda p, nbytes: nbytes // p / 2)
    with pytest.raises(ProofError, match=r"the number of blocks: .*float.*test_language.py, line"):
        row.at(2, 8)


# -- groups --------------------------------------------------------------------------------------


def test_groups_are_those_of_the_call():
    row = algorithms.get("alltoall", "hierarchical_alltoall")
    proof = check(row, p=6, groups=[0, 0, 0, 1, 1, 1])
    # Two messages in the own host, and one to the other.
    assert (proof.messages[0], proof.depth) == (3, 2)
    assert str(proof.algorithm.groups) == "2 groups of 3 ranks"
    groups = Groups.read([0, 1, 0, 1])
    asked = decide("alltoall", row.name, p=4, nbytes=64, groups=groups).algorithm
    assert asked is algorithms.get("alltoall", row.name, groups)
    assert "2 groups of 2 ranks" in asked.title(4)
    assert next(asked.run(0, 4)).send == [(2, [2, 3])]


@pytest.mark.parametrize("of", [[0, 0, 1, 1, 2], [0, 1, 0, 2, 0, 1, 0], [0, 0, 0], [0, 1, 2]])
def test_any_groups(of):
    check("alltoall", "hierarchical_alltoall", p=len(of), groups=of)


def test_groups_of_other_ranks_are_refused():
    row = algorithms.get("alltoall", "hierarchical_alltoall", Groups.read([0, 0, 1]))
    with pytest.raises(ArgumentError, match="on 4 ranks: its groups have 3 ranks"):
        check(row, p=4)


def test_an_argument_that_nobody_gives_is_refused(made):
    def generate(r, p, hosts):
        yield Exchange()

    with pytest.raises(ArgumentError, match=r"missing a required argument: 'hosts'"):
        made(generate)


@pytest.mark.parametrize("name", ["alltoallv", "allgatherv"])
def test_vector_forms_run_the_algorithms_of_the_others(name):
    told = f"{name} runs the algorithms of {name[:-1]}: write @algorithm('{name[:-1]}')"
    with pytest.raises(ArgumentError, match=re.escape(told)):
        algorithms.algorithm(name)
