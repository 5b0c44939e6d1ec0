"""The pictures: every message and holding of the proof once, where it belongs, and legible."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from eyes import EYES, seen
from rows import every_row

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.cli import main
from collectives.picture import held, holdings, picture, sheet, space_time

SIZES = [1, 2, 4, 7]
DOCS = Path(__file__).resolve().parents[2] / "docs"

SPACE = "{http://www.w3.org/2000/svg}"
ARROW = re.compile(r"step (\d+): rank (\d+) sends blocks? (.+) to rank (\d+), which (folds|stores)")
CELL = re.compile(
    r"(at the start|after step \d+): rank (\d+) (?:now )?holds blocks? (.+), (.+?): (ranks? .+)"
)


KEYS = [
    "sends block 0",
    "is folded into what is there",
    "is stored",
    "2 of 3 contributions: ranks 0, 2",
    "complete",
    "new in this step",
    "belongs there",
]


def proofs(collective, name):
    algorithm = algorithms.get(collective, name)
    for p in SIZES:
        if algorithm.refusal(p) is None:
            for root in sorted({0, p - 1}) if COLLECTIVES[collective].rooted else [0]:
                yield check(collective, name, p=p, root=root)


def marked(root, word):
    """Return the elements of a class."""
    return [each for each in root.iter() if word in each.get("class", "").split()]


def title(element):
    return element.find(f"{SPACE}title").text


def numbers(text, proof):
    """Read numbers of blocks back: spans, or for an alltoall pairs of ranks."""
    found = []
    for item in text.split(", "):
        if proof.algorithm.collective.name == "alltoall" and proof.p > 1:
            source, target = item.split(".") if "." in item else item
            found.append(int(source) * proof.p + int(target))
        else:
            first, _, last = item.partition("-")
            found += range(int(first), int(last or first) + 1)
    return tuple(found)


def ranks_of(text):
    spans = (item.partition("-") for item in text.split(" ", 1)[1].split(", "))
    return sum(1 << r for a, _, b in spans for r in range(int(a), int(b or a) + 1))


def events(root, proof):
    for element in marked(root, "arrow"):
        time, source, blocks, target, verb = ARROW.match(title(element)).groups()
        yield int(time), int(source), int(target), numbers(blocks, proof), verb == "folds"


def states(root, proof):
    """Read back whose contributions each rank holds: {time: {(rank, block): (mask, state)}}."""
    found = {}
    for element in marked(root, "cell"):
        when, rank, blocks, state, held = CELL.match(title(element)).groups()
        time = int(when.rpartition(" ")[2]) if "step" in when else 0
        for b in numbers(blocks, proof):
            assert (int(rank), b) not in found.setdefault(time, {})
            found[time][int(rank), b] = ranks_of(held), state
    return found


@every_row
def test_each_message_is_one_arrow(collective, name):
    for proof in proofs(collective, name):
        root = ElementTree.fromstring(space_time(proof))
        assert sorted(events(root, proof)) == sorted(map(tuple, proof.events))
        assert len(marked(root, "ends")) == len(proof.events)
        folds = sum(event.fold for event in proof.events)
        assert len(marked(root, "fold")) == folds
        ends = marked(root, "ends")
        assert sum(each.find(f"{SPACE}polygon") is not None for each in ends) == len(ends) - folds
        assert bool(proof.events) != ("no messages" in space_time(proof))


def points(root):
    """Return where arrows leave, and where their marks are: the disc, or the point of the tip."""
    starts = [(float(each.get("x1")), float(each.get("y1"))) for each in marked(root, "arrow")]
    marks = []
    for each in marked(root, "ends"):
        tip, disc = each.find(f"{SPACE}polygon"), each.find(f"{SPACE}circle")
        place = (
            [disc.get("cx"), disc.get("cy")]
            if tip is None
            else tip.get("points").split()[0].split(",")
        )
        marks.append(tuple(map(float, place)))
    return starts, marks


@every_row
def test_no_two_arrows_share_an_end(collective, name):
    for proof in proofs(collective, name):
        starts, marks = points(ElementTree.fromstring(space_time(proof)))
        assert len(starts) == len(marks) == len(proof.events)
        assert len({*starts, *marks}) == 2 * len(proof.events)


@every_row
def test_cells_are_what_the_proof_found(collective, name):
    for proof in proofs(collective, name):
        found = states(ElementTree.fromstring(holdings(proof)), proof)
        for time in range(proof.depth + 1):
            want = {
                (r, b): mask
                for r, masks in enumerate(proof.held(time))
                for b, mask in enumerate(masks)
                if mask
            }
            assert {key: mask for key, (mask, _) in found[time].items()} == want
            for key, (mask, state) in found[time].items():
                assert (state == "complete") == (mask == proof.due(*key))
        for r in range(proof.p):
            for b in proof.wanted(r):
                assert found[proof.depth][r, b] == (proof.due(r, b), "complete")


@every_row
def test_a_picture_has_both_parts_and_a_name(collective, name):
    for proof in proofs(collective, name):
        text = picture(proof)
        assert text == picture(proof)
        root = ElementTree.fromstring(text)
        assert len(marked(root, "arrow")) == len(proof.events)
        assert sorted(states(root, proof)) == list(range(proof.depth + 1))
        assert [each.tag for each in root[:3]] == [SPACE + "title", SPACE + "desc", SPACE + "style"]
        assert (
            root[0].text == f"{proof.algorithm.title(proof.p, proof.root)}: messages and holdings"
        )
        assert proof.algorithm.summary in root[1].text
        assert f"{proof.depth} step" in root[1].text


def test_arrows_go_from_lane_to_lane_and_forward():
    proof = check("allreduce", "halving_doubling", p=7)
    root = ElementTree.fromstring(space_time(proof))
    heights = [float(line.get("y1")) for line in marked(root, "lane")]
    assert len(heights) % proof.p == 0
    places = {}
    for element, event in zip(marked(root, "arrow"), events(root, proof), strict=True):
        x1, y1, x2, y2 = (float(element.get(key)) for key in ("x1", "y1", "x2", "y2"))
        assert x1 < x2
        distances = [abs(y2 - y) for y in heights]
        assert heights.index(y1) % proof.p == event[1]
        assert distances.index(min(distances)) % proof.p == event[2]
        places.setdefault(event[0], []).append((x1, x2))
    for time in range(1, proof.depth):
        if max(places[time])[1] < min(places[time + 1])[0]:
            continue
        assert min(places[time + 1])[0] == min(min(places.values()))[0]  # a new band


def boxes(root):
    """Return the boxes of the labels on arrows: left, top, right, bottom."""
    found = []
    for end in marked(root, "ends"):
        [text] = marked(end, "label")
        size = float(re.search(r"font-size: ([\d.]+)px", text.get("style"))[1])
        x, y = float(text.get("x")), float(text.get("y"))
        half = len(text.text) * size * 0.64 / 2
        [pill] = (each for each in marked(end, "fill") if each.tag == f"{SPACE}rect")
        assert float(pill.get("x")) <= x - half
        assert x + half <= float(pill.get("x")) + float(pill.get("width"))
        found.append((x - half, y - size, x + half, y + 0.25 * size))
    return found


def meet(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize(
    ("collective", "name", "p"),
    [
        ("allreduce", "ring", 8),
        ("allreduce", "all_to_all", 8),
        ("allreduce", "master_worker", 8),
        ("allreduce", "halving_doubling", 8),
        ("alltoall", "direct", 8),
        ("alltoall", "bruck", 8),
        ("alltoall", "direct", 16),
    ],
)
def test_labels_stand_apart(collective, name, p):
    proof = check(collective, name, p=p)
    root = ElementTree.fromstring(space_time(proof))
    found = boxes(root)
    assert len(found) == len(proof.events)
    assert not any(meet(a, b) for a, b in itertools.combinations(found, 2))
    marks = [
        (x - r, y - r, x + r, y + r)
        for x, y, r in (
            [float(each.get(k)) for k in ("cx", "cy", "r")] for each in marked(root, "fold")
        )
    ]
    assert not any(meet(a, b) for a, b in itertools.combinations(marks, 2))
    assert not any(meet(a, b) for a in found for b in marks)


def test_labels_that_touch_would_be_found():
    assert meet((0, 0, 10, 10), (9, 9, 20, 20))
    assert not meet((0, 0, 10, 10), (11, 0, 20, 10))


@pytest.mark.parametrize(
    ("collective", "name", "p"),
    [
        ("allreduce", "ring", 8),
        ("alltoall", "bruck", 5),
        ("broadcast", "tree", 7),
        ("scan", "recursive", 1),
    ],
)
def test_everything_lies_on_the_sheet(collective, name, p):
    root = ElementTree.fromstring(picture(check(collective, name, p=p)))
    width, height = (float(root.get(key)) for key in ("width", "height"))
    assert root.get("viewBox") == f"0 0 {width:g} {height:g}"
    found = list(placed(root))
    assert len(found) > p
    for left, top, right, bottom in found:
        assert 0 <= left <= right <= width
        assert 0 <= top <= bottom <= height


def placed(element, x=0.0, y=0.0):
    """Yield the boxes of rectangles, lanes and texts, in pixels of the sheet."""
    shift = re.fullmatch(r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
    if shift:
        x, y = x + float(shift[1]), y + float(shift[2])
    if element.tag == SPACE + "rect":
        left, top = x + float(element.get("x", 0)), y + float(element.get("y", 0))
        yield left, top, left + float(element.get("width")), top + float(element.get("height"))
    elif element.tag == SPACE + "text":
        left, base = x + float(element.get("x")), y + float(element.get("y"))
        yield left, base - 9, left + 6 * len(element.text), base
    elif element.tag == SPACE + "line" and element.get("class") == "lane":
        left, top = x + float(element.get("x1")), y + float(element.get("y1"))
        yield left, top, x + float(element.get("x2")), top
    for each in element:
        yield from placed(each, x, y)


def covered(spans, first, last):
    """Return which part of the numbers between `first` and `last` lies in one of `spans`."""
    total, end = 0.0, first
    for low, high in sorted(spans):
        total += max(0.0, min(high, last) - max(low, end))
        end = max(end, high)
    return total / (last - first)


# Names of ranks, steps and grids stand on their own with gaps between them.
APART = 30


@every_row
def test_no_half_of_a_picture_is_blank(collective, name):
    for p in (3, 5, 7, 8, 12):
        root = ElementTree.fromstring(picture(check(collective, name, p=p)))
        width, height = (float(root.get(key)) for key in ("width", "height"))
        boxes = [
            (a - APART, b - APART, c + APART, d + APART)
            for a, b, c, d in placed(root)
            if c - a < width  # not the ground
        ]
        below = [(a, c) for a, b, c, d in boxes if d > (height + 80) / 2]
        right = [(b, d) for a, b, c, d in boxes if c > width / 2 + APART]
        assert covered(below, sheet.MARGIN, width - sheet.MARGIN) > 0.45
        assert covered(right, 80, height - sheet.MARGIN) > 0.45


def test_many_ranks_have_no_labels_and_fewer_grids():
    proof = check("allreduce", "ring", p=33)
    root = ElementTree.fromstring(picture(proof))
    assert len(marked(root, "arrow")) == len(proof.events)
    assert len(marked(root, "fold")) == sum(event.fold for event in proof.events)
    assert not marked(root, "label")
    assert not marked(root, "content")[1:]  # one in the key
    drawn = sorted(states(root, proof))
    assert drawn[0] == 0
    assert drawn[-1] == proof.depth
    assert 3 <= len(drawn) < proof.depth
    texts = [each.text for each in root.iter(f"{SPACE}text")]
    assert f"{len(drawn)} of {proof.depth + 1} grids are drawn." in texts
    assert len(marked(root, "cell")) <= held.MOST


def test_a_share_is_as_high_as_what_is_there():
    proof = check("reduce", "chain", p=4)
    root = ElementTree.fromstring(holdings(proof))
    rows = {}
    high = {}
    for element in marked(root, "cell"):
        for share in marked(element, "share"):
            high.setdefault(CELL.match(title(element))[4], set()).add(float(share.get("height")))
            row = re.search(r"rank (\d)", title(element))[1]
            rows.setdefault(row, set()).add(float(share.get("y")) + float(share.get("height")))
    assert {len(feet) for feet in rows.values()} == {1}  # all stand on the same floor
    assert high == {f"{k} of 4 contributions": {24 * k / 4} for k in (1, 2, 3)}
    ticked = [title(each) for each in marked(root, "cell") if marked(each, "tick")]
    assert ticked == ["after step 3: rank 0 now holds block 0, complete: ranks 0-3"]


def test_cells_that_changed_are_framed():
    proof = check("allreduce", "butterfly", p=4)
    root = ElementTree.fromstring(holdings(proof))
    for element in marked(root, "cell"):
        assert bool(marked(element, "new")) == (" now holds " in title(element))
    new = [title(each)[:12] for each in marked(root, "cell") if marked(each, "new")]
    assert sorted(new) == ["after step 1"] * 4 + ["after step 2"] * 4


def test_keys_explain_what_occurs():
    def keys(collective, name):
        root = ElementTree.fromstring(picture(check(collective, name, p=3)))
        return [each.text for each in root.iter(f"{SPACE}text") if each.text in KEYS]

    assert keys("allreduce", "ring") == KEYS
    assert keys("broadcast", "tree") == [KEYS[0], KEYS[2], *KEYS[4:]]
    assert keys("reduce", "chain")[:2] == KEYS[:2]
    assert keys("reduce", "chain")[-3:] == KEYS[4:]
    for name in algorithms.names("alltoall"):
        assert keys("alltoall", name) == [KEYS[2], *KEYS[4:]]
    text = space_time(check("alltoall", "pairwise", p=3))
    assert re.search(r">01</text></g></g>\n<text [^>]*>sends what 0 has for 1<", text)


@every_row
def test_the_samples_of_a_key_are_in_the_picture(collective, name):
    for proof in proofs(collective, name):
        root = ElementTree.fromstring(picture(proof))
        texts = [each.text for each in root.iter(f"{SPACE}text")]
        for text in texts:
            if " contributions: " in text:
                assert any(title(each).endswith(f", {text}") for each in marked(root, "cell"))
            if text.startswith("sends block"):
                assert any(f" {text} to " in title(each) for each in marked(root, "arrow"))
        partial = any(" contributions: " in title(each) for each in marked(root, "cell"))
        assert partial == any(" contributions: " in text for text in texts)


def test_what_does_not_count_fills_nothing():
    """An exscan's first rank ends with nothing, and holds its own array."""
    root = ElementTree.fromstring(holdings(check("exscan", "recursive", p=2)))
    first = [each for each in marked(root, "cell") if "rank 0 " in title(each).split(",")[0]]
    assert {title(each).partition(": ")[2] for each in first} == {
        "rank 0 holds block 0, 0 of 0 contributions: rank 0"
    }
    assert not any(marked(each, "fill") for each in first)


def test_names_and_summaries_are_written_as_they_are():
    @algorithms.algorithm("barrier", name="mine")
    def mine(r, p):
        """Fold if r < p & "p > 1"."""
        for q in range(p):
            if q != r:
                yield algorithms.Exchange(send=(q, 0), recv=(q, 0), fold=True)

    try:
        root = ElementTree.fromstring(picture(check("barrier", "mine", p=2)))
    finally:
        algorithms.unregister("barrier", "mine")
    assert 'Fold if r < p & "p > 1".' in [each.text for each in root.iter(f"{SPACE}text")]
    assert root[1].text.startswith('Fold if r < p & "p > 1". 2 ranks, 1 step, 2 messages, 1 block.')


@pytest.mark.parametrize("p", [4, 13, 17])
def test_colours_are_those_of_blocks_or_of_who_sends_them(p):
    proof = check("allreduce", "ring", p=p)
    root = ElementTree.fromstring(space_time(proof))
    for element, event in zip(marked(root, "arrow"), events(root, proof), strict=True):
        assert element.get("class") == f"arrow c{event[3][0] % 8}"
    proof = check("alltoall", "direct", p=p)
    root = ElementTree.fromstring(picture(proof))
    for element, event in zip(marked(root, "arrow"), events(root, proof), strict=True):
        assert element.get("class") == f"arrow c{event[1] % 8}"
    for element in marked(root, "cell"):
        source = ranks_of(CELL.match(title(element))[5]).bit_length() - 1
        assert element.get("class") == f"cell c{source % 8}"


# -- colours -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("colours", "colours_of_sheet"),
    [(sheet.LIGHT, sheet.LIGHT_SHEET), (sheet.DARK, sheet.DARK_SHEET)],
)
def test_any_two_colours_differ_for_all_eyes(colours, colours_of_sheet):
    ground, ink, _, shade = colours_of_sheet
    assert sheet.contrast(ink, ground) > 7
    for one, other in itertools.combinations(colours, 2):
        assert all(math.dist(seen(one, eye), seen(other, eye)) > 25 for eye in EYES)
    for colour in colours:
        assert sheet.contrast(colour, ground) >= 3
        assert sheet.contrast(colour, shade) >= 2.5
        assert max(sheet.contrast(colour, text) for text in ("#000000", "#ffffff")) >= 4.5


def mixed(colour, ground, opacity):
    """Return what a colour is over its ground."""
    pairs = [(int(colour[k : k + 2], 16), int(ground[k : k + 2], 16)) for k in (1, 3, 5)]
    return "#" + "".join(f"{round(opacity * a + (1 - opacity) * b):02x}" for a, b in pairs)


@pytest.mark.parametrize(
    ("colours", "colours_of_sheet"),
    [(sheet.LIGHT, sheet.LIGHT_SHEET), (sheet.DARK, sheet.DARK_SHEET)],
)
def test_text_can_be_read_on_what_is_filled(colours, colours_of_sheet):
    ground, ink, *_ = colours_of_sheet
    opacity = float(re.search(r"\.share \{ fill-opacity: ([\d.]+)", sheet.STYLE)[1])
    for colour in colours:
        assert sheet.contrast(ink, mixed(colour, ground, opacity)) >= 4.5


def test_light_and_dark_are_one_file():
    text = space_time(check("allreduce", "ring", p=2))
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    for colour in sheet.LIGHT:
        assert colour in light
    for colour in sheet.DARK:
        assert colour in dark
    assert sheet.contrast("#000000", "#ffffff") == pytest.approx(21)


# -- the command -------------------------------------------------------------------------------


def test_the_command_writes_the_picture(tmp_path, capsys):
    path = tmp_path / "tree.svg"
    assert main(["explain", "broadcast/tree", "-n", "5", "--root", "2", "--svg", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == picture(check("broadcast", "tree", p=5, root=2))
    out = capsys.readouterr().out
    assert out.startswith("broadcast 'tree' on 5 ranks, root 2\n")
    assert out.endswith(f"\n\nThe picture is in {path}\n")


@pytest.mark.parametrize("name", ["ring.png", "ring.PNG", "ring"])
def test_other_formats_are_refused(tmp_path, capsys, name):
    path = tmp_path / name
    assert main(["explain", "ring", "--svg", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"collectives: --svg {path}: ")
    assert "must end in .svg" in captured.err
    assert captured.out == ""
    assert not path.exists()


def test_a_folder_that_is_not_there_is_said(tmp_path, capsys):
    path = tmp_path / "nosuch" / "ring.svg"
    assert main(["explain", "ring", "--svg", str(path)]) == 2
    assert f"--svg {path}: [Errno 2] No such file or directory" in capsys.readouterr().err
    path.parent.mkdir()
    path.mkdir()
    assert main(["explain", "ring", "--svg", str(path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_the_picture_of_the_manual_is_what_the_command_writes(tmp_path):
    page = (DOCS / "reference" / "command_line.md").read_text(encoding="utf-8")
    assert "$ collectives explain ring -n 4 --svg ring.svg" in page
    assert ":file: ring.svg" in page
    path = tmp_path / "ring.svg"
    assert main(["explain", "ring", "-n", "4", "--svg", str(path)]) == 0
    assert (DOCS / "reference" / "ring.svg").read_text(encoding="utf-8") == path.read_text("utf-8")
