"""The data of the explorer: they are what the proofs found, line by line of the sources."""

import dataclasses
import html
import re
import textwrap

import pytest

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.explorer import page
from collectives.explorer.cases import cases, turned
from collectives.explorer.sources import Sources, coloured

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]


@pytest.mark.usual(7)
@pytest.mark.parametrize(("collective", "name"), EVERY)
@pytest.mark.parametrize("p", [1, 4, 7])
def test_cases_are_what_the_proof_found(collective, name, p):
    row = algorithms.get(collective, name)
    found = cases(row, p, Sources(row.generate))
    for root in range(p) if row.collective.rooted else [0]:
        if root and "turn" in found:
            case = turned(found["roots"][0], p, root, found["turn"])
        else:
            case = found["roots"][root]
        proof = check(row, p=p, root=root)
        assert (case["nblocks"], case["depth"]) == (proof.nblocks, proof.depth)
        events = [
            (m[5], m[0], m[2], tuple(b % proof.nblocks for b in m[6:]), bool(m[4] & 1))
            for m in case["messages"]
        ]
        assert sorted(events) == sorted(map(tuple, proof.events))
        assert case["wanted"] == [proof.wanted(r) for r in range(p)]
        for r in range(p):
            assert len(case["rounds"][r]) == len(list(row.rounds(r, p, root)))
            due = case["due"][r if len(case["due"]) > 1 else 0]
            cut = proof.nblocks // len(due)
            assert [int(due[b // cut], 16) for b in range(proof.nblocks)] == [
                proof.due(r, b) for b in range(proof.nblocks)
            ]
            held = dict.fromkeys(case["held"][r], 1 << r)
            assert {b: mask for b, mask in enumerate(proof.held(0)[r]) if mask} == held


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_rounds_come_from_lines_that_yield(collective, name):
    row = algorithms.get(collective, name)
    sources = Sources(row.generate)
    found = cases(row, 7, sources)
    texts = [dict(each["lines"]) for each in sources.data()]
    used = {spot for rounds in found["roots"][0]["rounds"] for spot in rounds}
    assert used == set(range(len(sources.spots)))
    assert used
    for spot in sources.spots:
        statements = [
            "\n".join(plain(texts[number][line]) for line in range(first, last + 1))
            for number, first, last in spot
        ]
        # Some rounds are in a list. Others are those of another generator, changed.
        lasts = ("yield Exchange(", "yield from ", "yield Turn(")
        assert statements[-1].strip().startswith(lasts)
        for statement in statements[:-1]:
            assert statement.strip().startswith(("yield from ", "yield Exchange("))


def changed(rounds):
    for each in rounds:
        yield each._replace(both=False)


def all_at_once(r, p):
    yield from changed(algorithms.get("allreduce", "all_to_all").run(r, p))


def test_rounds_that_a_loop_changes_come_from_their_own_lines_too():
    row = dataclasses.replace(algorithms.get("allreduce", "all_to_all"), generate=all_at_once)
    sources = Sources(row.generate)
    cases(row, 4, sources)
    names = [each["name"] for each in sources.data()]
    assert names == ["all_at_once", "changed", "all_to_all"]
    assert [[number for number, *_ in spot] for spot in sources.spots] == [[0, 1, 2]]


def plain(line):
    return html.unescape(re.sub(r"<[^>]*>", "", line))


def test_text_is_coloured_and_whole():
    text = textwrap.dedent(
        '''\
        def f(r):
            """Two
            lines."""
            yield "<&>", 1  # and so on
        '''
    )
    lines = coloured(text)
    assert [plain(line) for line in lines] == text.splitlines()
    assert lines[0] == '<span class="k">def</span> <span class="d">f</span>(r):'
    assert lines[1:3] == [
        '    <span class="s">"""Two</span>',
        '<span class="s">    lines."""</span>',
    ]
    assert lines[3] == (
        '    <span class="k">yield</span> <span class="s">"&lt;&amp;&gt;"</span>, '
        '<span class="n">1</span>  <span class="c"># and so on</span>'
    )


def test_docstring_and_decorator_are_left_out():
    [text] = Sources(algorithms.get("broadcast", "tree").generate).data()
    lines = [plain(line) for _, line in text["lines"]]
    assert lines[0] == "def broadcast_tree(r: int, p: int, root: int) -> Iterator[Exchange]:"
    assert lines[1] == "    v = (r - root) % p"
    assert text["file"] == "collectives/algorithms/tree.py"


def of_root(r, p, root):
    """Not written for root 0: every other root has a way of its own."""
    if r == root:
        for q in range(p) if root % 2 else reversed(range(p)):
            if q != root:
                yield algorithms.Exchange(send=(q, 0))
    else:
        yield algorithms.Exchange(recv=(root, 0))


def test_roots_that_do_not_follow_from_each_other_are_all_there(registered):
    registered("broadcast", "of_root", of_root)
    row = algorithms.get("broadcast", "of_root")
    found = cases(row, 4, Sources(row.generate))
    assert "turn" not in found
    orders = [[m[2] for m in case["messages"]] for case in found["roots"]]
    assert orders == [[3, 2, 1], [0, 2, 3], [3, 1, 0], [0, 1, 2]]


def test_a_composition_has_its_groups():
    row = algorithms.get("allreduce", "hierarchical(direct,ring)")
    sources = Sources(row.generate)
    assert cases(row, 8, sources)["groups"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {"_allreduce_lanes", "embedded"} <= {each["name"] for each in sources.data()}
    assert "groups" not in cases(algorithms.get("allreduce", "ring"), 4, sources)


def test_a_wrong_algorithm_is_there_with_its_error(registered):
    def silent(r, p):
        """Say nothing."""
        return iter(())

    def fails(r, p):
        yield algorithms.Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0), fold=[1][p])

    registered("allreduce", "silent", silent)
    registered("allreduce", "fails", fails)
    found = page.data(algorithms.get("allreduce", "silent"))["cases"]
    assert found["1"]["roots"][0]["messages"] == []
    assert found["2"]["error"].startswith("allreduce 'silent' on 2 ranks: rank 0 ends with block 0")
    assert found["2"]["roots"][0]["messages"] == []
    found = page.data(algorithms.get("allreduce", "fails"))["cases"]
    assert re.fullmatch(
        r"allreduce 'fails' on 4 ranks: rank 0, round 1: raises IndexError: list index out of "
        r"range \(test_explorer_data.py, line \d+\)",
        found["4"]["error"],
    )


def falls_out_in_the_third_round(r, p):
    right, left = (r + 1) % p, (r - 1) % p
    for t in range(p - 1):
        wrong = t == 2 and r == 0
        block = (r - t + (1 if wrong else 0)) % p
        yield algorithms.Exchange(send=(right, block), recv=(left, (r - t - 1) % p), fold=True)


def raises_in_the_third_round(r, p):
    for t in range(p - 1):
        if t == 2 and r == 1:
            raise ValueError("no more")
        yield algorithms.Exchange(
            send=((r + 1) % p, (r - t) % p), recv=((r - 1) % p, (r - t - 1) % p), fold=True
        )


def names_a_rank_that_is_not_there(r, p, root):
    if r == root:
        yield algorithms.Exchange(send=((root + 1) % p, 0))
        yield algorithms.Exchange(send=(p if root == 2 else (root + 2) % p, 0))
    elif r in ((root + 1) % p, (root + 2) % p):
        yield algorithms.Exchange(recv=(root, 0))


@pytest.mark.parametrize(
    ("collective", "generate", "message", "steps", "stuck"),
    [
        (
            "allreduce",
            falls_out_in_the_third_round,
            "rank 1, round 3: expects block 2 from rank 0, which sends block 3",
            {1, 2, 3},
            [0, 1, 2],
        ),
        ("allreduce", raises_in_the_third_round, "rank 1, round 3: raises", {1, 2, 3}, [0, 2]),
        ("broadcast", names_a_rank_that_is_not_there, "rank 2, round 2: ", {1}, [1]),
    ],
)
def test_what_is_wrong_is_there_up_to_the_round_that_fails(
    registered, collective, generate, message, steps, stuck
):
    registered(
        collective, "wrong", generate, blocks=lambda p: p if collective == "allreduce" else 1
    )
    row = algorithms.get(collective, "wrong")
    found = page.data(row)["cases"]["4" if collective == "allreduce" else "3"]
    assert message in found["error"]
    [case] = found["roots"]
    assert {m[5] for m in case["messages"]} <= steps
    assert case["depth"] == max(m[5] for m in case["messages"])
    assert {m[5] for m in case["messages"]} >= set(range(1, case["depth"] + 1))
    rounds = [len(each) for each in case["rounds"]]
    assert all(m[1] < rounds[m[0]] and m[3] < rounds[m[2]] for m in case["messages"])
    assert set(found["stuck"]) <= set(range(4))
    assert found["stuck"] == stuck


def test_a_number_of_ranks_that_is_refused_says_so(registered):
    registered(
        "allreduce",
        "two",
        algorithms.get("allreduce", "ring").generate,
        blocks=lambda p: p,
        requires=("power_of_two",),
    )
    found = page.data(algorithms.get("allreduce", "two"))["cases"]
    assert "needs a power of two" in found["6"]["error"]
    assert found["8"]["roots"][0]["depth"] == 14


def test_what_has_no_text_is_played_without(registered):
    space = {"Exchange": algorithms.Exchange, "__name__": "typed"}
    exec(
        "def typed(r, p):\n"
        "    others = [(q, 0) for q in range(p) if q != r]\n"
        "    yield Exchange(send=others, recv=others, fold=True)\n",
        space,
    )
    registered("barrier", "typed", space["typed"])
    found = page.data(algorithms.get("barrier", "typed"))
    assert found["functions"] == [{"name": "typed", "file": "<string>", "lines": []}]
    assert len(found["cases"]["3"]["roots"][0]["messages"]) == 6
