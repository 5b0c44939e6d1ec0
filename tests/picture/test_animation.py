"""Animations: every message moves from its rank to the other, and the contents follow the proof."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rows import every_row
from test_picture import ARROW, CELL, SPACE, marked, numbers, proofs, ranks_of, title

from collectives.check import check
from collectives.cli import main
from collectives.errors import ArgumentError
from collectives.picture import animation, picture
from collectives.picture.animation import MOST_BLOCKS, stage

DOCS = Path(__file__).resolve().parents[2] / "docs"


def step_of(element):
    return int(re.search(r"\bat(\d+)", element.get("class"))[1])


def small(collective, name):
    return [each for each in proofs(collective, name) if each.nblocks <= MOST_BLOCKS]


def left(element):
    """Return the left edge and the top of the first box of an element."""
    box = element.find(f"{SPACE}rect")
    return float(box.get("x")), float(box.get("y"))


@every_row
def test_each_message_moves_from_its_rank_to_the_other(collective, name):
    for proof in small(collective, name):
        on = stage(proof)
        found = []
        for element in marked(ElementTree.fromstring(animation(proof)), "moving"):
            time, source, blocks, target, verb = ARROW.match(title(element)).groups()
            assert step_of(element) == int(time)
            shift = re.fullmatch(r"--x: (-?\d+)px; --y: (-?\d+)px", element.get("style"))
            (sx, sy), (tx, ty) = on.corners[int(source)], on.corners[int(target)]
            assert (int(shift[1]), int(shift[2])) == pytest.approx((tx - sx, ty - sy), abs=0.51)
            x, y = left(element)
            assert sx - 20 <= x <= sx + on.wide
            assert sy <= y <= sy + on.high
            found.append(
                (int(time), int(source), int(target), numbers(blocks, proof), verb == "folds")
            )
        assert sorted(found) == sorted(map(tuple, proof.events))


@every_row
def test_contents_after_each_step_are_those_of_the_proof(collective, name):
    for proof in small(collective, name):
        on = stage(proof)
        shown = {}
        elements = marked(ElementTree.fromstring(animation(proof)), "shown")
        steps = [step_of(each) for each in elements]
        assert steps == sorted(steps), "later contents cover earlier ones"
        places = {
            tuple(round(each + 1, 1) for each in on.place(r, b)): (r, b)
            for r in range(proof.p)
            for b in range(proof.nblocks)
        }
        for step in range(proof.depth + 1):
            for element in elements:
                if step_of(element) != step:
                    continue
                place = places[left(element)]
                shown[place] = 0
                if element.find(f"{SPACE}title") is not None:
                    when, rank, blocks, _, held = CELL.match(title(element)).groups()
                    assert (int(rank), *numbers(blocks, proof)) == place
                    assert when == (f"after step {step}" if step else "at the start")
                    shown[place] = ranks_of(held)
            assert shown == {
                (r, b): mask
                for r, masks in enumerate(proof.held(step))
                for b, mask in enumerate(masks)
            }


def test_steps_follow_each_other_for_readers_who_allow_motion():
    still, moving = animation(check("allreduce", "ring", p=4)).split(
        "@media (prefers-reduced-motion: no-preference) {"
    )
    assert "animation" not in still.partition("<style>")[2]
    assert ".collectives .moving, .collectives .caption { opacity: 0; }" in still
    assert ".collectives .caption.at6 { opacity: 1; }" in still  # the end, with all contents
    begins = {}
    for kind, step, frames in re.findall(r"keyframes collectives-6-(\w+)-(\d) { (.*) }", moving):
        shares = [float(each) for each in re.findall(r"([\d.]+)%", frames)]
        assert shares == sorted(shares)
        assert shares[-1] == 100
        seen = [float(share) for share in re.findall(r"([\d.]+)% { opacity: 1", frames)]
        begins[kind, int(step)] = seen
    assert len(begins) == 6 + 7 + 7
    for step in range(1, 7):
        leaves, lands = begins["moving", step]
        assert begins["shown", step][0] == pytest.approx(lands, abs=0.02)
        assert begins["caption", step][0] == leaves
        assert begins["caption", step - 1][1] == pytest.approx(leaves, abs=0.02)
    for kind in ("moving", "caption", "shown"):
        assert f".{kind}.at3 {{ animation-name: collectives-6-{kind}-3; }}" in moving
    assert "<script" not in moving
    assert "http" not in moving.replace("http://www.w3.org/2000/svg", "")


def test_no_two_ranks_overlap():
    for p in range(1, 9):
        on = stage(check("allreduce", "ring", p=p))
        for k, (x, y) in enumerate(on.corners):
            for a, b in on.corners[:k]:
                assert abs(x - a) > on.wide or abs(y - b) > on.high


@pytest.mark.parametrize(("name", "p"), [("allreduce/ring", 9), ("alltoall/direct", 5)])
def test_too_many_ranks_or_blocks_are_refused(name, p):
    with pytest.raises(ArgumentError, match="an animation has room for 8 ranks with 16 blocks"):
        animation(check(*name.split("/"), p=p))


def test_the_command_writes_it(tmp_path, capsys):
    path = tmp_path / "tree.svg"
    words = ["explain", "broadcast/tree", "-n", "5", "--theme", "dark", "--animate"]
    assert main([*words, "--svg", str(path)]) == 0
    proof = check("broadcast", "tree", p=5)
    assert path.read_text(encoding="utf-8") == animation(proof, theme="dark")
    assert animation(proof) != picture(proof)
    assert main(["explain", "ring", "--animate"]) == 2
    assert "--animate is for --svg" in capsys.readouterr().err


def test_the_animation_of_the_manual_is_what_the_command_writes(tmp_path):
    path = tmp_path / "ring.svg"
    assert main(["explain", "ring", "-n", "4", "--svg", str(path), "--animate"]) == 0
    assert (DOCS / "start" / "ring.svg").read_text(encoding="utf-8") == path.read_text("utf-8")
