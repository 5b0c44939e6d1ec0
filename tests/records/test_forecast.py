"""Steps on timelines and their replay, without a launcher: timelines of known times are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from collectives.cli import main
from collectives.errors import ArgumentError
from collectives.records import forecast, steps
from collectives.records.steps import Recording
from collectives.simulate import simulate
from collectives.simulation.topology_text import Machine
from collectives.topology import Flat, Hosts

Capture = pytest.CaptureFixture[str]
NOTHING: frozenset[str] = frozenset()


class Ranks:
    """A timeline, as ranks would record it: each has a clock, in microseconds."""

    def __init__(self, hosts: list[str]) -> None:
        self.p = len(hosts)
        self.now = [0.0] * self.p
        self.number = 0
        self.events: list[dict[str, Any]] = []
        for rank, host in enumerate(hosts):
            name = {"name": f"rank {rank} ({host})"}
            self.events.append({"ph": "M", "name": "process_name", "pid": rank, "args": name})

    def compute(self, *seconds: float) -> None:
        """Let each rank compute, or all of them equally long."""
        for rank in range(self.p):
            self.now[rank] += 1e6 * seconds[rank % len(seconds)]

    def add(self, rank: int, name: str, start: float, end: float, **args: Any) -> None:
        about = {"algorithm": "ring", "call": self.number, "lowest": 0, "reason": "", **args}
        event = {"ph": "X", "pid": rank, "tid": 0, "ts": start, "dur": end - start, "name": name}
        self.events.append({**event, "cat": args.get("kind", name), "args": about})

    def call(
        self,
        kind: str,
        nbytes: int,
        seconds: float,
        of: list[int] | None = None,
        **args: Any,
    ) -> None:
        """Make a call that lasts so long after the last rank has made it."""
        self.number += 1
        ranks = range(self.p) if of is None else of
        end = max(self.now[rank] for rank in ranks) + 1e6 * seconds
        for rank in ranks:
            about = {"bytes": nbytes, "communicator": "0.0", "transport": "mpich", **args}
            self.add(rank, kind, self.now[rank], end, **about)
            self.now[rank] = end

    def document(self) -> dict[str, Any]:
        about = {"writer": "collectives 0", "token": "t", "ranks": self.p}
        return {"otherData": about, "traceEvents": self.events}

    def found(self, length: int = 0) -> Recording:
        return steps.found([self.document()], self.events, length)

    def write(self, folder: Path) -> str:
        path = folder / "out.json"
        path.write_text(json.dumps(self.document()))
        return str(path)


def made(step: Callable[[Ranks, int], None], p: int = 2, times: int = 10, hosts: int = 2) -> Ranks:
    """Return the timeline of ranks that have made a step several times."""
    ranks = Ranks([f"host{rank * hosts // p}" for rank in range(p)])
    ranks.call("barrier", 0, 0.001)
    for number in range(times):
        step(ranks, number)
    return ranks


def plain(ranks: Ranks, number: int) -> None:
    ranks.compute(0.01)
    ranks.call("allreduce", 1 << 20, 0.002)
    ranks.compute(0.001)
    ranks.call("allreduce", 8, 0.0001)


def replayed(of: Recording, p: int, text: str = "flat,alpha=10us", scaling: str = "weak") -> Any:
    return forecast.forecast(of, Machine(text), p, scaling, NOTHING)


def test_the_parts_of_a_recorded_step() -> None:
    of = made(plain).found()
    assert [[each.kind for each in carried] for carried in of.calls] == [["allreduce"]] * 2
    assert [carried[0].nbytes for carried in of.calls] == [1 << 20, 8]
    assert of.before[:, :, 0] == pytest.approx(0.01)
    assert of.before[:, :, 1] == pytest.approx(0.001)
    assert len(of.times) == 9  # the first one is left out
    row = forecast.recorded(of)
    assert row.seconds == pytest.approx(0.0131)
    assert (row.computing, row.communication) == pytest.approx((0.011, 0.0021))
    assert row.straggler == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("scaling", "part"), [("weak", 1), ("strong", 0.25)])
def test_a_step_is_computing_and_simulated_calls(scaling: str, part: float) -> None:
    row = replayed(made(plain).found(), 8, scaling=scaling)
    machine = Flat(8, alpha=10e-6)
    whole, short = (
        simulate("allreduce", name, nbytes, machine, segment=128 << 10).time
        for name, nbytes in zip(row.algorithms, (1 << 20, 8), strict=True)
    )
    assert row.computing == pytest.approx(0.011 * part)
    assert row.communication == pytest.approx(whole + short)
    assert row.seconds == pytest.approx(row.computing + row.communication + row.straggler)
    assert row.efficiency == pytest.approx(0.0131 * part / row.seconds)


def test_an_algorithm_that_the_caller_has_named_stays() -> None:
    def step(ranks: Ranks, number: int) -> None:
        ranks.compute(0.01)
        ranks.call("allreduce", 8, 0.001, reason="asked for by the caller")

    assert replayed(made(step).found(), 8).algorithms == ["ring"]


@pytest.mark.parametrize("p", [2, 8])
def test_a_rank_that_is_always_late(p: int) -> None:
    def step(ranks: Ranks, number: int) -> None:
        ranks.compute(0.01, 0.014)
        ranks.call("barrier", 0, 0.001)

    of = made(step).found()
    assert forecast.recorded(of).straggler == pytest.approx(0.002)
    row = replayed(of, p)
    assert (row.computing, row.straggler) == pytest.approx((0.012, 0.002))


def test_ranks_that_are_late_by_chance_are_more_often_late_if_there_are_more() -> None:
    rng = np.random.default_rng(3)

    def step(ranks: Ranks, number: int) -> None:
        ranks.compute(*rng.uniform(0.01, 0.02, 2))
        ranks.call("barrier", 0, 0.001)

    of = made(step, times=100).found()
    late = [replayed(of, p).straggler for p in (2, 8, 64)]
    assert late[0] < late[1] < late[2] < 0.005
    # All ranks compute longer in some steps: nobody waits for a straggler then.
    assert replayed(made(lambda ranks, k: late_together(ranks, k)).found(), 64).straggler < 1e-9


def late_together(ranks: Ranks, number: int) -> None:
    ranks.compute(0.01 * (1 + number % 2))
    ranks.call("barrier", 0, 0.001)


def test_one_rank_shows_how_its_steps_differ() -> None:
    of = made(late_together, p=1, hosts=1).found()
    row = replayed(of, 64)
    assert row.computing == pytest.approx(0.015, rel=0.1)
    assert row.straggler == pytest.approx(0.005, rel=0.2)
    # The call of one rank has no messages; its own time is added to that of the messages.
    (name,) = row.algorithms
    assert row.communication == pytest.approx(
        0.001 + simulate("barrier", name, 0, Flat(64, alpha=10e-6)).time, rel=0.01
    )


def test_the_step_is_what_repeats_most_often() -> None:
    """Also with other calls in between, such as the validation after an epoch."""

    def step(ranks: Ranks, number: int) -> None:
        plain(ranks, number)
        if number % 10 == 9:
            ranks.compute(0.5)
            ranks.call("reduce", 8, 0.001)

    of = made(step, times=30).found()
    assert [carried[0].nbytes for carried in of.calls] == [1 << 20, 8]
    assert len(of.times) == 27
    assert forecast.recorded(of).seconds == pytest.approx(0.0131)
    epochs = made(step, times=200)
    assert len(epochs.found().calls) == 21  # short epochs are found as steps
    assert len(epochs.found(2).calls) == 2
    longer = made(plain, times=12).found(4)
    assert [carried[0].nbytes for carried in longer.calls] == [1 << 20, 8] * 2


def test_a_step_begins_after_its_longest_pause() -> None:
    def step(ranks: Ranks, number: int) -> None:
        ranks.compute(0.0001)
        ranks.call("broadcast", 8, 0.001)
        ranks.compute(0.02)
        ranks.call("allreduce", 8, 0.001)

    assert [each[0].kind for each in made(step).found().calls] == ["allreduce", "broadcast"]


@pytest.mark.parametrize("hosts", [2, 4])
def test_alpha_and_beta_of_the_recorded_calls(hosts: int) -> None:
    machine = Hosts(hosts, 1, 40e-6, 9e-9, 0.0, (0.0, 0.0))

    def step(ranks: Ranks, number: int) -> None:
        for nbytes in (8, 1 << 20):
            ranks.compute(0.01)
            ranks.call("allreduce", nbytes, simulate("allreduce", "ring", nbytes, machine).time)

    found = forecast.fitted(made(step, p=hosts, hosts=hosts).found())
    assert found == pytest.approx({"alpha": 40e-6, "beta": 9e-9}, rel=0.01)


def test_short_calls_say_nothing_about_beta() -> None:
    def step(ranks: Ranks, number: int) -> None:
        ranks.compute(0.01)
        ranks.call("barrier", 0, 2e-4, algorithm="direct")

    of = made(step).found()
    (alpha,) = forecast.fitted(of).values()
    assert simulate("barrier", "direct", 0, Flat(2, alpha)).time == pytest.approx(2e-4)
    assert forecast.fitted(made(step, hosts=1).found()) == {}


def test_neighbours_and_other_calls() -> None:
    def step(ranks: Ranks, number: int) -> None:
        ranks.compute(0.01)
        ranks.call("neighbor_alltoall", 8000, 0.001)
        ranks.call("sendrecv", 8, 0.003, call=None)
        ranks.call("allreduce", 8, 0.001, of=[0, 1], communicator="0.1")
        ranks.call("barrier", 0, 0.001)

    of = made(step, p=4).found()
    assert [carried[0].kind for carried in of.calls] == ["neighbor_alltoall", "barrier"]
    assert of.other == pytest.approx(2, rel=0.2)
    # Messages, and calls of some of the ranks, count as computing of the ranks that made them.
    assert of.before[:, :, 1] == pytest.approx(np.tile([0.004, 0.004, 0.003, 0.003], (9, 1)))
    row = replayed(of, 8, "hosts=1,alpha=1ms,beta=1MB/s")
    assert row.algorithms[0] == "a message"
    assert row.communication > 0.009


def test_requests_are_hidden_behind_computing() -> None:
    def step(ranks: Ranks, number: int) -> None:
        start = ranks.now[0]
        ranks.compute(0.01)
        ranks.number += 1
        for rank in range(2):
            about = {"bytes": 8, "communicator": "0.0", "transport": "mpich"}
            ranks.add(rank, "allreduce", start, ranks.now[rank], **about)
            ranks.add(rank, "queue", start, start + 1, kind="allreduce")
        ranks.compute(0.001)

    of = made(step).found()
    assert replayed(of, 8).seconds == pytest.approx(0.011)
    slow = replayed(of, 8, "flat,alpha=1")
    assert slow.seconds == pytest.approx(0.001 + slow.communication + slow.computing - 0.001)
    assert slow.seconds > 1


def test_submissions_carry_the_calls_of_the_background() -> None:
    def step(ranks: Ranks, number: int) -> None:
        ranks.compute(0.004)
        for name, nbytes in (("a", 1 << 20), ("b", 1 << 10)):
            start = ranks.now[0]
            ranks.compute(0.001)
            for each, communicator in ((72, "0.1"), (nbytes, "0.2")):
                ranks.number += 1
                for rank in range(2):
                    about = {"bytes": each, "communicator": communicator, "transport": "mpich"}
                    ranks.add(rank, "allreduce", start + 100, start + 900, **about)
            for rank in range(2):
                about = {"bytes": nbytes, "communicator": "0.2", "transport": "background"}
                ranks.add(
                    rank, "allreduce", start, start + 1500, **about, algorithm=name, call=None
                )
        ranks.compute(0.002)

    of = made(step).found()
    assert [[each.nbytes for each in carried] for carried in of.calls] == [
        [72, 1 << 20],
        [72, 1024],
    ]
    assert of.waits == [steps.SUBMITTED] * 2
    row = replayed(of, 8, "flat,alpha=1us,beta=1GB/s")
    # The first submission is under way while the ranks compute for the second one.
    alone = forecast.forecast(of, Machine("flat,alpha=0,beta=0"), 8, "weak", NOTHING)
    assert row.seconds > alone.seconds
    assert row.algorithms != []


def test_arrays_that_grow() -> None:
    def step(ranks: Ranks, number: int) -> None:
        ranks.compute(0.01)
        ranks.call("allgather", 1 << 20, 0.001)

    of = made(step).found()
    machine = Machine("flat,alpha=0,beta=1GB/s")
    usual, grown = (
        forecast.forecast(of, machine, 8, "weak", frozenset(names)).communication
        for names in ((), ("allgather",))
    )
    assert grown == pytest.approx(4 * usual, rel=0.01)


def test_a_ring_of_too_many_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MESSAGES", 10)
    with pytest.raises(ArgumentError, match=r"more than 10 messages: 64 ranks are too many"):
        replayed(made(plain).found(), 64)


# The command.


def run(*words: str) -> int:
    return main(["forecast", *words])


def test_the_table(tmp_path: Path, capsys: Capture) -> None:
    words = (made(plain).write(tmp_path), "-p", "4..8", "--topology", "hosts=1,beta=1Gbit/s")
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 ranks on 2 hosts, 9 steps of 2 collectives, 13.1 ms a step"
    assert lines[1].startswith("on hosts of 1 rank: alpha ")
    assert lines[1].endswith(" (alpha from the recorded calls)")
    assert lines[3] == "weak scaling"
    heads = ["ranks", "a", "step", "computing", "communication", "straggler", "efficiency"]
    assert lines[4].split() == heads
    assert lines[5].split() == ["2*", "13.1", "ms", "84%", "16%", "0%", "100%"]
    assert [line.split()[0] for line in lines[5:8]] == ["2*", "4", "8"]
    assert lines[9] == "strong scaling"
    assert lines[14] == "* recorded; efficiency is relative to it"
    assert lines[15].startswith("on 8 ranks: ")
    assert len(lines) == 16


def test_the_network_of_the_recording(tmp_path: Path, capsys: Capture) -> None:
    path = made(plain).write(tmp_path)
    assert run(path, "--scaling", "strong") == 0
    text = capsys.readouterr().out
    assert "(alpha and beta from the recorded calls)" in text
    assert "weak" not in text
    ranks = [int(line.split()[0]) for line in text.splitlines()[6:12]]
    assert ranks == [4, 8, 16, 32, 64, 128]


def test_files(tmp_path: Path, capsys: Capture) -> None:
    path, numbers, picture = made(plain).write(tmp_path), tmp_path / "n.json", tmp_path / "p.svg"
    assert run(path, "-p", "2,4", "--json", str(numbers), "--svg", str(picture)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"The picture is in {picture}"
    found = json.loads(numbers.read_text())
    assert found["version"] == 1
    assert found["recording"]["ranks"] == found["recording"]["hosts"] == 2
    assert found["recorded"]["seconds"] == pytest.approx(0.0131)
    assert [row["ranks"] for row in found["weak"]] == [2, 4]
    drawn = ElementTree.fromstring(picture.read_text())
    titles = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert "2 ranks: 13.1 ms, recorded" in titles
    assert len([each for each in titles if each and "efficient" in each]) == 4
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}polygon"))) == 6


def only_once(ranks: Ranks, number: int) -> None:
    ranks.compute(0.01)
    ranks.call("allreduce", 1 << number, 0.001)


def no_calls(ranks: Ranks) -> Ranks:
    ranks.events = ranks.events[: ranks.p]
    return ranks


def without_rank_1(ranks: Ranks) -> Ranks:
    ranks.events = [each for each in ranks.events if each["pid"] == 0]
    return ranks


def apart(ranks: Ranks, number: int) -> None:
    ranks.call("sendrecv", 8, 0.003, call=None)


@pytest.mark.parametrize(
    ("ranks", "words", "text"),
    [
        (no_calls(made(plain)), "", "the timeline has no calls"),
        (without_rank_1(made(plain)), "", "the timeline of 2 ranks has no calls of rank 1; pass"),
        (
            made(only_once),
            "",
            "no step was found: no sequence of 1 call is 3 times on the timeline",
        ),
        (made(plain), "--step 400", "--step is 400, and the timeline has 21 calls of all ranks"),
        (made(plain), "--step 9", "no step was found: no sequence of 9 calls is 3 times"),
        (made(plain, hosts=1), "", "the timeline has no calls between hosts of equal numbers"),
        (made(plain), "--topology ring", "--topology has no 'ring'"),
        (made(plain), "--topology hosts=4 -p 6", "6 ranks do not fill hosts of 4"),
        (made(plain), "--svg /nowhere/out.svg", "--svg /nowhere/out.svg: "),
    ],
)
def test_refusals(ranks: Ranks, words: str, text: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(ranks.write(tmp_path), *words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("collectives: ")
    assert text in said


def test_files_that_are_no_timelines(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "other.json"
    for text, reason in (
        ("no", "it is not JSON"),
        ('{"traceEvents": []}', "that collectives has written"),
    ):
        path.write_text(text)
        assert run(str(path)) == 2
        assert reason in capsys.readouterr().err
    assert run(str(tmp_path / "none.json")) == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


def test_an_unknown_collective_grows(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        run(made(plain).write(tmp_path), "--grow", "allgathr")
    assert ended.value.code == 2
    assert "there is no collective 'allgathr'" in capsys.readouterr().err
