"""Timelines and traces: they record the calls of all ranks, on one clock."""

import json
import math
import os
import threading
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cases import FULL

import collectives as cc
from collectives.errors import ArgumentError
from collectives.records import parts, tape, timeline, tracefile

PHASES = {"queue", "wait", "copy", "fold", "send", "receive", "post"}
TIMES = 40 if FULL else 10  # that something is repeated which may come in a wrong order
NAP = 0.05  # seconds
NAPS = (NAP, 5 * NAP, 25 * NAP, 125 * NAP)  # ranks that share cores wait for each other, too
CLOCKS = 1e3  # us: hosts are set by messages; ranks of one host read one clock


class Loaded:
    """The events of a timeline, by kind."""

    def __init__(self, path):
        self.text = Path(path).read_text()
        self.all = json.loads(self.text)["traceEvents"]
        spans = [each for each in self.all if each["ph"] == "X"]
        self.calls = [each for each in spans if is_call(each)]
        self.messages = [each for each in spans if is_message(each)]
        self.phases = [each for each in spans if not (is_call(each) or is_message(each))]

    def of(self, rank, name=None):
        return [c for c in self.calls if c["pid"] == rank and name in (None, c["name"])]

    def phases_of(self, call):
        return [
            each
            for each in self.phases
            if (each["pid"], each["tid"]) == (call["pid"], call["tid"]) and within(each, call)
        ]

    def waits(self, rank):
        """Return for each peer the seconds that a rank waits for it."""
        found = defaultdict(float)
        for each in self.phases:
            if each["pid"] == rank and each["name"] == "wait":
                found[each["args"].get("peer")] += each["dur"] / 1e6
        return found


def is_call(event):
    return "communicator" in event["args"]


def has_begun(collective):
    """Return whether the tape of this process has a call of a collective."""
    read = timeline._recording.read()
    calls = read.records[read.records["span"] >> np.uint64(56) == tape.CALL]
    labels = [read.labels.get(int(size >> np.uint64(40)) - 1, {}) for size in calls["size"]]
    return any(label.get("collective") == collective for label in labels)


def is_message(event):
    return event["tid"] >= tape.MESSAGE_TRACKS


def end(event):
    return event["ts"] + event["dur"]


def within(inner, outer):
    return inner["ts"] >= outer["ts"] - 1e-3 and end(inner) <= end(outer) + 1e-3


def check(loaded, size):
    """Check the rules that every timeline keeps."""
    assert {each["pid"] for each in loaded.all} == set(range(size))
    assert all(each["dur"] >= 0 for each in loaded.calls + loaded.phases + loaded.messages)
    assert {each["name"] for each in loaded.phases} <= PHASES
    assert {each["name"] for each in loaded.messages} <= {"send", "receive"}
    tracks = defaultdict(list)
    for each in loaded.calls + loaded.phases + loaded.messages:
        tracks[each["pid"], each["tid"]].append(each)
    for events in tracks.values():
        # Calls, and messages, follow each other; the phases of a call do, inside of it.
        outer = [each for each in events if is_call(each) or is_message(each)]
        inner = [each for each in events if not (is_call(each) or is_message(each))]
        for group in (outer, inner):
            group.sort(key=lambda each: (each["ts"], end(each)))
            for one, other in pairwise(group):
                assert end(one) <= other["ts"] + 1e-3, (one, other)
        calls = iter(outer)
        call = None
        for each in inner:
            while call is None or end(call) + 1e-3 < end(each):
                call = next(calls)
            assert within(each, call), (each, call)
    # Nobody leaves a barrier before all have come.
    meetings = defaultdict(list)
    for call in loaded.calls:
        if call["name"] in ("barrier", "allreduce") and call["args"]["call"] is not None:
            key = call["args"]["communicator"], call["args"]["call"]
            meetings[key].append(call)
    for calls in meetings.values():
        if len(calls) == size and not any("unfinished" in call["args"] for call in calls):
            assert min(map(end, calls)) >= max(call["ts"] for call in calls) - CLOCKS, calls


@pytest.fixture
def world(monkeypatch):
    # Ranks that agree first wait there.
    monkeypatch.setenv("COLLECTIVES_VALIDATE", "0")
    with cc.Communicator() as comm:
        yield comm


def record(world, tmp_path, run):
    """Run something on a timeline; return the records."""
    with world.timeline(tmp_path / "out.json") as timeline:
        run()
    loaded = Loaded(timeline.path)
    assert not parts.folder(timeline.path).exists()
    check(loaded, world.size)
    return loaded


def record_nap(world, tmp_path, run, is_seen, ranks):
    """Record `run(nap)`, again with a longer nap until the waits of all of the ranks show it."""
    for nap in NAPS:  # all ranks read the same file, and so they agree
        loaded = record(world, tmp_path, partial(run, nap))
        waits = [loaded.waits(rank) for rank in ranks]
        if all(is_seen(each, nap) for each in waits):
            return loaded
    return pytest.fail(f"a rank slept for {nap} s, but the others waited for {waits}")


@pytest.mark.parametrize("algorithm", ["ring", "all_to_all", "round_robin", None])
@pytest.mark.parametrize("nbytes", [8, 65536, 3 << 20])
def test_every_call_is_there_with_its_phases(world, tmp_path, algorithm, nbytes):
    x = np.ones(nbytes // 4, np.float32)
    loaded = record(
        world, tmp_path, lambda: [world.allreduce(x, algorithm=algorithm) for _ in range(3)]
    )
    decision = world.explain("allreduce", x.nbytes, algorithm=algorithm)
    for rank in range(world.size):
        calls = loaded.of(rank, "allreduce")
        assert len(calls) == 3
        for call in calls:
            assert call["args"]["algorithm"] == decision.algorithm.name
            assert call["args"]["bytes"] == x.nbytes
            assert call["args"]["reason"] == decision.reason
            folded = sum(
                each["args"]["bytes"] for each in loaded.phases_of(call) if each["name"] == "fold"
            )
            if world.size > 1 and algorithm is not None:  # in which all ranks fold
                assert folded >= nbytes // world.size // 4 * 4, loaded.phases_of(call)


def test_bytes_of_messages_are_those_of_the_algorithm(world, tmp_path):
    """If ranks share no memory, every message of a ring is there."""
    p = world.size
    x = np.ones(1000 * p, np.float32)
    loaded = record(world, tmp_path, lambda: world.allreduce(x, algorithm="ring"))
    for rank in range(p):
        own = [m for m in loaded.messages if (m["pid"], m["cat"]) == (rank, "allreduce")]
        if p > 1 and not world._chooser.lanes:  # no ranks share memory
            for name, peer in (("send", (rank + 1) % p), ("receive", (rank - 1) % p)):
                some = [each for each in own if each["name"] == name]
                assert sum(each["args"]["bytes"] for each in some) == 2 * (p - 1) * 4000
                assert {each["args"]["peer"] for each in some} == {peer}


def test_messages_end_after_they_began(world, tmp_path):
    """On the clock of the timeline, whichever rank sent them."""
    p, rank = world.size, world.rank
    x = np.arange(5000.0)

    def run():
        if p == 1:
            return
        for _ in range(5):
            world.sendrecv(x, (rank + 1) % p, np.empty_like(x), (rank - 1) % p)

    loaded = record(world, tmp_path, run)
    if p == 1:
        return
    pairs = defaultdict(lambda: ([], []))
    for each in loaded.messages:
        if each["cat"] == "sendrecv":
            peer = each["args"]["peer"]
            sends = each["name"] == "send"
            key = (each["pid"], peer) if sends else (peer, each["pid"])
            pairs[key][not sends].append(each)
    assert len(pairs) == p
    for sent, received in pairs.values():
        assert len(sent) == len(received) == 5
        order = sorted(sent, key=lambda each: each["ts"]), sorted(received, key=end)
        for one, other in zip(*order, strict=True):
            assert end(other) >= one["ts"] - CLOCKS


def test_a_wait_is_for_the_rank_that_slept(world, tmp_path):
    late = world.size - 1
    x = np.ones(1000)

    def run(nap):
        for _ in range(4):
            world.barrier()
            if world.rank == late:
                time.sleep(nap)
            world.allreduce(x, algorithm="all_to_all")

    def is_seen(waits, nap):
        return waits[late] > 3 * nap and sum(waits.values()) < 2 * waits[late]

    loaded = record_nap(world, tmp_path, run, is_seen, range(late))
    if world.size == 1:
        assert not loaded.waits(0)
    for rank in range(late):
        # A wait is for one rank: at most as long as the calls took, altogether.
        took = sum(call["dur"] for call in loaded.of(rank)) / 1e6
        assert sum(loaded.waits(rank).values()) <= took, loaded.waits(rank)


def test_calls_that_do_not_block(world, tmp_path):
    """They overlap, each on a track of its own; computations of the program are no wait."""
    x = np.ones(100_000)

    def run():
        requests = [world.iallreduce(x), world.ibroadcast(x), world.iallgather(x)]
        time.sleep(NAP)
        for request in reversed(requests):
            request.wait()

    loaded = record(world, tmp_path, run)
    for rank in range(world.size):
        calls = [loaded.of(rank, name)[0] for name in ("allreduce", "broadcast", "allgather")]
        for call in calls:
            phases = loaded.phases_of(call)
            assert sum(each["name"] == "queue" for each in phases) == 1
        # Inside the nap nobody waited: a wait that covers it would be as long.
        for each in loaded.phases:
            if each["pid"] == rank and each["name"] == "wait" and world.size == 1:
                pytest.fail(f"one rank waits: {each}")
    if world.size > 1 and world.transport == "shm":
        some = [each for each in loaded.calls if each["name"] in ("broadcast", "allgather")]
        assert {each["tid"] for each in some} != {0}


def test_two_communicators_and_threads(world, tmp_path):
    comms = [world.dup(), world.dup()]
    x = np.ones(2000)

    def run():
        threads = [
            threading.Thread(target=lambda c=comm: [c.allreduce(x) for _ in range(20)])
            for comm in comms
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)

    loaded = record(world, tmp_path, run)
    for rank in range(world.size):
        names = defaultdict(int)
        for call in loaded.of(rank, "allreduce"):
            names[call["args"]["communicator"]] += 1
        assert sorted(names.values()) == [20, 20], names
    for comm in comms:
        comm.free()


def test_a_part_of_the_ranks(world, tmp_path):
    """Of another communicator, in another order: peers are ranks of the timeline."""
    part = world.split(0, key=-world.rank)
    x = np.ones(10)

    def run(nap):
        if world.rank == 0:  # the last one of `part`
            time.sleep(nap)
        part.allreduce(x, algorithm="all_to_all")

    record_nap(world, tmp_path, run, lambda waits, nap: waits[0] > nap / 2, range(1, world.size))
    part.free()


def test_one_inside_the_other(world, tmp_path):
    x = np.ones(5)

    def run():
        world.allreduce(x)
        with world.timeline(tmp_path / "inner.json") as inner:
            world.broadcast(x)
        found = Loaded(inner.path)
        check(found, world.size)
        assert {call["name"] for call in found.calls} == {"broadcast", "barrier"}
        world.allreduce(x)

    loaded = record(world, tmp_path, run)
    for rank in range(world.size):
        assert len(loaded.of(rank, "allreduce")) == 2
        assert len(loaded.of(rank, "broadcast")) == 1


def test_one_after_the_other(world, tmp_path):
    """A record does not stay."""
    x = np.ones(5)
    plan = world.plan("allreduce", x, np.empty_like(x))
    for count in (2, 3):
        loaded = record(world, tmp_path, lambda n=count: [plan() for _ in range(n)])
        assert [len(loaded.of(rank, "allreduce")) for rank in range(world.size)] == (
            [count] * world.size
        )
        plan()  # on none


def test_what_is_in_flight_when_it_ends(world, tmp_path):
    """The call is there, cut off; the operation goes on."""
    x = np.ones(300_000)
    with world.timeline(tmp_path / "out.json") as timeline:
        request = world.iallreduce(x)
    assert (request.wait() == world.size).all()
    calls = Loaded(timeline.path).of(world.rank, "allreduce")
    assert len(calls) == 1
    with world.timeline(tmp_path / "next.json") as timeline:
        assert (world.allreduce(x) == world.size).all()
    assert len(Loaded(timeline.path).of(world.rank, "allreduce")) == 1


def test_a_file_that_cannot_be_written(world, tmp_path):
    with (
        pytest.raises(ArgumentError, match=r"rank 0: the timeline .* cannot be written"),
        world.timeline(tmp_path / "no" / "out.json"),
    ):
        pytest.fail("it is not on")
    assert world.allreduce(np.ones(1))[0] == world.size


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file(world, tmp_path, kind):
    path = tmp_path / "pipe" if kind == "pipe" else "/dev/null"
    if kind == "pipe" and world.rank == 0:
        os.mkfifo(path)
    with (
        pytest.raises(ArgumentError, match=r"rank 0: the timeline .* it is no regular file"),
        world.timeline(path),
    ):
        pytest.fail("it is not on")
    world.barrier()


def test_what_is_no_path(world):
    for path in (None, 3, "a\0b"):
        with pytest.raises(ArgumentError, match=r"path is .*, and must"):
            world.timeline(path)
    assert world.timeline(b"x.json").path == os.path.abspath("x.json")


def test_threads_communicate_while_a_timeline_ends(world, tmp_path):
    """A rank that describes a call for the first time may find the tape closed."""
    if os.environ.get("COLLECTIVES_TIMELINE"):
        pytest.skip("the tape is that of the whole run")
    other = world.dup()
    errors = []

    def communicate():
        try:
            for n in range(TIMES):
                part = other.split(0)
                part.allreduce(np.ones(n + 1))
                part.free()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=communicate)
    thread.start()
    for n in range(TIMES):
        with world.timeline(tmp_path / f"{n}.json"):
            pass
    thread.join()
    assert errors == []
    other.free()


def test_a_file_that_is_gone(world, tmp_path):
    """Records are not thrown away."""
    if os.environ.get("COLLECTIVES_TIMELINE"):
        pytest.skip("the tape is that of the whole run")
    timeline = world.timeline(tmp_path / "out.json")
    timeline.start()
    world.allreduce(np.ones(3))
    world.barrier()
    if world.rank == 0:
        os.rename(timeline.path, tmp_path / "aside.json")
    world.barrier()
    with pytest.warns(cc.errors.TimelineWarning, match=f"lacks rank {world.rank}, whose tape"):
        timeline.stop()
    world.barrier()
    if world.rank == 0:
        os.rename(tmp_path / "aside.json", timeline.path)
        ranks = list(range(world.size))
        assert tracefile.complete(timeline.path) == (ranks, [])
        loaded = Loaded(timeline.path)
        check(loaded, world.size)
        assert all(len(loaded.of(rank, "allreduce")) == 1 for rank in ranks)
    world.barrier()


@pytest.mark.ranks(1, 2)  # each process has a tape of its own
def test_no_more_room(world, tmp_path, monkeypatch):
    if os.environ.get("COLLECTIVES_TIMELINE"):
        pytest.skip("the whole run is on a timeline, which has room for all")
    monkeypatch.setenv("COLLECTIVES_TIMELINE_LIMIT", "300000")
    x = np.ones(1)
    timeline = world.timeline(tmp_path / "out.json")
    timeline.start()
    for _ in range(5000):  # a record has 32 bytes, and a call two records at least
        world.allreduce(x)
    with pytest.warns(cc.errors.TimelineWarning, match="was full"):
        timeline.stop()
    world.barrier()
    loaded = Loaded(timeline.path)
    assert 500 < len(loaded.of(world.rank, "allreduce")) < 300000 / 32 / 2


# -- traces --------------------------------------------------------------------------------------


def in_threads(*calls):
    """Run calls in threads of their own, and raise what one of them raises."""
    failed = []

    def run(call):
        try:
            call()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failed:
        raise failed[0]


def test_timelines_of_several_threads(world, tmp_path):
    """Each has the calls of its own thread, whichever begins or ends first, on each rank."""
    comms = world.dup(), world.dup()
    paths = [world.broadcast_object(str(tmp_path / f"{k}.json")) for k in range(2)]

    def record(comm, path):
        for _ in range(10):
            with comm.timeline(path):
                comm.allreduce(np.ones(3))

    in_threads(*(lambda pair=pair: record(*pair) for pair in zip(comms, paths, strict=True)))
    world.barrier()
    for comm, path in zip(comms, paths, strict=True):
        loaded = Loaded(path)
        check(loaded, comm.size)
        assert all(loaded.of(rank, "allreduce") for rank in range(comm.size))
        assert not Path(parts.folder(path)).exists()
        comm.free()


@pytest.mark.several
def test_a_call_of_another_thread_is_unfinished_at_the_end(world, tmp_path):
    """It ends with its last record, perhaps before other ranks begin the call."""
    other = world.dup()
    timeline = world.timeline(world.broadcast_object(str(tmp_path / "out.json")))
    timeline.start()
    if world.rank == 0:
        thread = threading.Thread(target=other.allreduce, args=(np.ones(3),))
        thread.start()
        while thread.is_alive() and not has_begun("allreduce"):
            time.sleep(NAP)
        timeline.stop()
    world.barrier()
    if world.rank:
        other.allreduce(np.ones(3))
        timeline.stop()
    else:
        thread.join()
    world.barrier()
    loaded = Loaded(timeline.path)
    check(loaded, world.size)
    for rank in range(world.size):
        (call,) = loaded.of(rank, "allreduce")
        assert call["args"].get("unfinished", False) == (rank == 0)
    other.free()


def test_a_timeline_is_read_while_a_thread_records_a_line(world, tmp_path, monkeypatch):
    write, half = os.write, threading.Event()

    def slow(file, text):
        if b"half" not in text:
            return write(file, text)
        write(file, text[:20])
        half.set()
        time.sleep(NAP)
        return 20 + write(file, text[20:])

    with world.timeline(world.broadcast_object(str(tmp_path / "out.json"))) as made:
        world.allreduce(np.ones(3))
        monkeypatch.setattr(os, "write", slow)
        label = {"label": 10**6, "communicator": "half"}
        thread = threading.Thread(target=timeline._recording.say, args=(label,))
        thread.start()
        assert half.wait(30)
        assert timeline._recording.read().labels[10**6] == label
        thread.join()
        monkeypatch.undo()
    world.barrier()
    check(Loaded(made.path), world.size)


def test_timelines_that_threads_end_at_once(world, tmp_path):
    paths = [world.broadcast_object(str(tmp_path / f"{k}.json")) for k in range(2)]
    for _ in range(TIMES // 2):
        timelines = [world.timeline(path) for path in paths]
        for each in timelines:
            each.start()
        world.allreduce(np.ones(3))
        world.barrier()
        in_threads(*(each.stop for each in timelines))
        world.barrier()
        for path in paths:
            check(Loaded(path), world.size)
        world.barrier()


def test_the_first_of_two_timelines_ends_first(world, tmp_path):
    """Nothing is in its file twice, and the other one goes on."""
    first, second = (
        world.timeline(world.broadcast_object(str(tmp_path / f"{k}.json"))) for k in range(2)
    )
    first.start()
    second.start()
    world.allreduce(np.ones(3))
    world.barrier()
    first.stop()
    world.barrier()
    for rank in range(world.size):
        assert len(Loaded(first.path).of(rank, "allreduce")) == 1
    assert not Path(parts.folder(first.path)).exists()
    world.allreduce(np.ones(3))
    world.barrier()
    second.stop()
    world.barrier()
    for rank in range(world.size):
        assert len(Loaded(second.path).of(rank, "allreduce")) == 2


def test_a_trace_says_what_ran_and_why(world):
    x = np.ones(1000)
    with world.trace() as trace:
        world.allreduce(x, algorithm="ring")
        world.broadcast(x)
        world.barrier()
        world.ireduce(x, algorithm="tree").wait()
        plan = world.plan("allgather", x, np.empty((world.size, 1000)))
        plan()
        world.allgatherv(x, counts=[1000] * world.size)
    world.allreduce(x)  # on none
    assert [call.collective for call in trace] == [
        "allreduce",
        "broadcast",
        "barrier",
        "reduce",
        "allgather",
        "allgatherv",
    ]
    first = trace[0]
    assert (first.algorithm, first.nbytes) == ("ring", 8000)
    assert first.reason == "asked for by the caller"
    assert trace[1].algorithm == world.explain("broadcast", 8000).algorithm.name
    assert trace[1].reason == world.explain("broadcast", 8000).reason
    assert trace[2].nbytes == 0
    assert trace[4].nbytes == 8000 * world.size
    starts = [call.start for call in trace]
    assert starts == sorted(starts)
    assert all(call.seconds >= 0 and math.isfinite(call.seconds) for call in trace)
    if world.size > 1 and world.nodes == 1:
        assert first.transport == ("shm" if world._segment is not None else world.transport)
    lines = str(trace).splitlines()
    assert len(lines) == 7
    assert lines[0].split()[2:] == ["us", *trace[0]._fields[:2], "bytes", "segment", "via", "why"]
    assert "asked for by the caller" in lines[1]
    assert repr(trace) == "<Trace, 6 calls>"


def test_traces_of_one_communicator(world):
    other = world.dup()
    x = np.ones(3)
    with world.trace() as outer:
        world.allreduce(x)
        with world.trace() as inner:
            world.barrier()
            other.barrier()
        world.broadcast(x)
    assert [call.collective for call in outer] == ["allreduce", "barrier", "broadcast"]
    assert [call.collective for call in inner] == ["barrier"]
    assert len(outer[1:]) == 2
    other.free()


def test_messages_on_a_trace(world):
    p, rank = world.size, world.rank
    x = np.ones(7, np.int32)
    with world.trace() as trace:
        if p > 1:
            world.sendrecv(x, (rank + 1) % p, np.empty_like(x), (rank - 1) % p)
    if p > 1:
        (call,) = trace
        assert (call.collective, call.nbytes, call.reason) == ("sendrecv", 28, "")
        assert call.transport != "shm"
