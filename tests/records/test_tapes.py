"""Tapes and the files of timelines, without a launcher: records that are written and added."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from collectives import _core
from collectives.errors import ArgumentError
from collectives.records import parts, summary, tape, tracefile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.json"


def event(pid, ts, dur, name="wait", **args):
    return json.dumps(
        {
            "ph": "X",
            "pid": pid,
            "tid": 0,
            "ts": ts,
            "dur": dur,
            "name": name,
            "cat": "allreduce",
            "args": {"algorithm": "ring", "call": 1, "round": 1, **args},
        }
    )


def call(pid, ts, dur, **args):
    more = {"communicator": "0.0", "bytes": 100, **args}
    return event(pid, ts, dur, "allreduce", **more)


def names(path):
    return [each["name"] for each in tracefile.load(path)["traceEvents"]]


NAMED = ["process_name", "process_sort_index"]


def test_a_file_is_valid_at_each_step(path):
    tracefile.create(path, "token", ["one", "two"])
    assert names(path) == NAMED * 2
    assert tracefile.token(path) == "token"
    tracefile.add(path, iter([]))
    tracefile.add(path, [event(0, 1, 2)])
    tracefile.add(path, [event(1, 1, 2), event(1, 3, 4)])
    assert names(path) == NAMED * 2 + ["wait"] * 3
    found = tracefile.load(path)
    assert found["otherData"]["ranks"] == 2
    assert found["traceEvents"][0]["args"] == {"name": "rank 0 (one)"}


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_many_events_are_written_in_parts(path, batch, monkeypatch):
    monkeypatch.setattr(tracefile, "LINES", batch)
    tracefile.create(path, "token", ["one"])
    tracefile.add(path, (event(0, k, 1) for k in range(7)))
    assert [each["ts"] for each in tracefile.load(path)["traceEvents"][2:]] == list(range(7))


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_who_dies_while_writing_is_mended(path, cut):
    """At any position: complete records stay, and others can add theirs."""
    tracefile.create(path, "token", ["one"])
    tracefile.add(path, [event(0, 1, 2)])
    size = path.stat().st_size
    tracefile.add(path, [event(0, 3, 4), event(0, 5, 6)])
    os.truncate(path, size + cut)
    tracefile.add(path, [event(0, 7, 8)])
    times = [each["ts"] for each in tracefile.load(path)["traceEvents"][2:]]
    assert times[0] == 1
    assert times[-1] == 7
    assert times[1:-1] in ([], [3], [3, 5])


def test_a_token_of_what_is_none(path, tmp_path):
    assert tracefile.token(path) is None
    for text in ("", "{}", "[]", '{"otherData": 1,\n', "\n"):
        path.write_text(text)
        assert tracefile.token(path) is None
        with pytest.raises(ArgumentError, match="is not a timeline"):
            tracefile.load(path)
    with pytest.raises(ArgumentError, match="cannot be written"):
        tracefile.create(tmp_path / "no" / "out.json", "token", [])


def dead_tape(path, rank, *, more=""):
    """Leave what a rank leaves that records and is killed."""
    program = f"""
import os, signal
from collectives import _core
from collectives.records import tape, timeline
facts = {{"rank": {rank}, "size": 3, "host": "here", "node": 0, "process": os.getpid(),
          "ranks": [0, 1, 2], "epoch": 0, "offset": 0}}
recording = timeline._Recording({str(path)!r}, facts)
{more}
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=False)


def test_what_dead_ranks_have_left_is_added(path):
    tracefile.create(path, "token", ["a", "b", "c"])
    dead_tape(path, 2)
    dead_tape(path, 0)
    parts.folder(path).joinpath("1.records").write_bytes(b"")
    parts.folder(path).joinpath("1.json").write_text("")
    with parts.Parts(path) as tapes:
        assert tapes.ranks() == [0, 1, 2]
    assert tracefile.complete(path) == ([0, 1, 2], [])
    assert not parts.folder(path).exists()
    assert tracefile.complete(path) == ([], [])


def test_who_dies_while_adding_is_added_once(path):
    tracefile.create(path, "token", ["a", "b", "c"])
    dead_tape(path, 1, more='recording.say({"adding": True})')
    tracefile.add(path, [event(0, 1, 1), event(1, 2, 1), event(2, 3, 1)])
    assert tracefile.complete(path) == ([1], [])
    found = tracefile.load(path)["traceEvents"]
    assert [each["pid"] for each in found if each["ph"] == "X"] == [0, 2]
    assert len([each for each in found if each["name"] == "process_name"]) == 3


def test_tapes_of_an_earlier_job_are_removed(path):
    tracefile.create(path, "token", ["a"])
    dead_tape(path, 0)
    tracefile.create(path, "another", ["a"])
    assert os.listdir(parts.folder(path)) == []
    assert tracefile.token(path) == "another"


def test_a_tape_of_another_version(path):
    tracefile.create(path, "token", ["a"])
    dead_tape(path, 0)
    with open(parts.folder(path) / "0.records", "r+b") as file:
        file.write(np.uint64(99).tobytes())
    with (
        parts.Parts(path) as tapes,
        open(parts.folder(path) / "0.records", "rb") as file,
        pytest.raises(ValueError, match="another version"),
    ):
        tape.Tape.read(tapes, 0, file.fileno())


def recorded(records, labels=None, counts=True):
    """Return a tape of (kind, start, end, call, size, other, round, segment) in ticks of 0.5 ns."""
    rows = np.zeros(len(records), tape.RECORD)
    for row, (kind, start, end, number, size, other, turn, piece) in zip(
        rows, records, strict=True
    ):
        row["start"] = start
        row["size"] = size | (other + 1) << 40
        row["call"] = number
        row["round"], row["segment"] = turn, piece
        row["span"] = kind << 56 | (end - start)
    label = {
        "label": 0,
        "communicator": "0.3",
        "ranks": [5, 4],
        "local": [1, 0],
        "collective": "allreduce",
        "algorithm": "ring",
        "segment": 0,
        "transport": "shm",
        "reason": "why",
    }
    facts = {"rank": 1, "ranks": [4, 5], "offset": 1000, "epoch": 500, "host": "here"}
    moments = np.array([10_000, 12_000], np.uint64), np.array([5_000, 6_000], np.uint64)
    return tape.Tape(facts, labels or {0: label}, rows, *moments, counts, False, False)


def spans(one, **options):
    found = [json.loads(line) for line in tape.events(one, **options)]
    return [each for each in found if each["ph"] == "X"]


def test_times_and_peers():
    """Ticks become us since the epoch; peers are ranks of the timeline."""
    found = spans(
        recorded(
            [
                (tape.CALL, 10_000, 20_000, 7, 800, 0, 2, 1),
                (tape.AWAIT, 11_000, 13_000, 7, 0, 0, 3, 2),
                (tape.WAIT, 14_000, 15_000, 7, 0, 0, 3, 2),
                (tape.FOLD, 15_000, 16_000, 7, 40, -1, 4, 0),
                (tape.SENT, 11_000, 30_000, 7, 40, 1, 0, 0),
            ]
        )
    )
    whole, first, second, fold, sent = found
    assert (whole["ts"], whole["dur"], whole["name"]) == (5.5, 5.0, "allreduce")
    assert whole["args"]["call"] == 65536 + 3
    assert whole["args"]["bytes"] == 800
    # Of the host's ranks [1, 0] the first is rank 1 of [5, 4], which is 4: rank 0 of [4, 5].
    assert (first["name"], first["args"]["peer"]) == ("wait", 0)
    assert (first["args"]["round"], first["args"]["piece"]) == (4, 3)
    assert (second["name"], second["args"]["peer"]) == ("wait", 1)
    assert (fold["name"], fold["args"]["bytes"]) == ("fold", 40)
    assert "peer" not in fold["args"]
    assert (sent["name"], sent["tid"], sent["args"]["peer"]) == ("send", tape.MESSAGE_TRACKS, 0)
    assert sent["dur"] == 9.5  # it may last longer than the call


def test_calls_side_by_side_have_tracks_of_their_own():
    found = spans(
        recorded(
            [
                (tape.CALL, 10_000, 20_000, 1, 0, 0, 0, 0),
                (tape.CALL, 15_000, 25_000, 2, 0, 0, 1, 0),
                (tape.CALL, 21_000, 22_000, 3, 0, 0, 2, 0),
                (tape.CALL, 30_000, 30_000, 4, 0, 0, 3, 0),
                (tape.COPY, 31_000, 32_000, 4, 9, -1, 0, 0),
            ]
        )
    )
    assert [each["tid"] for each in found] == [0, 1, 0, 0, 0]
    assert found[3]["args"]["unfinished"] is True
    assert found[3]["dur"] == 1.0


def test_a_call_whose_label_is_not_written_yet():
    """Another thread has begun it while the timeline is read: it has no name, and no peers."""
    records = [
        (tape.CALL, 10_000, 20_000, 1, 0, 3, 0, 0),
        (tape.AWAIT, 11_000, 13_000, 1, 0, 0, 0, 0),
        (tape.WAIT, 14_000, 15_000, 1, 0, 1, 0, 0),
    ]
    whole, *parts = spans(recorded(records))
    assert whole["name"] == "?"
    assert [each["name"] for each in parts] == ["wait", "wait"]
    assert all("peer" not in each["args"] for each in parts)


def test_phases_of_a_submission():
    """They have neither rounds nor bytes."""
    records = [
        (tape.CALL, 10_000, 20_000, 1, 80, 0, 0, 0),
        (tape.NEGOTIATE, 10_000, 12_000, 1, 0, -1, 0, 0),
        (tape.COPY_OUT, 18_000, 20_000, 1, 0, -1, 0, 0),
    ]
    _, first, second = spans(recorded(records))
    assert (first["name"], second["name"]) == ("negotiate", "copy out")
    assert first["args"].keys() == {"algorithm", "call"}


def test_calls_before_the_beginning_are_left_out():
    records = [
        (tape.CALL, 10_000, 20_000, 1, 0, 0, 0, 0),
        (tape.COPY, 11_000, 12_000, 1, 0, -1, 0, 0),
        (tape.CALL, 21_000, 22_000, 2, 0, 0, 1, 0),
    ]
    assert len(spans(recorded(records))) == 3
    assert len(spans(recorded(records), since=20_000)) == 1
    assert spans(recorded([])) == []


def test_the_rate_of_a_short_tape_is_that_of_a_long_one():
    short, long, far = recorded([]), recorded([]), recorded([])
    long.ns[1] = np.uint64(2_000_005_000)
    long.ticks[1] = np.uint64(4_000_030_000)
    far.facts = {**far.facts, "host": "there"}
    far.ns[1] = np.uint64(9_000_000_000)
    assert tape.owner_rate(short, [long, far]) == long.rate
    assert tape.owner_rate(long, [far]) == long.rate
    assert tape.owner_rate(short, []) == 0.5
    assert recorded([], counts=False).rate == 1.0


def test_one_tape_at_a_time(tmp_path):
    file = os.open(tmp_path / "records", os.O_RDWR | os.O_CREAT)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    _core.start_tape(file, 1 << 20, False, lambda number, label: None)
    try:
        with pytest.raises(RuntimeError, match="recorded already"):
            _core.start_tape(other, 1 << 20, False, lambda number, label: None)
    finally:
        assert _core.stop_tape()
    assert _core.stop_tape()
    with pytest.raises(OSError, match="cannot be had"):
        _core.start_tape(-1, 1 << 20, False, lambda number, label: None)


# -- the summary -----------------------------------------------------------------------------------


def words(line):
    return " ".join(line.split())


def said(*events):
    return "\n".join(summary.text(summary.summed([json.loads(each) for each in events])))


def test_a_summary():
    text = said(
        tape.metadata("process_name", 0, {"name": "rank 0 (a)"}),
        tape.metadata("process_name", 1, {"name": "rank 1 (b)"}),
        call(0, 0, 1000),
        event(0, 0, 900, peer=1),
        event(0, 900, 100, "fold"),
        call(1, 900, 100),
        event(1, 900, 50, peer=0),
    )
    lines = text.splitlines()
    assert lines[0] == "2 ranks, 1 call on each at most, 1.0 ms"
    assert words(lines[3]) == "allreduce ring 1 550.0 us 550.0 us 550.0 us 1.0 ms 100 B 0.000182"
    assert words(lines[6]) == "rank 0 (a) 1 1.0 ms 900.0 us 90% 50.0 us"
    assert words(lines[7]) == "rank 1 (b) 1 50.0 us 50.0 us 5% 900.0 us"
    assert lines[9] == "The straggler is rank 1: it waits 5% of the time, and the other 90%."


@pytest.mark.parametrize(
    ("waits", "verdict"),
    [
        ([500], "One rank waits for nobody."),
        ([0, 0, 0], "No rank stands out: they hardly wait."),
        ([10, 0, 10], "No rank stands out: they hardly wait."),
        ([500, 400, 500], "No rank stands out: none waits much less than the others."),
        (
            [500, 100, 600],
            "The straggler is rank 1: it waits 10% of the time, and the others 50% to 60%.",
        ),
        ([200, 250, 800], "No rank stands out: none waits much less than the others."),
        (
            [100, 900, 120, 110, 800, 900],
            "The stragglers are ranks 0, 2-3: they wait 10% to 12% of the time, and the others 80% "
            "to 90%.",
        ),
    ],
)
def test_who_stands_out(waits, verdict):
    events = []
    for rank, wait in enumerate(waits):
        events += [call(rank, 0, 1000), event(rank, 0, wait)]
    assert said(*events).splitlines()[-1] == verdict


def test_a_call_that_others_have_yet_to_make_is_waited_for():
    """Nonblocking calls and submissions have no phase for that."""
    text = said(
        call(0, 0, 1000),
        call(1, 900, 100),
        call(0, 1000, 1000, call=None, algorithm="gradients"),
        call(1, 1800, 200, call=None, algorithm="gradients"),
    )
    rows = [words(each).split(" us")[0] for each in text.splitlines() if each.startswith("rank ")]
    assert words(text.splitlines()[-4]).startswith("rank 0 2 0.0 us 1.7 ms 85% 0.0 us")
    assert words(text.splitlines()[-3]).startswith("rank 1 2 0.0 us 0.0 us 0% 1.7 ms")
    assert text.splitlines()[-1].startswith("The straggler is rank 1: it waits 0% of the time")
    assert len(rows) == 3


def test_calls_of_different_groups_are_not_compared():
    text = said(
        call(0, 0, 1000, communicator="0.1", lowest=0),
        call(1, 900, 100, communicator="0.1", lowest=1),
    )
    assert text.splitlines()[-1].startswith("It cannot be told whether a rank stands out")


def test_calls_that_were_left():
    text = said(
        call(0, 0, 100, unfinished=True),
        event(0, 0, 20, "fold"),
        event(0, 20, 80, peer=1, round=3),
        call(1, 0, 100, failed=True),
        event(1, 0, 20, "fold"),
        call(2, 0, 100, unfinished=True),
    )
    assert text.splitlines()[-3:] == [
        "Rank 0 did not finish call 1 of communicator 0.0, allreduce 'ring': it waited 80.0 us for "
        "rank 1 in round 3.",
        "Rank 1 failed in call 1 of communicator 0.0, allreduce 'ring': its last phase was fold in "
        "round 1.",
        "Rank 2 did not finish call 1 of communicator 0.0, allreduce 'ring'.",
    ]


def test_an_empty_timeline():
    named = tape.metadata("process_name", 0, {"name": "rank 0 (a)"})
    assert said(named) == "1 rank, 0 calls on each at most, 0.0 us"
