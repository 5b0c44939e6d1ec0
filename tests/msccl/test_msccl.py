"""Files of MSCCL: what is proven, what is refused, and the round trip of all algorithms."""

from __future__ import annotations

import contextlib
import re
import time
from itertools import pairwise

import pytest

from collectives import msccl
from collectives.algorithms import COLLECTIVES, get, names, unregister
from collectives.algorithms.exchange import listed
from collectives.check import check
from collectives.cli import main
from collectives.errors import ArgumentError, ProofError
from collectives.msccl.document import ABLE

ROWS = [(c, name) for c in COLLECTIVES for name in names(c)]
ABLE_ROWS = [(c, name) for c, name in ROWS if c in ABLE]


@pytest.fixture(autouse=True)
def _forgotten():
    """Remove the algorithms of files after each test."""
    yield
    for collective in COLLECTIVES:
        for name in names(collective):
            if name.endswith(".xml"):
                unregister(collective, name)


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a file and reads it."""

    def reader(text, name="mine.xml"):
        path = tmp_path / name
        path.write_text(text)
        return msccl.read(str(path))

    return reader


def document(*gpus, coll="allreduce", chunks=1, s=0, **has):
    """Write a file: for each gpu its thread blocks ``(send, recv, [step, ...])``.

    A step is ``"type source target"``, with ``*2`` for two chunks, ``@1.0`` to wait for step 0 of
    thread block 1, and ``!`` to signal.
    """
    per = {"i": chunks, "o": chunks, "s": s}
    if coll == "allgather":
        per["i"] = chunks // len(gpus)
    has = {"inplace": 0, "nchannels": 1, "proto": "Simple", **has}
    words = " ".join(f'{key}="{value}"' for key, value in has.items())
    lines = [
        f'<algo name="mine" coll="{coll}" ngpus="{len(gpus)}" nchunksperloop="{chunks}" {words}>'
    ]
    for r, blocks in enumerate(gpus):
        sizes = " ".join(f'{key}_chunks="{size}"' for key, size in per.items())
        lines.append(f'<gpu id="{r}" {sizes}>')
        for number, (send, recv, steps) in enumerate(blocks):
            lines.append(f'<tb id="{number}" send="{send}" recv="{recv}" chan="0">')
            lines += [step(k, text) for k, text in enumerate(steps)]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def step(number, text):
    form = r"(\w+)(?: ([ios])(-?\d+) ([ios])(-?\d+))?(?: \*(\d+))?(?: @(\d+)\.(\d+))?( !)?"
    kind, a, m, b, n, cnt, tb, at, signals = re.fullmatch(form, text).groups()
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{a or "i"}" srcoff="{m or -1}" '
        f'dstbuf="{b or "o"}" dstoff="{n or -1}" cnt="{cnt or (0 if kind == "nop" else 1)}" '
        f'depid="{tb or -1}" deps="{at or -1}" hasdep="{int(bool(signals))}"/>'
    )


def rounds(row, p, root):
    """Return the rounds of all ranks, with the blocks for each peer."""

    def joined(messages):
        found = {}
        for peer, blocks in listed(messages):
            found.setdefault(peer, []).extend(blocks)
        return found

    return [
        [
            (joined(each.send), joined(each.recv), {type(message) for message in each.recv})
            for each in row.rounds(r, p, root)
            if each.send or each.recv
        ]
        for r in range(p)
    ]


@pytest.mark.parametrize(("collective", "name"), ABLE_ROWS)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_round_trip(read, collective, name, p):
    row = get(collective, name)
    if row.refusal(p):
        with pytest.raises(ArgumentError, match="needs"):
            msccl.export(row, p)
        return
    for root in {0, p - 1} if row.collective.rooted else {0}:
        text = msccl.export(row, p, root)
        back = read(text).algorithm
        assert rounds(back, p, root) == rounds(row, p, root)
        assert check(back, p=p, root=root).events == check(row, p=p, root=root).events
        assert back.same_bits == row.same_bits
        # Other programs do not write the numbers of rounds.
        other = read(re.sub(r' round="\d+"', "", text), "other.xml").algorithm
        assert check(other, p=p, root=root).sent == check(row, p=p, root=root).sent


@pytest.mark.parametrize(("collective", "name"), [row for row in ROWS if row not in ABLE_ROWS])
def test_algorithms_that_cannot_be_exported(collective, name):
    reason = "folds pairs of neighbouring" if collective in ABLE else f"MSCCL has no {collective}"
    with pytest.raises(ArgumentError, match=reason) as caught:
        msccl.export(get(collective, name), 4)
    assert f"{collective} {name!r}: " in str(caught.value)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_another_root_than_that_of_the_file(read, collective):
    name = names(collective)[-1]
    back = read(msccl.export(get(collective, name), 5, 2)).algorithm
    for root in range(5):
        assert check(back, p=5, root=root).traffic == check(back, p=5, root=2).traffic


def test_a_file_needs_its_number_of_ranks(read):
    row = read(msccl.export(get("allreduce", "ring"), 3)).algorithm
    with pytest.raises(ArgumentError, match="needs 3 ranks, and p is 4"):
        check(row, p=4)


def swap(*steps, **has):
    """Write an allreduce on two ranks, each of which sends its input, and then runs these steps."""
    gpus = [[(1 - r, 1 - r, ["s i0 o0", *steps])] for r in range(2)]
    return document(*gpus, s=2, **has)


RIGHT = {
    "fold while receiving": swap("rrc i0 o0"),
    "in place": swap("rrc i0 i0", inplace=1),
    "through scratch": swap("r s0 s0", "cpy i0 o0", "re s0 o0"),
    "two copies": swap("r s0 s0", "cpy s0 s1", "re i0 s1", "cpy s1 o0"),
    "both ways of calls": swap("rrc i0 o0", inplace=1, outofplace=1),
    "a step that only waits": document(
        *(
            [
                (1 - r, -1, ["s i0 o0 !"]),
                (-1, 1 - r, ["r s0 s0 !"]),
                (-1, -1, ["nop @0.0", "re s0 i0 @1.0", "cpy i0 o0"]),
            ]
            for r in range(2)
        ),
        s=1,
    ),
    "a later step signals": document(
        *(
            [
                (1 - r, 1 - r, ["s i0 o0", "r s0 s0", "nop !", "cpy i0 o0 !"]),
                (-1, -1, ["re s0 o0 @0.1"]),
            ]
            for r in range(2)
        ),
        s=1,
    ),
    "passed on": document(
        [(1, -1, ["s i0 o0"]), (-1, 2, ["r o0 o0"])],
        [(2, 0, ["rrs i0 o0"]), (-1, 2, ["r o0 o0"])],
        [(1, 1, ["rrcs i0 o0"]), (0, -1, ["s o0 o0 @0.0"])],
        s=1,
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_right_files(read, case):
    text = RIGHT[case]
    if case in ("a later step signals", "passed on"):
        text = text.replace('hasdep="0"/>\n</tb>', 'hasdep="1"/>\n</tb>')
    row = read(text).algorithm
    p = len(re.findall("<gpu", text))
    assert check(row, p=p).folded


ONLY = "chunk 0 of the output of rank 0 holds "
WRONG = {
    "never folded": (swap("r o0 o0"), ONLY + "chunk 0 of rank 1, wanted chunk 0 of ranks 0-1"),
    "nothing": (swap("r s0 s0"), ONLY + "nothing, wanted chunk 0 of ranks 0-1"),
    "twice": (
        swap("rrc i0 s0", "re i0 s0", "cpy s0 o0"),
        "folds chunk 0 of rank 1 and chunk 0 of ranks 0-1, so the contribution of rank 1 is in it",
    ),
    "another chunk": (
        document(*([(1 - r, 1 - r, ["s i0 o0", "rrc i1 o0"])] for r in range(2)), chunks=2),
        "gpu 1, thread block 0, step 1 (line 11) folds chunk 1 of rank 1 and chunk 0 of rank 0",
    ),
    "an empty chunk": (
        swap("re s0 o0"),
        "gpu 0, thread block 0, step 1 (line 5) reads chunk 0 of the scratch, which holds nothing",
    ),
    "in place only": (
        swap("r o0 o0", "re i0 o0", inplace=1, outofplace=1),
        "in place: gpu 1, thread block 0, step 2 (line 13) folds chunk 0 of rank 0 and chunk 0 of",
    ),
    "nobody sends": (
        document([(-1, 1, ["r o0 o0"])], [(-1, -1, ["nop"])]),
        "deadlock: gpu 0, thread block 0, step 0 (line 4) waits for a message of gpu 1 on channel "
        "0, where it has no thread block that sends to gpu 0",
    ),
    "the sender has ended": (
        document([(1, 1, ["s i0 i0", "rrc i0 o0", "r o0 o0"])], [(0, 0, ["s i0 i0", "rrc i0 o0"])]),
        "waits for a message of gpu 1 on channel 0, whose thread block 0 has ended",
    ),
    "nobody receives": (
        swap("rrc i0 o0", "s i0 i0"),
        "step 2 (line 6) sends to gpu 1 on channel 0, and gpu 1 receives 1 message fewer",
    ),
    "everybody receives first": (
        document(*([(1 - r, 1 - r, ["rrc i0 o0", "s i0 o0"])] for r in range(2))),
        "waits for a message of gpu 1 on channel 0, from its thread block 0",
    ),
    "lengths differ": (
        document(
            [(1, 1, ["s i0 i0 *2", "rrc i0 o0 *2"])],
            [(0, 0, ["s i0 i0 *2", "rrc i0 o0", "rrc i1 o1"])],
            chunks=2,
        ),
        "receives 1 chunk, and gpu 0, thread block 0, step 0 (line 4) sends 2",
    ),
    "a race": (
        document(
            *([(1 - r, -1, ["s i0 o0"]), (-1, 1 - r, ["rrc i0 i0"])] for r in range(2)),
            inplace=1,
        ),
        "writes chunk 0 of the input, and gpu 1, thread block 0, step 0 (line 12) reads it: "
        "neither waits for the other",
    ),
    "no signal": (
        document(
            *([(1 - r, -1, ["s i0 o0"]), (-1, 1 - r, ["rrc i0 i0 @0.0"])] for r in range(2)),
            inplace=1,
        ),
        "waits for step 0 of thread block 0, and no step from there on has hasdep='1'",
    ),
    "a circle": (
        document(
            *(
                [(-1, -1, ["nop @1.0", "cpy i0 o0 !"]), (-1, -1, ["cpy i0 s0 @0.1 !"])]
                for r in range(2)
            ),
            s=1,
        ),
        "step 0 (line 4) waits for step 0 of thread block 1; gpu 0, thread block 1, step 0 (line 8)"
        " waits for step 1 of thread block 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files(read, case):
    text, reason = WRONG[case]
    with pytest.raises(ProofError) as caught:
        read(text)
    assert reason in str(caught.value)
    assert not any(name.endswith(".xml") for name in names("allreduce"))


GOOD = swap("rrc i0 o0")
MALFORMED = {
    "empty": ("", "line 1: it is not XML: no element found"),
    "cut off": (GOOD[:-8], "it is not XML"),
    "two roots": (GOOD + GOOD, "it is not XML: junk after document element"),
    "another root": ("<graph/>", "line 1: there is a <graph> as the whole, wanted <algo>"),
    "another element": (GOOD.replace("<step", "<op", 1), "line 4: there is a <op> in <tb>"),
    "inside a step": (
        GOOD.replace("/>", "><step/></step>", 1),
        "line 4: there is a <step> in <step>, which has no elements",
    ),
    "text": (GOOD.replace("<tb", "words <tb", 1), "line 3: there is the text 'words' in <gpu>"),
    "no attribute": (GOOD.replace(' cnt="1"', "", 1), "line 4: <step> has no attribute 'cnt'"),
    "no collective": (GOOD.replace(' coll="allreduce"', ""), "line 1: <algo> has no attribute"),
    "a collective": (
        GOOD.replace('coll="allreduce"', 'coll="alltoallv"'),
        "line 1: <algo> has coll='alltoallv'; did you mean 'alltoall'?",
    ),
    "a type": (GOOD.replace('type="rrc"', 'type="rcr"', 1), "line 5: <step> has type='rcr', and"),
    "a buffer": (GOOD.replace('srcbuf="i"', 'srcbuf="x"', 1), "line 4: <step> has srcbuf='x'"),
    "a number": (GOOD.replace('cnt="1"', 'cnt="one"', 1), "line 4: <step> has cnt='one', and must"),
    "a long number": (GOOD.replace('cnt="1"', f'cnt="{"9" * 9999}"', 1), "line 4: <step> has cnt="),
    "no chunk": (GOOD.replace('cnt="1"', 'cnt="0"', 1), "line 4: <step> has cnt='0'"),
    "an offset": (
        GOOD.replace('srcoff="0"', 'srcoff="1"', 1),
        "line 4: <step> has srcoff='1' and cnt='1', and the input of gpu 0 has 1 chunk",
    ),
    "an order": (
        GOOD.replace('step s="1"', 'step s="2"', 1),
        "line 5: <step> has s='2', and is step 1",
    ),
    "no peer": (GOOD.replace('recv="1"', 'recv="-1"', 1), "line 5: 'rrc' receives, and thread"),
    "a peer": (GOOD.replace('recv="1"', 'recv="7"', 1), "line 3: <tb> receives from 7, and gpus"),
    "itself": (GOOD.replace('recv="1"', 'recv="0"', 1), "line 3: thread block 0 of gpu 0 receives"),
    "a channel": (GOOD.replace('chan="0"', 'chan="1"', 1), "line 3: <tb> has chan='1', and <algo>"),
    "a thread block": (GOOD.replace('tb id="0"', 'tb id="1"', 1), "line 3: there are 1 thread blo"),
    "a gpu": (GOOD.replace('gpu id="1"', 'gpu id="0"', 1), "line 8: there are two of <gpu id='0'>"),
    "fewer gpus": (GOOD.replace('ngpus="2"', 'ngpus="3"'), "line 1: <algo> has ngpus='3', and the"),
    "more gpus": (GOOD.replace('ngpus="2"', 'ngpus="1"'), "line 1: <algo> has ngpus='1', and the"),
    "chunks": (GOOD.replace('i_chunks="1"', 'i_chunks="2"', 1), "line 2: <gpu> has i_chunks='2', "),
    "many chunks": (
        GOOD.replace('s_chunks="2"', 's_chunks="1000000"'),
        "line 1: the ranks have more than 1048576 chunks",
    ),
    "parts": (
        GOOD.replace('coll="allreduce"', 'coll="allgather"'),
        "line 1: <algo> has nchunksperloop='1', and allgather on 2 ranks needs a multiple of 2",
    ),
    "a dependency": (
        GOOD.replace('depid="-1" deps="-1"', 'depid="0" deps="9"', 1),
        "line 4: <step> waits for step 9 of thread block 0, which is not there",
    ),
    "half a dependency": (
        GOOD.replace('depid="-1"', 'depid="0"', 1),
        "line 4: <step> has depid='0",
    ),
    "neither": (
        GOOD.replace('inplace="0"', 'inplace="0" outofplace="0"'),
        "line 1: <algo> has inp",
    ),
    "a peer for two": (
        document([(1, -1, []), (1, -1, [])], [(-1, 0, [])]),
        "line 5: thread blocks 0 and 1 both send to 1 on channel 0",
    ),
    "entities": (
        '<!DOCTYPE algo [<!ENTITY a "aaaaaaaaaa">'
        + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in pairwise("abcdefghijklmnop"))
        + "]><algo>&p;</algo>",
        "line 1: there is a DOCTYPE",
    ),
    "a file of the machine": (
        '<!DOCTYPE algo [<!ENTITY a SYSTEM "file:///etc/passwd">]><algo>&a;</algo>',
        "line 1: there is a DOCTYPE",
    ),
    "an entity": ("<algo>&a;</algo>", "it is not XML: undefined entity"),
    "an encoding": ('<?xml version="1.0" encoding="utf-99"?><algo/>', "unknown encoding"),
    "bytes": ("<algo>\x00</algo>", "it is not XML"),
    "depth": ("<algo>" * 100_000, "line 1: there is a <algo> in <algo>, wanted <gpu>"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(read, case):
    text, reason = MALFORMED[case]
    begun = time.process_time()
    with pytest.raises(ArgumentError) as caught:
        read(text)
    assert reason in str(caught.value)
    assert "mine.xml" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.process_time() - begun < 10


def test_files_that_are_none(tmp_path):
    for path in (tmp_path, tmp_path / "none.xml"):
        with pytest.raises(ArgumentError, match="there is no such file"):
            msccl.read(str(path))


def test_comments_and_other_attributes(read):
    text = "<!-- of another program -->\n" + GOOD.replace("<step ", '<step color="red" ')
    assert read(text).messages == 2


def test_a_dependency_less_is_a_race(read):
    """Of some dependencies, the messages between ranks already give the order."""
    text = msccl.export(get("allreduce", "ring"), 4)
    pattern = re.compile(r'depid="\d+" deps="\d+"')
    found = list(pattern.finditer(text))
    races = 0
    for match in found:
        less = f'{text[: match.start()]}depid="-1" deps="-1"{text[match.end() :]}'
        with contextlib.suppress(ProofError):
            read(less)
            continue
        races += 1
    assert races > len(found) / 2


def test_changed_files_are_wrong_or_right(read):
    """A step with another place, peer or type is refused, or still right; nothing else happens."""
    text = msccl.export(get("allreduce", "halving_doubling"), 4)
    changes = (
        (r'srcoff="(\d+)"', lambda m: f'srcoff="{(int(m[1]) + 1) % 4}"'),
        (r'dstoff="(\d+)"', lambda m: f'dstoff="{(int(m[1]) + 1) % 4}"'),
        (r'type="rrc"', lambda m: 'type="r"'),
        (r'type="r"', lambda m: 'type="rrc"'),
        (r'type="s"', lambda m: 'type="nop"'),
        (r'srcbuf="o"', lambda m: 'srcbuf="i"'),
        (r'dstbuf="o"', lambda m: 'dstbuf="i"'),
        (r'deps="(\d+)"', lambda m: f'deps="{max(int(m[1]) - 1, 0)}"'),
    )
    refused = 0
    for pattern, change in changes:
        for match in re.finditer(pattern, text):
            try:
                read(text[: match.start()] + change(match) + text[match.end() :])
            except (ArgumentError, ProofError):
                refused += 1
    assert refused > 100


def test_two_values_of_a_block_are_no_rounds(read):
    """Each rank passes on the array of its neighbour as it came, and folds it as well."""
    steps = ["s i0 i0", "r s0 s0", "s s0 s0", "cpy i0 o0", "re s0 o0", "rrc o0 o0"]
    text = document(*([((r + 1) % 3, (r - 1) % 3, steps)] for r in range(3)), s=1)
    with pytest.raises(ProofError, match=r"outputs is right, but .* rank 0 needs"):
        read(text)


def test_the_command(tmp_path, capsys):
    path = str(tmp_path / "ring.xml")
    assert main(["export", "ring", "-p", "4", "--to", "msccl", "-o", path]) == 0
    assert main(["check", path, "ring"]) == 0
    out = capsys.readouterr().out
    assert "allreduce 'ring' on 4 ranks is in" in out
    assert f"{path}: 48 steps and 24 messages of MSCCL" in out
    assert "proven: allreduce 'ring.xml' on 4 ranks: 6 rounds; a rank sends up to 3/2" in out
    assert main(["explain", path]) == 0
    assert "step 6  store" in capsys.readouterr().out
    assert main(["simulate", f"{path},ring", "-b", "1K"]) == 0
    assert "allreduce on 4 ranks" in capsys.readouterr().out
    assert main(["explain", "--load", path, "ring.xml", "-n", "3"]) == 2
    assert "needs 4 ranks, and p is 3" in capsys.readouterr().err
    assert main(["export", "ring", "-p", "4", "--to", "msccl"]) == 0
    assert capsys.readouterr().out == (tmp_path / "ring.xml").read_text()


def test_the_command_names_what_is_wrong(tmp_path, capsys):
    path = tmp_path / "wrong.xml"
    path.write_text(WRONG["never folded"][0])
    assert main(["check", str(path), "ring"]) == 1
    out, err = capsys.readouterr()
    assert "wrong: " in err
    assert WRONG["never folded"][1] in err
    assert "proven: allreduce 'ring'" in out
    path.write_text("<algo/>")
    assert main(["check", str(path)]) == 2
    assert main(["export", "scan/chain", "-p", "4", "--to", "msccl"]) == 2
    assert "scan 'chain': MSCCL has no scan" in capsys.readouterr().err
