"""``collectives simulate``: tables, maps, pictures, machines as text, and refusals."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.algorithms import unregister
from collectives.cli import main
from collectives.errors import ArgumentError
from collectives.picture import colours
from collectives.simulate import simulate
from collectives.simulation import topology_text
from collectives.topology import FatTree, Flat, Hosts, Topology, Torus

Capture = pytest.CaptureFixture[str]


def run(*words: str) -> int:
    return main(["simulate", *words])


def test_one_run_is_printed_in_full(capsys: Capture) -> None:
    assert run("tree", "-p", "4", "-b", "4K", "--topology", "flat,alpha=1us,beta=1GB/s") == 0
    text = capsys.readouterr().out
    assert text.startswith("allreduce 'tree' on 4 ranks, 4 KiB on Flat(4, alpha=1e-06, beta=1e-09")
    assert "longest   4 messages: 3>2 2>0 0>2 0>1" in text


def test_table_has_a_star_at_the_fastest(capsys: Capture) -> None:
    assert run("ring,tree", "-p", "8", "-b", "1K,1M") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "allreduce on 8 ranks, simulated on flat"
    assert lines[1].split() == ["bytes", "ring", "tree"]
    assert lines[2].endswith("us*")
    assert "*" not in lines[2][:-1]
    assert "us* " in lines[3]  # 1 MiB: the ring
    assert lines[4].startswith("tree up to ")
    assert lines[4].endswith(" KiB, ring beyond")


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else() -> None:
    fcntl, pty, termios = map(pytest.importorskip, ("fcntl", "pty", "termios"))
    words = [sys.executable, "-m", "collectives", "simulate", "ring,tree", "-p", "8", "-b", "1K,1M"]
    piped = subprocess.run(words, capture_output=True, timeout=60, check=True)
    assert piped.stderr == b""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    os.set_blocking(ours, False)
    try:
        drawn = subprocess.run(words, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True)
        told = os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    assert re.search(rb" 0 ?%.*ring on 8 ranks.* 50 ?%.*tree on 8 ranks", told, re.DOTALL)
    assert drawn.stdout == piped.stdout


def test_map_has_a_letter_for_each_winner(capsys: Capture) -> None:
    assert run("ring,butterfly", "-p", "4..16", "-b", "1K..16M", "--topology", "hosts=4") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "allreduce, simulated on hosts=4: the fastest"
    assert lines[1].split() == [*(f"{1 << k}K" for k in range(10)), "1M", "2M", "4M", "8M", "16M"]
    for p, line in zip((4, 8, 16), lines[2:5], strict=True):
        assert line.startswith(f"p = {p:2}")
        marks = line.split()[3:]
        assert marks == sorted(marks)
        assert set(marks) == {"b", "r"}
    assert lines[5] == "r ring   b butterfly"


def test_sizes_on_a_line_are_not_simulated_and_right(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "times.json"
    words = ("halving_doubling,ring", "-p", "8,12", "-b", "1K..64M", "--topology", "hosts=4")
    assert run(*words, "--json", str(path)) == 0
    capsys.readouterr()
    found = json.loads(path.read_text())
    assert found["version"] == 1
    assert found["bytes"] == [1 << k for k in range(10, 27)]
    for p in (8, 12):
        make = topology_text.Machine("hosts=4").make
        for name in ("halving_doubling", "ring"):
            for size, time in zip(found["bytes"], found["seconds"][str(p)][name], strict=True):
                exact = simulate("allreduce", name, size, make(p)).time
                assert time == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "p", "unit", "segment"),
    [
        ("broadcast/chain", 4, 1000, 1000),
        ("broadcast/flat", 4, 1000, 1000),
        ("allreduce/ring", 4, 4000, 1000),
        ("allgather/ring", 4, 4000, 1000),
        ("allreduce/butterfly", 4, 1 << 20, 1 << 20),
        ("scan/recursive", 5, 3000, 1000),
    ],
)
@pytest.mark.parametrize("topology", ["flat,alpha=100us", "flat,alpha=1us,delay=100us"])
def test_sizes_with_other_numbers_of_segments_are_simulated(
    name: str, p: int, unit: int, segment: int, topology: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "times.json"
    sizes = [unit, unit * 11 // 10, unit * 15 // 10, 2 * unit, unit * 29 // 10, 3 * unit]
    words = (name, "-p", str(p), "-b", ",".join(map(str, sizes)), "--segment", str(segment))
    assert run(*words, "--topology", topology, "--json", str(path)) == 0
    capsys.readouterr()
    collective, algorithm = name.split("/")
    machine = topology_text.Machine(topology).make(p)
    (times,) = json.loads(path.read_text())["seconds"][str(p)].values()
    for size, time in zip(sizes, times, strict=True):
        alone = simulate(collective, algorithm, size, machine, segment=segment).time
        assert time == pytest.approx(alone, rel=2e-3)


def test_what_cannot_run_is_left_out_and_named(capsys: Capture) -> None:
    assert run("ring", "-p", "4..32", "-b", "1K", "--topology", "hosts=2x4") == 0
    text = capsys.readouterr().out
    assert "left out: 2 hosts of 4 have no 16 ranks" in text
    assert "left out: 2 hosts of 4 have no 32 ranks" in text
    assert run("ring,tree", "-p", "8,16", "-b", "1K", "--limit", "100") == 0
    text = capsys.readouterr().out
    assert "left out: allreduce 'ring' on 8 ranks, more than 100 messages" in text
    assert "tree wins" in text
    assert run("ring", "-p", "8", "-b", "1K", "--limit", "100") == 2
    assert "allreduce 'ring' on 8 ranks, more than 100 messages" in capsys.readouterr().err
    assert run("ring", "-p", "8", "-b", "1K", "--limit", "200") == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("foo",), "there is no algorithm 'foo'"),
        (("ring,broadcast/tree",), "algorithms of one collective can be compared"),
        (
            ("ring", "--topology", "ball"),
            "collectives: --topology has no 'ball'; it has: flat, hosts, fattree, torus "
            "(collectives simulate --help describes them)\n",
        ),
        (("ring", "--topology", "torsu=4"), "has no 'torsu'; did you mean 'torus'? It has: flat, "),
        (("ring", "--topology", "hosts=3"), "8 ranks do not fill hosts of 3"),
        (("ring", "--topology", "hosts=1x2x4"), "hosts by ranks on each"),
        (("ring", "--topology", "flat=8"), "flat takes no size"),
        (("ring", "--topology", "flat,alpha"), "'alpha' is not an option such as alpha=1us"),
        (("ring", "--topology", "flat,alpha=soon"), "'soon' is not a time such as 1us"),
        (("ring", "--topology", "flat,beta=7kg"), "'7kg' is not a speed such as 12.5GB/s"),
        (("ring", "--topology", "flat,beta=0GB/s"), "a speed of '0GB/s' would never end"),
        (
            ("ring", "--topology", "flat,hop=1us"),
            "flat has no option 'hop' (collectives simulate --help describes them)\n",
        ),
        (("ring", "--topology", "hosts=4,per_switch=2"), "hosts has no option 'per_switch'"),
        (("ring", "--topology", "torus=2x2"), "a torus of 2x2 has 4 ranks, not 8"),
        (("ring", "--topology", "hosts=0"), "not a whole number of at least 1"),
        (("broadcast/tree", "--root", "9"), "root is 9, and must be in 0..7"),
        (("ring", "-p", "2,4", "--json", "/nowhere/x"), "--json /nowhere/x"),
    ],
)
def test_refusals(words: tuple[str, ...], text: str, capsys: Capture) -> None:
    assert run(*words) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-p", "8..2"), "'8..2' goes down; write the smaller number first, 2..8"),
        (("-b", "0..8"), "'0..8' starts at 0, which does not double; start at 1"),
    ],
)
def test_spans_are_refused_that_do_not_rise(
    words: tuple[str, ...], text: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit):
        run("ring", *words)
    assert text in capsys.readouterr().err


def test_machines_as_text() -> None:
    def made(text: str, p: int) -> object:
        return topology_text.Machine(text).make(p)

    flat = made("flat, alpha=2us, beta=10Gbit/s, gamma=5GB/s", 3)
    assert isinstance(flat, Flat)
    exact = simulate("allreduce", "ring", 3000, Flat(3, 2e-6, 0.8e-9, 0.2e-9)).time
    assert simulate("allreduce", "ring", 3000, flat).time == pytest.approx(exact, rel=1e-12)
    for text in ("flat", "hosts=1", "fattree=1,per_switch=2", "torus=4"):
        near, far = made(text, 4), made(text + ",delay=50us", 4)
        assert isinstance(near, Topology)
        assert isinstance(far, Topology)
        times = [simulate("allgather", "ring", 4, each).time for each in (near, far)]
        assert times[1] == pytest.approx(times[0] + 3 * 50e-6, rel=1e-9)  # each in its round
    hosts = made("hosts=4,inside_alpha=100ns,inside_beta=20GB/s,memory=40GB/s", 8)
    assert isinstance(hosts, Hosts)
    assert (hosts.hosts, hosts.ranks) == (2, 4)
    assert ("memory", 1) in hosts.names
    small = made("hosts=8", 4)  # a job that does not fill its host
    assert isinstance(small, Hosts)
    assert (small.hosts, small.ranks) == (1, 4)
    tree = made("fattree=2,per_switch=2,oversubscription=4", 8)
    assert isinstance(tree, FatTree)
    assert ("up", 1) in tree.names
    torus = made("torus", 24)
    assert isinstance(torus, Torus)
    assert torus.shape == (2, 3, 4)
    assert made("torus=3x2,hop=10ns", 6).shape == (3, 2)  # type: ignore[attr-defined]


def test_units() -> None:
    assert topology_text.seconds("200ns") == pytest.approx(2e-7)
    assert topology_text.seconds("1e-6") == 1e-6
    assert topology_text.rate("100Gbit/s") == pytest.approx(0.08e-9)
    assert topology_text.rate("0.08ns") == pytest.approx(0.08e-9)
    with pytest.raises(ArgumentError):
        topology_text.rate("1..2GB/s")


@pytest.mark.parametrize("words", [("-p", "4..16", "-b", "1K..1M"), ("-p", "6", "-b", "1K..1M")])
def test_pictures(words: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "who.svg"
    assert run("ring,butterfly,halving_doubling", *words, "--plot", str(path)) == 0
    assert f"The picture is in {path}" in capsys.readouterr().out
    text = path.read_text()
    assert text.count("<path") > 10
    title = f"allreduce on {words[1].replace('..', ' to ')} ranks, simulated"
    assert title in text
    assert "a flat network: alpha 1 us, beta 12.5 GB/s, gamma 20 GB/s" in text
    assert colours.colour("butterfly") in text


def test_the_numbers_of_a_machine_in_words() -> None:
    assert topology_text.Machine("flat").numbers() == (
        "a flat network: alpha 1 us, beta 12.5 GB/s, gamma 20 GB/s"
    )
    assert topology_text.Machine("hosts=4x8,beta=8Gbit/s,delay=2ms").numbers() == (
        "4 hosts of 8 ranks: alpha 1 us, beta 1 GB/s, gamma 20 GB/s, delay 2 ms, inside a host "
        "0.2 us, 20 GB/s"
    )
    assert (
        topology_text.Machine("fattree=1,per_switch=4,alpha=0,gamma=3B/s")
        .numbers()
        .startswith(
            "a fat tree of hosts of 1 rank: alpha 0 us, beta 12.5 GB/s, gamma 3 B/s, inside a host"
        )
    )
    assert (
        topology_text.Machine("fattree")
        .numbers()
        .endswith("16 hosts below a switch, oversubscription 2")
    )
    assert (
        topology_text.Machine("torus=4x4,hop=1us,beta=0s")
        .numbers()
        .startswith("a torus of 4 x 4: alpha 1 us, beta 0 s/B, gamma 20 GB/s, hop 1 us")
    )


def test_a_file_of_ones_own(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from collectives.algorithms import Exchange, algorithm\n"
        "@algorithm('broadcast', name='in_a_row', replace=True)\n"
        "def in_a_row(r, p, root):\n"
        "    'The root sends to one rank after the other.'\n"
        "    for q in range(p):\n"
        "        if r == root and q != root:\n"
        "            yield Exchange(send=(q, 0))\n"
        "        elif r == q != root:\n"
        "            yield Exchange(recv=(root, 0))\n"
    )
    words = ("broadcast/in_a_row,tree", "-p", "16", "-b", "1M", "--load", str(path))
    try:
        assert run(*words) == 0
    finally:
        unregister("broadcast", "in_a_row")
    assert "tree wins" in capsys.readouterr().out
