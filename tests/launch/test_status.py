"""``collectives status``: jobs that hang on purpose, seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import command, environment
from jobs import PATIENCE, line_of

from collectives import _core
from collectives.cli import main, status
from collectives.errors import ArgumentError, CommunicatorError
from collectives.process import flight

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "who_is_late.py"
Job = subprocess.Popen[str]


@contextmanager
def started(*words: str | Path, n: int = 3, **more: str) -> Iterator[Job]:
    """Start a job whose first line of output says that it hangs; end its ranks with SIGKILL."""
    run = [sys.executable, "-m", "collectives", "run", "-n", str(n), *map(str, words)]
    with subprocess.Popen(
        run, env=environment(**more), stdout=-1, stderr=-1, stdin=subprocess.DEVNULL, text=True
    ) as job:
        try:
            assert line_of(job), job.communicate(timeout=PATIENCE)
            yield job
        finally:
            for each in states(job):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each["process"], signal.SIGKILL)
            job.kill()


def states(job: Job) -> list[dict[str, Any]]:
    return json.loads(status.report(job.pid, None, True))["ranks"]


def said(job: Job, pattern: str) -> re.Match[str]:
    """Return the match of a pattern in what is said of the job, as soon as it is said."""
    limit = time.monotonic() + PATIENCE
    told: list[str] = []
    while time.monotonic() < limit:
        told = json.loads(status.report(job.pid, None, True))["said"]
        for each in told:
            if found := re.fullmatch(pattern, each):
                return found
        assert job.poll() is None, job.communicate()
        time.sleep(0.1)
    raise AssertionError((pattern, told, status.report(job.pid, None, False)))


WITHOUT = pytest.param(["--no-mpi"], id="without MPI")
WITH = pytest.param([], marks=pytest.mark.each_mpi, id="with MPI")
TIME = r"[\d.]+ (s|min.*)"
WAIT = rf"ranks 0-1 wait in allreduce 4 \({TIME} so far\); "


@pytest.mark.any_mpi
@pytest.mark.parametrize("options", [WITHOUT, WITH])
@pytest.mark.parametrize(
    ("how", "pattern"),
    [
        ("sleeps", rf"{WAIT}rank 2 has made 3 calls and computes \({TIME} so far\)"),
        ("stops", rf"{WAIT}rank 2 has made 3 calls and is stopped"),
        (
            "differs",
            rf"{WAIT}rank 2 waits in recv\(count=1000, dtype=float64, source=0\) \({TIME} so far\)",
        ),
    ],
)
def test_the_late_rank_is_named(how: str, pattern: str, options: list[str]) -> None:
    with started(*options, EXAMPLE, "--how", how) as job:
        said(job, pattern)


@pytest.mark.any_mpi
def test_a_rank_that_has_left_is_named() -> None:
    """The others notice it, unless they have only MPI's messages."""
    with started("--no-mpi", EXAMPLE, "--how", "leaves") as job:
        said(job, r"ranks 0-1 have failed in allreduce 4; rank 2 has ended \(process \d+\)")
        assert "rank 2 (process" in states(job)[0]["waits"]


@pytest.mark.each_mpi
def test_a_rank_that_has_left_is_named_without_shared_memory() -> None:
    with started(EXAMPLE, "--how", "leaves", COLLECTIVES_SHM="0") as job:
        said(job, rf"{WAIT}rank 2 (has made 3 calls and has left|has ended \(process \d+\))")


@pytest.mark.any_mpi
def test_the_command_prints_ranks_and_lines() -> None:
    with started("--no-mpi", EXAMPLE) as job:
        said(job, rf"{WAIT}.*")
        rows = {each["rank"]: each for each in states(job)}
        assert rows[0]["waits_for"] or rows[1]["waits_for"]
        done = command("status", str(rows[1]["process"]))  # of one rank: the whole job
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert re.fullmatch(r"communicator 0\.0: 3 ranks on \S+", lines[0])
        assert lines[1].split() == ["rank", "process", "calls", "since", "state"]
        call = r"allreduce\(count=1000, dtype=float64, op=SUM, algorithm=\S+\)"
        number = len(EXAMPLE.read_text().partition("try:")[0].splitlines()) + 2
        assert re.fullmatch(
            rf" *0 +\d+ +4 +{TIME} +in {call} for ranks? [12-]+ \(who_is_late\.py:{number}\)",
            lines[2],
        )
        assert re.fullmatch(rf" *2 +\d+ +3 +{TIME} +outside of the library, after {call}", lines[4])
        assert re.fullmatch(rf"{WAIT}rank 2 has made 3 calls and computes.*", lines[5])
        assert len(lines) == 6


HOLDS = """
import threading
import numpy as np
import collectives as cc
comm = cc.world()
request = comm.iallreduce(np.ones(3))
if comm.rank == 0:
    print("holds", flush=True)
    sum(range(10**15))  # it never releases the GIL
else:
    request.wait()
    comm.sub = comm.split(0)
"""


@pytest.mark.any_mpi
def test_python_that_holds_the_gil_is_seen() -> None:
    with started("--no-mpi", "-c", HOLDS, n=2) as job:
        limit = time.monotonic() + PATIENCE
        while "started" not in [each["state"] for rank in states(job) for each in rank["last"]]:
            assert time.monotonic() < limit
        (first, *_) = states(job)
        assert first["state"] == "computes"
        assert first["last"][0]["call"].startswith("allreduce(count=3, dtype=float64, op=SUM")


def rank(number: int, state: str, calls: int, seconds: float, **more: Any) -> dict[str, Any]:
    about = {"id": "host/1/0.0", "name": "0.0", "size": 8, "host": "host", "process": 9 + number}
    call = {"call": "allreduce(count=1)", "kind": "allreduce", "number": calls, "waits_for": []}
    state_of = {"rank": number, "state": state, "calls": calls, "seconds": seconds, "line": ""}
    return {**about, **call, **state_of, **more}


def test_sentences_count_calls_and_name_groups() -> None:
    ranks = [rank(i, "waits", 1204, 41.5) for i in range(7)]
    assert status.sentences([*ranks, rank(7, "computes", 1203, 41.2)]) == [
        "ranks 0-6 wait in allreduce 1 204 (41 s so far); "
        "rank 7 has made 1 203 calls and computes (41 s so far)"
    ]
    ranks[1:6] = [rank(i, "waits", 1204, 7384) for i in range(1, 6)]
    assert status.sentences([*ranks[1:6], rank(6, "waits", 1204, 41, stopped=True)]) == [
        "ranks 1-5 wait in allreduce 1 204 (2 h 3 min so far); rank 6 is stopped in allreduce 1 204"
    ]
    assert status.sentences([rank(i, "waits", 1204, 0.5) for i in range(8)]) == []


def test_a_failed_rank_whose_calls_are_not_in_the_record_any_more() -> None:
    gone = dict.fromkeys(("call", "kind", "number"))
    broken = {**rank(1, "failed", 1204, 0, waits="no memory"), **gone}
    _, _, _, row, said = status.lines([rank(0, "waits", 1204, 41.5), broken])
    assert row.split() == ["1", "10", "1", "204", "has", "failed:", "no", "memory"]
    assert said == "rank 0 waits in allreduce 1 204 (41 s so far); rank 1 has failed"


OTHER = """
import os, struct
file = os.memfd_create({mark!r})
os.ftruncate(file, {nbytes})
os.pwrite(file, struct.pack("Q", 99), 0)
print(flush=True)
input()
"""


def test_a_record_in_another_layout_is_not_read() -> None:
    code = OTHER.format(mark=flight.MARK, nbytes=_core.flight_bytes())
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        found = json.loads(status.report(None, None, True))["problems"]
        other.stdin.write(b"\n")
    said = f"process {other.pid} records its calls for another version of collectives"
    assert said in found


def test_processes_of_other_users_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.getpid() in flight.own_processes()
    file = os.memfd_create(flight.MARK)
    try:
        os.ftruncate(file, _core.flight_bytes())
        assert flight.record(os.getpid(), 0) is not None
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)
        assert os.getpid() not in flight.own_processes()
        assert flight.record(os.getpid(), 0) is None
    finally:
        os.close(file)


def test_no_rank_is_an_error() -> None:
    with pytest.raises(CommunicatorError, match=r"no rank of process \d+ has made a call"):
        status.report(os.getpid(), None, False)


@pytest.mark.any_mpi
def test_a_place_that_is_used_again_has_only_the_calls_of_its_communicator() -> None:
    program = """
import os
import numpy as np
import collectives as cc
from collectives.process import flight
comm = cc.world()
for calls in (5, 2):
    half = comm.split(0)
    for _ in range(calls):
        half.allreduce(np.ones(3))
    states, _ = flight.ranks([os.getpid()])
    print([len(each["last"]) for each in states if each["name"] == half._engine.label[0]])
    half.free()
"""
    done = command("run", "--no-mpi", "-n", "1", "-c", program)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["[5]", "[2]"]), done


@pytest.mark.any_mpi
def test_a_call_that_begins_while_its_record_is_read_began_just_now() -> None:
    program = """
import os, time
import numpy as np
import collectives as cc
from collectives.process import flight
cc.allreduce(np.ones(3))
earlier = time.monotonic_ns() - 5_000_000_000
flight.time.monotonic_ns = lambda: earlier
(state,) = [each for each in flight.ranks([os.getpid()])[0] if each["calls"]]
print(state["call"].partition("(")[0], state["seconds"])
"""
    done = command("run", "--no-mpi", "-n", "1", "-c", program)
    assert (done.returncode, done.stdout) == (0, "allreduce 0.0\n"), done


# ---- after an error ------------------------------------------------------------------------------

FAILS = """
import time
import numpy as np
import collectives as cc
comm = cc.world()
comm.barrier()
for _ in range(2):
    try:
        {call}
    except cc.errors.CollectivesError as error:
        print(comm.rank, str(error).count("(the last calls of each rank: collectives status "))
"""
DIFFERS = "comm.broadcast(np.ones(5)) if comm.rank == 2 else comm.allreduce(np.ones(3))"
LATE = "time.sleep(8 if comm.rank == 2 else 0); comm.allreduce(np.ones(3), timeout=2)"


def failed(folder: Path, call: str, *options: str, **more: str) -> tuple[list[str], list[Path]]:
    """Return the lines of a job of three ranks that fails twice, and the files that it writes."""
    code = FAILS.format(call=call)
    done = command("run", "-n", "3", *options, "-c", code, COLLECTIVES_ABORT="0", **more)
    assert done.returncode == 0, done
    return done.stdout.splitlines(), sorted(folder.glob("collectives-*.json"))


@pytest.mark.any_mpi
@pytest.mark.parametrize("options", [WITHOUT, WITH])
def test_the_first_error_writes_the_last_calls(tmp_path: Path, options: list[str]) -> None:
    said, (file,) = failed(tmp_path, DIFFERS, *options, COLLECTIVES_FLIGHT=str(tmp_path))
    assert len(said) == 6
    assert any(line.endswith("1") for line in said), said  # others may fail at the same time
    told = json.loads(file.read_text())
    assert re.fullmatch(r"collectives-\d+\.json", file.name)
    assert str(told["process"]) in file.name
    assert told["error"].startswith("MismatchError: the ranks do not agree on call 2")
    assert [each["rank"] for each in told["ranks"] if each["name"] == "0.0"] == [0, 1, 2]
    done = command("status", str(file))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"process {told['process']}, ")
    assert lines[-1] == "the first call that differs is 2"
    calls = [re.split(r" {2,}", line.strip()) for line in lines[-4:-1]]
    assert calls[0][:2] == ["1", "0-2"]
    assert [each[0] for each in calls] == ["1", "2", "2"]  # one rank may not be there yet
    kinds = [each[-1].partition("(")[0] for each in calls]
    assert (kinds[0], set(kinds[1:])) == ("barrier", {"allreduce", "broadcast"})


SLOW = """
from collectives import _core
from collectives.process import flight
_core.write_flights(lambda *args: time.sleep(0.5) or flight.write(*args))
"""


@pytest.mark.any_mpi
def test_ranks_that_fail_too_end_when_their_last_calls_are_written(tmp_path: Path) -> None:
    code = FAILS.replace("range(2)", "range(1)").format(call=DIFFERS)
    code = code.replace("comm.barrier()\n", f"comm.barrier()\n{SLOW}")
    options = {"COLLECTIVES_ABORT": "0", "COLLECTIVES_FLIGHT": str(tmp_path)}
    done = command("run", "-n", "3", "--no-mpi", "-c", code, **options)
    assert done.returncode == 0, done
    (file,) = tmp_path.glob("collectives-*.json")
    ranks = [each for each in json.loads(file.read_text())["ranks"] if each["name"] == "0.0"]
    assert [bool(each.get("last")) for each in ranks] == [True] * 3, ranks


STALLS = """background.submit("allreduce", np.ones(3), name=f"part {comm.rank}").wait()"""


@pytest.mark.any_mpi
@pytest.mark.parametrize(
    ("call", "more", "told"),
    [
        (
            DIFFERS,
            {"COLLECTIVES_VALIDATE": "1"},
            "MismatchError: the ranks do not agree: ranks 0-1",
        ),
        (
            f"from collectives import background; {STALLS}",
            {"COLLECTIVES_TIMEOUT": "2"},
            "StallError: ",
        ),
    ],
    ids=["validated", "background"],
)
def test_errors_outside_of_calls_are_in_the_file(
    tmp_path: Path, call: str, more: dict[str, str], told: str
) -> None:
    wish = {"COLLECTIVES_FLIGHT": str(tmp_path), "COLLECTIVES_ABORT": "0", **more}
    done = command("run", "-n", "3", "--no-mpi", "-c", FAILS.format(call=call), **wish)
    assert any(line.endswith("1") for line in done.stdout.splitlines()), done
    (file,) = tmp_path.glob("collectives-*.json")
    assert json.loads(file.read_text())["error"].startswith(told)
    assert "3 ranks on" in command("status", str(file)).stdout


INTERRUPTED = """
import os, signal, threading
import numpy as np
import collectives as cc
comm = cc.world()
comm.barrier()
if comm.rank == 0:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        comm.allreduce(np.ones(3))
    except KeyboardInterrupt as error:
        print(*getattr(error, "__notes__", ["the last calls of each rank: "]))
else:
    try:
        comm.recv(np.empty(1), 0)
    except cc.errors.PeerAbortedError as error:
        print(error)
"""


@pytest.mark.any_mpi
def test_an_interrupt_of_a_call_writes_the_last_calls(tmp_path: Path) -> None:
    wish = {"COLLECTIVES_FLIGHT": str(tmp_path), "COLLECTIVES_ABORT": "0"}
    done = command("run", "--no-mpi", "-n", "2", "-c", INTERRUPTED, **wish)
    assert len(re.findall("the last calls of each rank: ", done.stdout)) == 2, done
    (file,) = tmp_path.glob("collectives-*.json")
    told = json.loads(file.read_text())
    assert told["error"].startswith("it was interrupted in allreduce"), told
    assert {each["rank"] for each in told["ranks"]} == {0, 1}


@pytest.mark.any_mpi
def test_a_late_rank_is_in_the_file(tmp_path: Path) -> None:
    said, (file,) = failed(tmp_path, LATE, "--no-mpi", COLLECTIVES_FLIGHT=str(tmp_path))
    assert any(line.endswith("1") for line in said), said
    done = command("status", str(file))
    assert "rank 2 has made 1 call and computes (" in done.stdout, done
    rows = {each["rank"]: each for each in json.loads(file.read_text())["ranks"]}
    assert rows[0]["line"].startswith("<string>:9") or rows[1]["line"].startswith("<string>:9")
    (last,) = {each["state"] for row in rows.values() for each in row["last"][:1]}
    assert last == "ended"


@pytest.mark.any_mpi
def test_no_file_is_written_if_that_is_not_wanted(tmp_path: Path) -> None:
    wish = {"COLLECTIVES_FLIGHT": "0", "TMPDIR": str(tmp_path)}
    said, files = failed(tmp_path, DIFFERS, "--no-mpi", **wish)
    assert sorted(said) == ["0 0", "0 0", "1 0", "1 0", "2 0", "2 0"]
    assert files == []


def test_other_files_are_refused(tmp_path: Path) -> None:
    for text, told in (
        ("{}", "has no last calls of a job"),
        ("no JSON", "has no last calls of a job"),
        ('{"version": 99, "ranks": []}', "is of another version"),
    ):
        path = tmp_path / "file.json"
        path.write_text(text)
        with pytest.raises(ArgumentError, match=told):
            status.after_error(str(path), False)
    with pytest.raises(ArgumentError, match="No such file"):
        status.after_error(str(tmp_path / "none.json"), False)


@pytest.mark.parametrize("option", ["-H", "--watch"])
def test_a_file_is_not_asked_on_hosts_or_again(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "file.json", option, "3"]) == 2
    told = f"{option} is for jobs that run, and file.json is no process"
    assert told in capsys.readouterr().err


NAMED = """
import os, time
import numpy as np
import collectives as cc
from collectives import background
from collectives.process import flight
background.submit("allreduce", np.ones(3), name="gradient").wait()
calls = flight.record(os.getpid(), time.monotonic_ns())["calls"]
print(*{call["call"].partition("(")[0] for call in calls if call["name"] == "gradient"})
background.submit("allreduce", np.ones(3)).wait()
"""


@pytest.mark.any_mpi
def test_submissions_have_their_names() -> None:
    done = command("run", "--no-mpi", "-n", "2", "-c", NAMED)
    assert done.stdout.splitlines() == ["allreduce"] * 2, done


@pytest.mark.any_mpi
def test_a_file_that_cannot_be_written_hides_no_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    said, files = failed(tmp_path, DIFFERS, "--no-mpi", COLLECTIVES_FLIGHT=str(missing))
    assert [line.split()[1] for line in said] == ["0"] * 6, said
    assert not files
