"""`spawn`: results, errors and output of its ranks, and that none of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import collectives as cc
from collectives import errors
from collectives.launch import local

DEADLINE = 60.0  # seconds, on a machine that does much else


def gone(pids: list[int]) -> bool:
    """Return whether some processes end soon."""
    limit = time.monotonic() + DEADLINE / 2
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def written(folder: Path, n: int) -> list[int]:
    """Return the processes whose files are in a folder, as soon as there are n."""
    limit = time.monotonic() + DEADLINE / 2
    while len(list(folder.iterdir())) < n and time.monotonic() < limit:
        time.sleep(0.02)
    pids = [int(path.name) for path in folder.iterdir()]
    assert len(pids) == n
    return pids


def caller(program: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_results_come_in_the_order_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7))

    def f(x: int, y: str) -> tuple[object, ...]:
        place = int(os.environ["COLLECTIVES_RANK"]), os.environ["COLLECTIVES_SIZE"]
        time.sleep(0.1 if place[0] == 0 else 0.0)
        return place, x, y, sys.stdin.read(), os.environ["OMP_NUM_THREADS"]

    assert cc.spawn(f, 3, 5, "y") == [((r, "3"), 5, "y", "", "2") for r in range(3)]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert cc.spawn(f, 1, 5, "y") == [((0, "1"), 5, "y", "", "5")]


def test_ranks_communicate() -> None:
    def f() -> list[int]:
        import numpy as np

        import collectives as cc

        total = cc.allreduce(np.full(2, cc.rank() + 1))
        return [cc.rank(), cc.size(), *total.tolist()]

    assert cc.spawn(f, 2) == [[0, 2, 3, 3], [1, 2, 3, 3]]


def test_keywords_are_passed_to_the_function() -> None:
    def f(x: int, *, bug: bool = False) -> tuple[int, bool]:
        return x, bug

    assert cc.spawn(f, 2, 3, bug=True, timeout=DEADLINE) == [(3, True)] * 2
    with pytest.raises(errors.ArgumentError, match="argument bug cannot be pickled: TypeError"):
        cc.spawn(f, 2, 3, bug=threading.Lock())


def test_a_function_of_a_module_is_imported() -> None:
    assert len(set(cc.spawn(os.getpid, 2))) == 2


def test_a_thread_may_call_it() -> None:
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(cc.spawn(lambda: 7, 2))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert results == [[7, 7], [7, 7]]


SCRIPT = """
import sys
import collectives as cc
class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x
class Mine(Exception):
    pass
def f(fails):
    if fails and cc.rank() == 1:
        raise Mine("bad")
    return [each.x for each in cc.allgather_object(Point(cc.rank()))], Point(cc.rank())
print(cc.spawn(f, 2, False) == [([0, 1], Point(0)), ([0, 1], Point(1))])
try: cc.spawn(f, 2, True)
except Mine as error: print(repr(error))

print(sys.argv[1:])
"""


@pytest.mark.parametrize("way", ["script", "prompt"])
def test_what_a_script_or_the_prompt_defines_is_known_on_the_ranks(
    tmp_path: Path, way: str
) -> None:
    """The script has no `if __name__ == "__main__"`, and is not run again."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    source = SCRIPT if way == "prompt" else ""
    words = [str(path)] if way == "script" else ["-"]
    done = subprocess.run(
        [sys.executable, *words, "a"],
        input=source,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout == "True\nMine('bad')\n['a']\n", done.stderr


def test_an_exception_has_its_type_its_rank_and_its_traceback() -> None:
    class Mine(KeyError):
        pass

    def f() -> None:
        if os.environ["COLLECTIVES_RANK"] == "2":
            raise Mine("bad", 3)
        time.sleep(DEADLINE)

    with pytest.raises(Mine) as caught:
        cc.spawn(f, 3)
    assert caught.value.args == ("bad", 3)
    cause = caught.value.__cause__
    assert type(cause) is errors.RankError
    lines = str(cause).splitlines()
    assert lines[:3] == ["on rank 2 of 3:", '"""', "Traceback (most recent call last):"]
    assert 'raise Mine("bad", 3)' in lines[4]
    assert lines[-1] == '"""'
    assert "rank.py" not in str(cause)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for all ranks to fail, however busy this machine is."""
    monkeypatch.setattr(local, "FAREWELL", DEADLINE)


@pytest.mark.usefixtures("patience")
def test_the_same_error_on_all_ranks_is_told_once() -> None:
    def f() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad") as caught:
        cc.spawn(f, 3)
    assert str(caught.value.__cause__).startswith("on ranks 0-2 of 3:\n")
    assert str(caught.value.__cause__).count("ValueError: bad") == 1


@pytest.mark.usefixtures("patience")
def test_the_cause_is_raised_and_not_its_consequences() -> None:
    def f() -> None:
        import collectives as cc

        cc.barrier()
        if cc.rank() == 1:
            time.sleep(0.1)  # others wait for it
            raise ValueError("bad")
        cc.barrier()

    with pytest.raises(ValueError, match="bad") as caught:
        cc.spawn(f, 3)
    told = str(caught.value.__cause__)
    assert told.startswith("on rank 1 of 3:\n")
    for other in (0, 2):
        assert f"\nrank {other} failed, too: collectives.errors.PeerAbortedError: " in told


@pytest.mark.usefixtures("patience")
def test_consequences_that_come_first_are_not_raised_either() -> None:
    def f() -> None:
        if os.environ["COLLECTIVES_RANK"] == "1":
            time.sleep(0.2)
            raise ValueError("bad")
        raise errors.PeerLostError("rank 1")

    with pytest.raises(ValueError, match="bad") as caught:
        cc.spawn(f, 2)
    assert str(caught.value.__cause__).endswith(
        "\nrank 0 failed, too: collectives.errors.PeerLostError: rank 1"
    )


def test_what_cannot_be_pickled_starts_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.Children, "start", lambda *_: pytest.fail("ranks were started"))
    lock = threading.Lock()

    def f() -> None:
        lock.acquire()

    with pytest.raises(errors.ArgumentError, match=r"function .*\.f cannot be pickled: TypeError"):
        cc.spawn(f, 2)
    with pytest.raises(
        errors.ArgumentError, match=r"argument 1 cannot be pickled: TypeError: .*lock"
    ):
        cc.spawn(print, 2, 1, lock)


def test_a_result_that_cannot_be_pickled() -> None:
    with pytest.raises(
        errors.RankError, match=r"^the result of rank [01] of 2 cannot be pickled: TypeError: "
    ):
        cc.spawn(lambda: threading.Lock(), 2)


def test_an_exception_that_cannot_be_pickled() -> None:
    def f() -> None:
        class Mine(Exception):
            def __init__(self, a: int, b: int) -> None:
                super().__init__(a)

        raise Mine(1, 2)

    with pytest.raises(errors.RankError) as caught:
        cc.spawn(f, 1)
    first, *_, last = str(caught.value).splitlines()
    assert first.startswith("rank 0 of 1 raised an exception that cannot be pickled (TypeError: ")
    assert "required positional argument: 'b'" in first
    assert last.endswith("Mine: 1")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "was ended by SIGKILL (kill -9, or the kernel when memory runs out) before it returned",
        ),
        (lambda: os._exit(3), "ended with exit status 3 before it returned"),
        (lambda: sys.exit(3), "called sys.exit(3) before it returned"),
        (lambda: sys.exit(), "called sys.exit() before it returned"),
        (lambda: signal.raise_signal(signal.SIGINT), "was interrupted before it returned"),
    ],
    ids=["SIGKILL", "_exit", "exit with a status", "exit", "SIGINT"],
)
def test_a_rank_that_does_not_return(end: object, words: str) -> None:
    def f() -> None:
        if os.environ["COLLECTIVES_RANK"] == "1":
            end()  # type: ignore[operator]

    with pytest.raises(errors.PeerLostError) as caught:
        cc.spawn(f, 2)
    assert str(caught.value) == f"rank 1 of 2 {words}"
    assert caught.value.__cause__ is None


def test_a_rank_that_fails_after_it_returned() -> None:
    def f() -> None:
        import atexit

        atexit.register(os._exit, 4)

    with pytest.raises(
        errors.PeerLostError, match=r"^rank 0 of 1 ended with exit status 4 after it"
    ):
        cc.spawn(f, 1)


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", None])
def test_the_number_of_ranks_is_checked(n: object) -> None:
    with pytest.raises(errors.ArgumentError, match="and must be a positive number of ranks"):
        cc.spawn(print, n)  # type: ignore[arg-type]


def test_other_arguments_are_checked() -> None:
    with pytest.raises(errors.ArgumentError, match="function is 3, and must be callable"):
        cc.spawn(3, 2)  # type: ignore[arg-type]
    for timeout in (0, -1.0, float("nan")):
        with pytest.raises(errors.ArgumentError, match="a positive number of seconds"):
            cc.spawn(print, 2, timeout=timeout)


def test_output_comes_by_lines_with_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def f() -> None:
        me = os.environ["COLLECTIVES_RANK"]
        print(f"one {me}\n\ntwo ä", end="")
        print("problem", me, file=sys.stderr)
        os.system("echo three; printf four")

    cc.spawn(f, 2)
    out, err = capsys.readouterr()
    for me in range(2):
        lines = [line for line in out.splitlines() if line.startswith(f"[{me}] ")]
        # The line that is not complete comes when the rank ends.
        assert lines == [f"[{me}] {text}" for text in (f"one {me}", "", "two äthree", "four")]
    assert sorted(err.splitlines()) == ["[0] problem 0", "[1] problem 1"]


def test_output_comes_while_ranks_run() -> None:
    seen: list[str] = []

    class Stream:
        def write(self, text: str) -> None:
            seen.append(text)
            if text == "[0] go on\n":
                os.close(go)

        def flush(self) -> None:
            pass

    def f(folder: str) -> str:
        print("go on")
        with open(folder) as file:
            return file.read()

    heard, go = os.pipe()
    stdout, sys.stdout = sys.stdout, Stream()  # type: ignore[assignment]
    try:
        assert cc.spawn(f, 1, f"/proc/{os.getpid()}/fd/{heard}", timeout=DEADLINE) == [""]
    finally:
        sys.stdout = stdout
        os.close(heard)
    assert seen == ["[0] go on\n"]


def test_a_deadline_ends_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "GRACE", 0.3)

    def f() -> None:
        if os.environ["COLLECTIVES_RANK"] == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / str(os.getpid())).touch()
        time.sleep(DEADLINE)

    with pytest.raises(errors.StallError) as caught:
        cc.spawn(f, 3, timeout=1.5)
    assert str(caught.value) == "ranks 0-2 of 3 have not returned, and the timeout of 1.5 s is over"
    assert gone([int(path.name) for path in tmp_path.iterdir()])


def test_a_rank_starts_no_ranks() -> None:
    def f() -> None:
        import collectives as cc

        cc.spawn(print, 2)

    with pytest.raises(
        errors.CommunicatorError, match=r"spawn was called on rank 0 of 1: .* 2 more"
    ):
        cc.spawn(f, 1)


@pytest.mark.parametrize(
    "place",
    [
        {"PMI_RANK": "1", "PMI_SIZE": "4"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
        {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4"},
    ],
    ids=["MPICH", "Open MPI", "torchrun"],
)
def test_a_rank_of_a_launcher_starts_none(
    monkeypatch: pytest.MonkeyPatch, place: dict[str, str]
) -> None:
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.CommunicatorError, match="spawn was called on rank 1 of 4: "):
        cc.spawn(print, 2)


def test_the_only_rank_of_a_launcher_starts_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    assert cc.spawn(lambda: os.environ.get("PMI_SIZE"), 2) == [None, None]


SLEEPS = """
    import os, subprocess, sys, time
    import collectives as cc
    def f():
        child = subprocess.Popen(["sleep", "100"])
        for pid in (os.getpid(), child.pid) if sys.argv[2] == "too" else (os.getpid(),):
            open(f"{sys.argv[1]}/{pid}", "w").close()
        time.sleep(100)
    try:
        cc.spawn(f, 2)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_ends_the_ranks_and_what_they_have_started(tmp_path: Path) -> None:
    with caller(SLEEPS, tmp_path, "too") as process:
        pids = written(tmp_path, 4)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
    assert gone(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_the_caller(tmp_path: Path, number: signal.Signals) -> None:
    with caller(SLEEPS, tmp_path, "") as process:
        pids = written(tmp_path, 2)
        process.send_signal(number)
        assert process.wait(DEADLINE) == -number
        assert gone(pids)


def test_what_a_failed_rank_has_started_ends(tmp_path: Path) -> None:
    def f() -> None:
        child = subprocess.Popen(["sleep", "100"])
        (tmp_path / str(child.pid)).touch()
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        cc.spawn(f, 1)
    assert gone(written(tmp_path, 1))


def test_a_process_that_the_function_forks_answers_nothing() -> None:
    def f() -> str:
        child = os.fork()
        if child == 0:
            return "child"
        os.waitpid(child, 0)
        return "parent"

    assert cc.spawn(f, 1) == ["parent"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_the_caller_may_lack_standard_files(closed: str, tmp_path: Path) -> None:
    path = tmp_path / "result"
    program = f"import collectives as cc; open({str(path)!r}, 'w').write(str(cc.spawn(int, 2)))"
    command = f'exec "$0" -c "$1" {closed}'
    subprocess.run(["sh", "-c", command, sys.executable, program], timeout=DEADLINE, check=True)
    assert path.read_text() == "[0, 0]"


def test_ends_are_told_where_the_caller_ignores_them() -> None:
    def f() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(errors.PeerLostError, match="was ended by SIGKILL"):
            cc.spawn(f, 1)
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)
