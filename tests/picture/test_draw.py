"""The pictures: complete, true to the proof, and one of them to the letter."""

import re

import pytest
from rows import every_row

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.draw import drawing, grid, rounds

SIZES = [1, 2, 3, 4, 5, 8, 12, 17]

ARROW = re.compile(r"(\d+) -\[([\d., -]+)\]-> (\d+)")
LABEL = re.compile(r"^step +(\d+) ")


def proofs(collective, name):
    for p in SIZES:
        for root in sorted({0, p - 1}) if COLLECTIVES[collective].rooted else [0]:
            yield check(collective, name, p=p, root=root)


def numbers(text, p):
    """Read the numbers of blocks back: spans, or for an alltoall pairs of ranks."""
    for item in text.split(", "):
        if p:
            source, target = item.split(".") if "." in item else item
            yield int(source) * p + int(target)
        else:
            first, _, last = item.partition("-")
            yield from range(int(first), int(last or first) + 1)


def arrows(text, p=None):
    """Read (time, source, target, blocks, fold) back from a drawing of rounds.

    Blocks of an alltoall on `p` ranks are named by two ranks.
    """
    time, fold = 0, False
    for line in text.splitlines():
        label = LABEL.match(line)
        time = int(label[1]) if label else time
        verb = re.search(r" (fold|store) ", line)
        fold = verb[1] == "fold" if verb else fold
        for source, blocks, target in ARROW.findall(line):
            yield time, int(source), int(target), tuple(numbers(blocks, p)), fold


@every_row
def test_rounds_show_every_message_once(collective, name):
    for proof in proofs(collective, name):
        text = rounds(proof)
        found = arrows(text, proof.p if collective == "alltoall" and proof.p > 1 else None)
        assert sorted(found) == sorted(map(tuple, proof.events))
        assert all(len(line) <= 96 and line == line.rstrip() for line in text.splitlines())


def tables(text):
    """Read a grid back: for each step, a list of rows of cells."""
    steps = {}
    for part in text.split("\n\n"):
        head, *rows = part.splitlines()
        titles = re.findall(r"start|step \d+", head)
        rows = [re.sub(r"^(rank \d+|block) +", "", row) for row in rows]
        split = [[cells.split() for cells in row.split("|")] for row in rows]
        for k, title in enumerate(titles):
            steps[title] = [row[k] for row in split if row[k] or len(row) == len(titles)]
    return steps


@every_row
def test_grid_ends_complete(collective, name):
    for proof in proofs(collective, name):
        steps = tables(grid(proof))
        assert list(steps) == ["start", *(f"step {t}" for t in range(1, proof.depth + 1))]
        for rows in steps.values():
            assert len(rows) == proof.p + (proof.nblocks > 1 or proof.algorithm.scratch)
        contract = proof.algorithm.collective
        last = list(steps.values())[-1][-proof.p :]
        for r in range(proof.p):
            assert len(last[r]) == proof.nblocks << proof.algorithm.scratch
            cut = proof.nblocks // contract.parts(proof.p)
            for part in contract.outputs(r, proof.p, proof.root):
                assert set(last[r][part * cut :][:cut]) == {"*"}


@pytest.mark.parametrize("p", [2, 4, 10, 11])
def test_cells_name_contributors_or_count_them(p):
    first, *_, last = tables(grid(check("reduce", "chain", p=p))).values()
    row = last[1][0]
    if p <= 10:
        assert row == "".join(map(str, range(1, p)))
        assert first[p - 1] == [str(p - 1)]
    else:
        assert row == "10/11"
        assert first[p - 1] == ["1/11"]
    holdings = tables(grid(check("broadcast", "chain", p=p, root=1)))["start"]
    assert [row[0] for row in holdings] == ["*" if r == 1 else "." for r in range(p)]


def test_blocks_between_pairs_are_named_by_both():
    text = grid(check("alltoall", "direct", p=3))
    assert text.splitlines()[1].split(" | ")[1] == "00 01 02 10 11 12 20 21 22"
    assert "0 -[01]-> 1" in rounds(check("alltoall", "direct", p=3))
    assert "0 -[0.11]-> 11" in rounds(check("alltoall", "direct", p=12))
    assert " 11.11" in grid(check("alltoall", "direct", p=12))
    assert rounds(check("alltoall", "bruck", p=4)).startswith("step 1  store  0 -[01, 03]-> 1 ")


def test_blocks_that_two_ranks_share_are_numbered():
    @algorithms.algorithm("alltoall", name="halves", blocks=2)
    def halves(r, p):
        """Send each block in two messages."""
        other = 1 - r
        for k in range(2):
            sent, got = (2 * (a * p + b) + k for a, b in ((r, other), (other, r)))
            yield algorithms.Exchange(send=(other, sent), recv=(other, got))

    text = drawing("alltoall", "halves", 2)
    algorithms.unregister("alltoall", "halves")
    assert "step 1  store  0 -[01/0]-> 1   1 -[10/0]-> 0" in text
    assert "block   00/0 00/1 01/0 01/1 10/0 10/1 11/0 11/1" in text


def test_a_star_is_all_that_belongs_to_the_rank():
    """In a scan that is the rank's own prefix; in a reduce_scatter only its block is finished."""
    start, *_, end = tables(grid(check("scan", "recursive", p=3))).values()
    assert start == [["*"], ["1"], ["2"]]
    assert end == [["*"], ["*"], ["*"]]
    *_, end = tables(grid(check("exscan", "recursive", p=3))).values()
    assert end == [["0"], ["*"], ["*"]]
    *_, end = tables(grid(check("reduce_scatter", "direct", p=2))).values()
    assert end[1:] == [["*", "0"], ["1", "*"]]
    text = drawing("scan", "recursive", 3)
    assert text.endswith("* is all that belong there, . is none.")


def test_lines_keep_to_their_width():
    proof = check("allreduce", "ring", p=4)
    for width in (60, 100):
        assert max(map(len, grid(proof, width=width).splitlines())) <= width
        assert max(map(len, rounds(proof, width=width).splitlines())) <= width
    assert len(grid(proof, width=100).split("\n\n")) == 2
    assert len(grid(proof, width=1).split("\n\n")) == 7


RING = """\
allreduce 'ring' on 3 ranks
Partial sums travel once around the ring (reduce-scatter), then complete sums (allgather).

cost      (2*(p - 1)) alpha + (2*(p - 1)/p) n beta + ((p - 1)/p) n gamma
depth     4 steps
messages  12
sent      4 arrays: 4/3 by each rank
folded    2 arrays: 2/3 by each rank

step 1  fold   0 -[0]-> 1   1 -[1]-> 2   2 -[2]-> 0
step 2  fold   0 -[2]-> 1   1 -[0]-> 2   2 -[1]-> 0
step 3  store  0 -[1]-> 1   1 -[2]-> 2   2 -[0]-> 0
step 4  store  0 -[0]-> 1   1 -[1]-> 2   2 -[2]-> 0

        start | step 1   | step 2   | step 3   | step 4
block   0 1 2 | 0  1  2  | 0  1  2  | 0  1  2  | 0 1 2
rank 0  0 0 0 | 0  0  02 | 0  *  02 | *  *  02 | * * *
rank 1  1 1 1 | 01 1  1  | 01 1  *  | 01 *  *  | * * *
rank 2  2 2 2 | 2  12 2  | *  12 2  | *  12 *  | * * *

Cells name the ranks whose contributions they hold: * is all that belong there, . is none."""


def test_the_ring_to_the_letter():
    assert drawing("allreduce", "ring", 3) == RING


@every_row
def test_drawings_have_all_parts(collective, name):
    for p in (1, 2, 11):
        text = drawing(collective, name, p, root=p - 1 if COLLECTIVES[collective].rooted else 0)
        title, summary, *_ = text.splitlines()
        assert title.startswith(f"{collective} {name!r} on {p} rank")
        assert ("root" in title) == COLLECTIVES[collective].rooted
        assert summary == algorithms.get(collective, name).summary
        for word in ("cost", "depth", "messages", "sent", "folded"):
            assert f"\n{word:8}  " in text
        assert ("no messages" in text) == (p == 1)
