"""The language of rounds: what it says is proven, drawn, simulated, exported and run."""

import re
import tempfile
from xml.etree import ElementTree

import interpreter
import language
import numpy as np
import pytest

from collectives import algorithms, draw, msccl
from collectives.algorithms import Exchange, Fold, Store
from collectives.check import check
from collectives.errors import ProofError
from collectives.explorer.cases import cases
from collectives.explorer.sources import Sources
from collectives.msccl.export import refusal
from collectives.picture import space_time
from collectives.picture.messages import message_text
from collectives.simulation.columns import columns

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
        case = cases(row, p, Sources(row.generate))["roots"][root]
        assert [(*m[:4], m[4] & 1) for m in case["messages"]] == [
            (*each[:4], min(each.fold, 1)) for each in rows
        ]
        root_element = ElementTree.fromstring(space_time(proof))
        titles = [each.text for each in root_element.iter("{http://www.w3.org/2000/svg}title")]
        assert {message_text(proof, event) for event in proof.events} <= set(titles)
        if refusal(row, p, root) is None:
            text = msccl.export(row, p, root)
            assert check(_read(text), p=p, root=root).events == proof.events
            other = _read(re.sub(r' round="\d+"', "", text))
            assert check(other, p=p, root=root).sent == proof.sent


def _read(text):
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(text)
        file.flush()
        return msccl.read(file.name).algorithm


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
