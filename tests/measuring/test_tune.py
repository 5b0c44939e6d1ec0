"""``collectives tune``, as a user calls it, and the rules by which it chooses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import command, environment
from jobs import PATIENCE

from collectives.algorithms import get, registry
from collectives.algorithms.groups import Groups
from collectives.choice import profile
from collectives.choice.sections import Row
from collectives.choice.select import decide
from collectives.measuring import tuning
from collectives.measuring.contest import Entry
from collectives.measuring.tuning import Point, Result, TunedPoint
from collectives.plans.order import has_fixed_order
from collectives.text.progress import Bar

US = 1e-6
SMALL = "--collectives gather,barrier -b 8 -e 4K -f 512 --budget 20"


def result(nbytes: int, noise: float = 0.0, **seconds: float) -> Result:
    entries = {Entry(name, 0): us * US for name, us in seconds.items()}
    return Result(nbytes, entries, dict.fromkeys(entries, noise * US))


def test_points_have_their_part_of_the_time() -> None:
    found = tuning.points(["barrier", "gather"], 8, 8 << 20, 1024)
    assert found == [
        Point("barrier", 0, 1.0),
        Point("gather", 8, 1.0 + 8 / (1 << 20)),
        Point("gather", 8192, 1.0 + 8192 / (1 << 20)),
        Point("gather", 8 << 20, 9.0),
    ]


def test_calls_below_the_noise_of_the_barrier_are_equally_good() -> None:
    clock = object.__new__(tuning._Clock)
    laps = {"(barrier)": [100, 109], "flat": [101, 101], "tree": [103, 104], "chain": [120, 120]}
    entries = {name: Entry(name, 0) for name in ("flat", "tree", "chain")}
    clock.laps = {
        str(entries.get(label, label)): [tuning._Lap(us * US, 0.1) for us in each]
        for label, each in laps.items()
    }
    found = clock.result(8, entries.values())
    assert list(found.seconds.values()) == pytest.approx([9 * US, 9 * US, 20 * US])
    del clock.laps["(barrier)"][1:]  # how much it wavers is not known
    found = clock.result(8, entries.values())
    assert list(found.seconds.values()) == pytest.approx([5 * US, 5 * US, 20 * US])


def test_the_fastest_is_taken_unless_a_simpler_one_is_near() -> None:
    def chosen(found: Result, before: str | None = None) -> str | None:
        entry = None if before is None else Entry(before, 0)
        return tuning.simplest("allreduce", 8, found, entry).algorithm

    # Of short arrays that with the fewest rounds: all_to_all has one, butterfly three.
    assert chosen(result(8, all_to_all=10.4, butterfly=10)) == "butterfly"
    assert chosen(result(8, all_to_all=10.2, butterfly=10)) == "all_to_all"
    assert chosen(result(8, all_to_all=10.4, butterfly=10, noise=0.1)) == "all_to_all"
    # Much noise counts as 3 % of each.
    assert chosen(result(8, all_to_all=11, butterfly=10, noise=9)) == "butterfly"
    # The choice at the size before stays.
    assert chosen(result(8, all_to_all=10.2, butterfly=10), "butterfly") == "butterfly"
    assert chosen(result(8, all_to_all=10.2, butterfly=11), "butterfly") == "all_to_all"
    # Of long arrays that whose busiest rank has least to do.
    long = 1 << 20
    assert chosen(result(long, all_to_all=10, ring=10.2)) == "ring"
    assert chosen(result(long, all_to_all=10, ring=10.2), "all_to_all") == "ring"
    assert chosen(result(long, all_to_all=10, ring=10.4)) == "all_to_all"


def test_what_is_chosen_without_a_profile_stays_where_it_is_as_good() -> None:
    def chosen(ring: float, noise: float) -> str | None:
        found = result(8, ring=ring, butterfly=10, noise=noise)
        return tuning.simplest("allreduce", 8, found, None, Entry("ring", 0)).algorithm

    assert chosen(10.2, 0) == "ring"
    assert chosen(10.8, 0.1) == "butterfly"
    assert chosen(10.8, 0.3) == "ring"
    assert chosen(11, 9) == "butterfly"  # noise counts as 3 % of each at most


def test_rows_end_between_two_sizes() -> None:
    def step(name: str, nbytes: int, algorithm: str, segment: int, us: float) -> TunedPoint:
        entry = Entry(algorithm, segment)
        point = Point(name, nbytes, 1.0)
        return TunedPoint(point, entry, entry, Result(nbytes, {entry: us * US}, {entry: 0.0}))

    steps = [
        step("gather", 8, "flat", 0, 1),
        step("gather", 128, "flat", 0, 2),
        step("gather", 2048, "tree", 0, 3),
        step("gather", 32768, "tree", 4096, 4),
        step("barrier", 0, "direct", 0, 5),
    ]
    found = tuning.rows(steps, 16)
    assert found["gather"] == (
        Row(511, "flat", 0, ((8, US), (128, 2 * US))),
        Row(8191, "tree", 0, ((2048, 3 * US),)),
        # Nothing is known of longer arrays.
        Row(131071, "tree", 4096, ((32768, 4 * US),)),
    )
    assert found["barrier"] == (Row(None, "direct", 0, ((0, 5 * US),)),)
    steps = [step("gather", 1 << 20, "flat", 0, 1), step("gather", 16 << 20, "tree", 0, 1)]
    assert [row.limit for row in tuning.rows(steps, 16)["gather"]] == [(4 << 20) - 1, None]
    steps.append(step("gather", 256 << 20, "flat", 0, 1))
    limits = [row.limit for row in tuning.rows(steps, 16)["gather"]]
    assert limits == [(4 << 20) - 1, (64 << 20) - 1, None]


def test_a_size_between_two_moves_their_boundary() -> None:
    def step(nbytes: int, algorithm: str) -> TunedPoint:
        entry = Entry(algorithm, 0)
        point = Point("gather", nbytes, 1.0)
        return TunedPoint(point, entry, entry, Result(nbytes, {entry: US}, {entry: 0.0}))

    steps = [step(8, "flat"), step(2048, "tree"), step(128, "flat")]
    assert [row.limit for row in tuning.rows(steps, 16)["gather"]] == [511, 8191]
    steps = [step(8, "flat"), step(2048, "tree"), step(128, "tree")]
    (low, high) = tuning.rows(steps, 16)["gather"]
    assert low == Row(31, "flat", 0, ((8, US),))
    assert high == Row(8191, "tree", 0, ((128, US), (2048, US)))


def test_what_is_the_same_on_so_many_ranks_runs_once() -> None:
    assert tuning.candidates("allgather", 2) == ["direct"]
    assert tuning.plain("allgather", Entry("ring", 4096), 2) == Entry("direct", 4096)
    # Between hosts with several ranks, compositions take part; with two hosts, all of a barrier
    # are the same.
    alone, nested = (tuning.candidates("barrier", 4, on) for on in (None, Groups.sized([2, 2])))
    assert [each for each in nested if each not in alone] == ["hierarchical(flat,direct)"]
    assert tuning.candidates("gather", 3) == ["flat", "bine"]
    assert tuning.candidates("gather", 4) == ["flat", "tree", "bine"]
    assert tuning.plain("gather", Entry("tree", 0), 4) == Entry("tree", 0)
    assert {"kary", "kary:2", "kary:8"} <= set(tuning.candidates("broadcast", 33))
    every, those = (tuning.candidates("allreduce", 8, bits=bits) for bits in ("any", "size"))
    assert {name for name in every if has_fixed_order(get("allreduce", name), 8)} <= {*those}
    assert {"ring", "direct"} <= {*every}
    assert {"direct", "near_halving"} <= {*those}
    assert "ring" not in those


def test_a_profile_has_the_name_of_an_algorithm_for_all_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user's algorithm whose blocks depend on the size replaces one that is chosen."""
    point = Point("allreduce", 64 << 20, 1.0)
    usual = tuning.default_entry("shm", 16, point)
    row = replace(get("allreduce", usual.algorithm or ""), by_size=lambda p, nbytes: p)
    monkeypatch.setitem(registry._TABLE["allreduce"], row.name, row)
    assert decide("allreduce", None, p=16, nbytes=64 << 20).algorithm.name != row.name
    assert tuning.default_entry("shm", 16, point) == usual


def test_short_laps_do_not_count_beside_long_ones() -> None:
    clock = tuning._Clock.__new__(tuning._Clock)
    clock.laps = {
        "lucky": [tuning._Lap(1 * US, 1e-3), tuning._Lap(2 * US, 4e-3), tuning._Lap(5 * US, 8e-3)],
        "once": [tuning._Lap(3 * US, 1e-3)],
    }
    assert clock.best("lucky") == pytest.approx((2 * US, 3 * US))
    assert clock.best("once") == (3 * US, float("inf"))


def test_the_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    bar = Bar(terminal=True)
    bar.show(0.5, "half")
    bar.show(None, "still half")
    bar.clear()
    full = f"[{'#' * 15}{'.' * 15}]  50 %"
    assert capsys.readouterr().err == f"\r\x1b[K{full}  half\r\x1b[K{full}  still half\r\x1b[K"
    bar = Bar(terminal=False, lines=True)
    bar.show(0.1, "too early")
    bar.last -= 60
    bar.show(0.2, "one line")
    bar.show(0.3, "too early")
    bar.clear()
    assert capsys.readouterr().err == " 20 %  one line\n"
    for bar in (Bar(terminal=True, wanted=False), Bar(terminal=False)):
        bar.last -= 60
        bar.show(0.5, "nothing")
        bar.clear()
        assert capsys.readouterr().err == ""


def test_the_bar_of_tqdm(capsys: pytest.CaptureFixture[str]) -> None:
    tqdm = pytest.importorskip("tqdm")
    bar = Bar(terminal=True)
    assert capsys.readouterr().err == ""
    bar.show(0.5, "half")
    assert re.search(r"\r 50%\|.*\| 00:00<.*, half", capsys.readouterr().err)
    bar.clear()
    assert capsys.readouterr().err.endswith("\r")
    assert tqdm.tqdm.monitor is None


@pytest.mark.usefixtures("mpi")
def test_it_writes_a_profile_that_is_used(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "p.json"
    variables = {"COLLECTIVES_PROFILE": str(file)}
    file.parent.mkdir()
    file.write_text(profile.Profile("a cpu", 2, "0").text())
    done = command("tune", "-n", "2,3", *SMALL.split(), **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# alpha ") == 2
    assert done.stdout.endswith(f"The profile is {file}\n")
    assert "Left out" not in done.stdout
    found = profile.parse(file.read_text())
    (section,) = found.sections
    assert section.command == f"collectives tune -n 2,3 {SMALL}"
    assert set(section.rows) == {"gather", "barrier"}
    assert set(section.parameters) == {2, 3}
    for sizes in section.rows.values():
        assert set(sizes) == {2, 3}
    points = [nbytes for row in section.rows["gather"][2] for nbytes, _ in row.times]
    assert points == [8, 4096]
    assert all(
        us > 0 for rows in section.rows["gather"].values() for r in rows for _, us in r.times
    )
    # The next call of the same ranks, and that of another MPI, leave the rest as it is.
    words = ["--collectives", "barrier", "--budget", "20"]
    done = command("tune", "-n", "2", *words, **variables, COLLECTIVES_SHM="0")
    assert done.returncode == 0, done.stderr
    again = profile.parse(file.read_text())
    assert again.sections[0] == section
    assert set(again.sections[1].rows) == {"barrier"}
    assert again.sections[1].transport != "shm"
    code = "import collectives as cc; c = cc.world(); print(c.explain('barrier'))"
    done = command("run", "-n", "2", "-c", code, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("; the profile of ") == 2
    assert done.stdout.count("\n  measured ") == 2


@pytest.mark.usefixtures("mpi")
def test_calls_whose_bits_do_not_depend_on_the_size_have_rows_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    words = "tune -n 3 --collectives allreduce -b 8 -e 64K -f 8192 --budget 8 --bits"
    for bits in ("size", "any"):
        done = command(*words.split(), bits, "--profile", str(file))
        assert done.returncode == 0, done.stderr
        assert f"allreduce{'; bits=size' * (bits == 'size')} " in done.stdout
    (section,) = profile.parse(file.read_text()).sections
    assert list(section.rows) == ["allreduce; bits=size", "allreduce"]
    names = [row.algorithm for row in section.rows["allreduce; bits=size"][3]]
    assert all(has_fixed_order(get("allreduce", name), 3) for name in names)
    for bits in ("size", "any"):
        row = section.row("allreduce" + "; bits=size" * (bits == "size"), 3, 40_000)
        assert row is not None
        name = row[1].algorithm
        decision = decide("allreduce", None, p=3, nbytes=40_000, profile=section, bits=bits)
        assert decision.algorithm.name == name
        assert decision.reason.startswith("measured fastest in shared memory on 3 ranks")
    done = command("tune", "--show", "--profile", str(file))
    assert "allreduce, allreduce; bits=size on 3 ranks" in done.stdout


@pytest.mark.usefixtures("mpi")
def test_a_run_without_a_wish_to_write(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    done = command("tune", "--dry-run", "--profile", str(file), "--collectives", "gather,barrier")
    assert done.returncode == 0, done.stderr
    assert "; 12 points on each number of ranks:\n" in done.stdout
    assert "\n  barrier         once\n" in done.stdout
    assert "\n8 ranks: " in done.stdout
    assert done.stdout.endswith(f"It would write {file}\n")
    assert not file.exists()


@pytest.mark.usefixtures("mpi")
def test_what_is_over_the_budget_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    words = f"tune -n 4 -e 16M -f 2 --budget 2.5 --profile {file}"
    done = command(*words.split())
    assert done.returncode == 0, done.stderr
    assert "Not measured, because the time was up: " in done.stdout
    section = profile.parse(file.read_text()).sections[0]
    names = list(section.rows)
    last = section.rows[names[-1]][4][-1]
    assert last.limit is not None or last.times[-1][0] >= tuning.UNMEASURED


@pytest.mark.usefixtures("mpi")
def test_an_interrupt_keeps_what_is_known(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    words = f"tune -n 2,2 --collectives allreduce --budget 200 -f 2 --profile {file}"
    process = subprocess.Popen(
        [sys.executable, "-m", "collectives", *words.split()],
        env=environment(TMPDIR=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A process in the background of a shell ignores interrupts, and so do its children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    limit = time.monotonic() + PATIENCE / 4
    while not list(tmp_path.glob("collectives-*/*.json")) and time.monotonic() < limit:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert f"The profile is {file}" in out
    rows = profile.parse(file.read_text()).sections[0].rows["allreduce"][2]
    assert rows[-1].limit is not None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-n 1", "-n is 1, and one rank has nothing to choose; it must be at least 2"),
        ("--budget 0", "--budget is 0, and must be above 0"),
        ("-b 8 -e 4", "--end is 4 bytes, less than --begin, 8"),
        ("-b 0", "--begin is 0, and must be at least 1"),
        ("-f 1", "--factor is 1, and must be at least 2"),
        ("--collectives sendrecv", "--collectives has sendrecv, and must be of allreduce, "),
        ("--bits size --collectives scan,gather", "--collectives has gather, and must be of allre"),
        ("", "COLLECTIVES_PROFILE names no file to write; unset it, or pass --profile"),
    ],
)
def test_wrong_words(words: str, text: str) -> None:
    done = command("tune", *words.split())
    assert done.returncode == 2
    assert text in done.stderr


@pytest.mark.usefixtures("mpi")
def test_a_profile_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file" / "p.json"
    words = f"tune -n 2 --collectives barrier --budget 3 --profile {file}"
    done = command(*words.split())
    assert done.returncode == 2
    assert f"the profile {file} cannot be written: " in done.stderr
    assert "barrier" in done.stdout
