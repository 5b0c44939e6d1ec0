"""Ranks that stop at the same step: signals to launchers and to ranks, and ``collectives stop``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import command, environment
from jobs import PATIENCE, environment_of, line_of, mpiexec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "stop_together.py"
Job = subprocess.Popen[str]
IS_OPEN_MPI = len(mpiexec(environment_of(sys.executable))) > 1

# Rank 0 prints a line with its process when it handles signals.
LOOP = """
import os, signal, sys, time
import collectives as cc
{setup}
step, limit = 0, time.monotonic() + 100
while not cc.stop_requested({every}) and time.monotonic() < limit:
    if step == 0 and cc.rank() == 0:
        cc.barrier()
        print(os.getpid(), "ready", flush=True)
    elif step == 0:
        cc.barrier()
    step += 1
    time.sleep(0.01 * (1 + cc.rank()))
print("stopped", step if cc.allreduce(step) == step * cc.size() else "apart", flush=True)
{end}
"""


@contextmanager
def started(*options: str, setup: str = "", every: str = "", end: str = "") -> Iterator[Job]:
    code = LOOP.format(setup=setup, every=every, end=end)
    words = [sys.executable, "-m", "collectives", "run", "-n", "2", *options, "-c", code]
    with subprocess.Popen(
        words, env=environment(), stdout=-1, stderr=-1, stdin=subprocess.DEVNULL, text=True
    ) as job:
        try:
            yield job
        finally:
            job.kill()


def first_rank(job: Job) -> int:
    """Return the process of rank 0 as soon as all ranks handle signals."""
    line = line_of(job)
    assert "ready" in line, (line, job.communicate(timeout=PATIENCE))
    return int(line.split()[0])


def check_end(job: Job) -> None:
    out, err = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, (out, err)
    lines = [line for line in out.splitlines() if not line.startswith("[mpiexec@")]
    assert len(lines) == 2, (out, err)
    assert len(set(lines)) == 1, out
    assert re.fullmatch(r"stopped \d+", lines[0]), out


WITHOUT = pytest.param("--no-mpi", id="without MPI")
WITH = pytest.param("", marks=pytest.mark.each_mpi, id="with MPI")


@pytest.mark.any_mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
@pytest.mark.parametrize("option", [WITHOUT, WITH])
def test_a_launcher_passes_signals_on(option: str, number: signal.Signals) -> None:
    if IS_OPEN_MPI and not option and number != signal.SIGUSR1:
        pytest.skip("Open MPI's mpiexec ends its ranks by this signal")
    with started(*filter(None, [option])) as job:
        first_rank(job)
        job.send_signal(number)
        check_end(job)


@pytest.mark.parametrize("option", [WITHOUT, WITH])
def test_a_signal_to_one_rank_stops_all(option: str) -> None:
    with started(*filter(None, [option]), every="every=3") as job:
        os.kill(first_rank(job), signal.SIGTERM)
        check_end(job)


@pytest.mark.any_mpi
def test_the_ranks_have_time_to_save() -> None:
    """More than ranks have that do not stop together."""
    with started("--no-mpi", end="time.sleep(4)") as job:
        first_rank(job)
        job.send_signal(signal.SIGTERM)
        check_end(job)


@pytest.mark.any_mpi
def test_a_second_signal_ends_the_ranks() -> None:
    with started("--no-mpi", end="print('saves', flush=True); time.sleep(300)") as job:
        first_rank(job)
        job.send_signal(signal.SIGTERM)
        while "saves" not in line_of(job):
            assert job.poll() is None
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=PATIENCE)
    assert job.returncode == 128 + signal.SIGTERM


@pytest.mark.any_mpi
def test_handlers_of_the_program_are_called() -> None:
    setup = "signal.signal(signal.SIGTERM, lambda number, frame: os.write(1, b'handled\\n'))"
    with started("--no-mpi", setup=setup) as job:
        os.kill(first_rank(job), signal.SIGTERM)
        out, err = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, (out, err)
    assert [out.count(word) for word in ("handled", "stopped")] == [1, 2], out


@pytest.mark.any_mpi
def test_a_forked_child_stops_nobody() -> None:
    """SIGTERM ends it, and so does not what launchers send to all processes of a rank."""
    end = """
read, write = os.pipe()
child = os.fork()
if child == 0:
    try:
        cc.stop_requested()
        os._exit(1)
    except cc.errors.CommunicatorError:
        pass
    found = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    os.write(write, str([int(each) for each in found]).encode())
    time.sleep(300)
found = os.read(read, 100).decode()
os.kill(child, signal.SIGUSR1)
os.kill(child, signal.SIGTERM)
if (found, os.waitpid(child, 0)[1]) != ("[0, 1, 1]", signal.SIGTERM):
    sys.exit(found)
"""
    with started("--no-mpi", end=end) as job:
        first_rank(job)
        job.send_signal(signal.SIGUSR1)
        check_end(job)


@pytest.mark.any_mpi
def test_a_second_ctrl_c_interrupts() -> None:
    setup = """
import threading
def press():
    for _ in range(2):
        time.sleep(1.2)
        os.kill(os.getpid(), signal.SIGINT)
cc.stop_requested()
threading.Thread(target=press).start()
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted")
sys.exit()
"""
    with started("--no-mpi", setup=setup) as job:
        out, err = job.communicate(timeout=PATIENCE)
    assert (job.returncode, out) == (0, "interrupted\n" * 2), err


@pytest.mark.any_mpi
def test_a_signal_that_is_ignored_stays_ignored() -> None:
    setup = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)"
    with started("--no-mpi", setup=setup) as job:
        process = first_rank(job)
        os.kill(process, signal.SIGUSR1)
        done = command("stop", str(job.pid))
        assert done.returncode == 2
        assert "has started no rank on this host that has called stop_requested" in done.stderr
        os.kill(process, signal.SIGINT)
        check_end(job)


@pytest.mark.any_mpi
def test_another_thread_is_refused() -> None:
    code = """
import threading
import collectives as cc
def ask():
    try:
        cc.stop_requested()
    except cc.errors.CommunicatorError as error:
        print(error)
thread = threading.Thread(target=ask)
thread.start()
thread.join()
for every in 0, "2":
    try:
        cc.stop_requested(every)
    except ValueError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "outside of the main thread" in done.stdout
    for shown in "0", "'2'":
        assert f"every is {shown}, and must be a positive number of calls" in done.stdout


def test_the_example_stops_and_continues(tmp_path: Path) -> None:
    words = [str(EXAMPLE), "--state", str(tmp_path / "state")]
    run = [sys.executable, "-m", "collectives", "run", "-n", "2", *words, "--pause", "0.05"]
    with subprocess.Popen(run, env=environment(), stdout=-1, stderr=-1, text=True) as job:
        line = line_of(job)
        assert "starts with step 0" in line, (line, job.communicate(timeout=PATIENCE))
        while (done := command("stop", str(job.pid))).returncode:
            assert job.poll() is None, job.communicate()
        assert re.fullmatch(
            r"process \d+ was asked to stop, and the other ranks with it\n", done.stdout
        )
        out, err = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, (out, err)
    (step,) = set(re.findall(r"rank \d stops at step (\d+)", out))
    done = command("run", "-n", "1", "--no-mpi", *words)
    assert done.returncode == 0, done.stderr
    assert f"starts with step {step}\nrank 0 is done at step 200\n" in done.stdout
