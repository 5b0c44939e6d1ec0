"""Compare forecasts with runs on four hosts: network namespaces of 1 Gbit/s and 100 Mbit/s.

Run it as root, on a machine as quiet as may be; it takes three minutes::

    python benchmarks/measure_forecast.py

Two programs are recorded. A training step computes, and reduces gradients of 2 MiB and a loss. A
solver, conjugate gradients on a grid, exchanges borders of 4 KiB with both neighbours and reduces
two numbers of 8 B in each step. First each of them computes, on one rank. In all later runs, it
sleeps as long as the steps of that recording took, because the ranks of four hosts share the cores
of one machine. These runs are recorded on one host and on two, and `collectives forecast` predicts
the step on four. Then it runs on four. The numbers are medians over the repeats. The last table is
that of ``docs/results/models.md``.

Ranks run with real-time priority. Without it, a rank whose sleep ends waits for the time slices of
the others, which poll, and a step of the solver takes several times as long on four hosts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

RATES = {"1 Gbit/s": 1000, "100 Mbit/s": 100}
STEPS = {"training": 20, "solver": 300}
# Bytes that pass at once after a pause, for each Mbit/s: much less than a message of the program.
BURSTS = {"training": 128, "solver": 4}
LEAST_BURST = 2 << 10  # a packet
ALPHA = "27us"  # of the library's defaults between hosts (collectives/choice/model.py)
SHORTEST = 50e-6  # shorter computing is not replaced: the program has as much of its own
SLACK = 29  # PR_SET_TIMERSLACK
LIFE = 60  # seconds after which a rank ends: none that is left behind may keep a core


class Pauses:
    """The computing of a program, or sleeps of the same lengths."""

    def __init__(self, path: str, rank: int) -> None:
        ctypes.CDLL(None).prctl(SLACK, 1)  # ns by which a sleep may be longer
        self.steps = json.loads(Path(path).read_text()) if path else None
        self.place = 7 * rank  # ranks are not late together

    def start(self) -> None:
        """Begin a step."""
        self.place += 1
        self.calls = iter(self.steps[self.place % len(self.steps)]) if self.steps else None

    def compute(self, work: Any) -> None:
        """Do some work before a call, or sleep."""
        if self.calls is None:
            work()
            return
        length = next(self.calls)
        if length > SHORTEST:
            time.sleep(length)


def training(comm: Any, pauses: Pauses, steps: int) -> None:
    """Train: two matrix products for the gradients, and the loss."""
    x, gradients = np.ones((192, 1024), np.float32), np.ones((1024, 512), np.float32)
    loss = np.ones(1)

    def work() -> None:
        for _ in range(4):
            x.T @ (x @ gradients)

    for _ in range(steps):
        pauses.start()
        pauses.compute(work)
        comm.allreduce(gradients, out=gradients, op="avg")
        pauses.compute(lambda: gradients * 0.1)
        comm.allreduce(loss, out=loss)


def solver(comm: Any, pauses: Pauses, steps: int) -> None:
    """Solve by conjugate gradients: a product with borders of the neighbours, and two sums."""
    line = comm.cart((0,), True)
    u, v = np.ones((512, 512)), np.zeros((512, 512))
    border, total = np.ones((2, 512)), np.ones(1)

    def product() -> None:
        v[1:-1, 1:-1] = 4 * u[1:-1, 1:-1] - u[:-2, 1:-1] - u[2:, 1:-1] - u[1:-1, :-2] - u[1:-1, 2:]

    for _ in range(steps):
        pauses.start()
        pauses.compute(lambda: u * 0.5)
        line.neighbor_alltoall(border)
        pauses.compute(product)
        comm.allreduce(total, out=total)
        pauses.compute(lambda: np.add(u, 1e-3 * v, out=u))
        comm.allreduce(total, out=total)


def rank(name: str, pauses: str) -> None:
    """Run a program as a rank."""
    import collectives as cc

    signal.alarm(LIFE)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    comm = cc.world()
    lengths = Pauses(pauses, comm.rank)
    {"training": training, "solver": solver}[name](comm, lengths, STEPS[name])


def record(hosts: Any, folder: Path, name: str, number: int, pauses: Path | str = "") -> Path:
    """Run a program on so many hosts; return its timeline."""
    import jobs

    path = folder / f"{name}.json"
    path.unlink(missing_ok=True)
    words = [str(Path(__file__).resolve()), "--rank", name, "--pauses", str(pauses)]
    command = hosts.command(sys.executable, 1, *words, first=number)
    done = jobs.launch(command, deadline=LIFE, env={"COLLECTIVES_TIMELINE": str(path)})
    if done.status:
        raise SystemExit(f"{name} on {number} hosts: {done}")
    return path


def steps_in(path: Path) -> Any:
    """Return the steps on a timeline."""
    from collectives.records import steps, tracefile

    document = tracefile.load(path)
    return steps.found([document], document["traceEvents"])


def predicted(of: Any, rate: str, recorded: str) -> float:
    """Return the seconds of a step on four hosts, as ``collectives forecast`` predicts it."""
    from collectives.records import forecast
    from collectives.simulation.topology_text import Machine

    text = "hosts=1"
    fitted = forecast.fitted(of)
    if rate != recorded:
        text += f",beta={rate.replace(' ', '')}"
    if not fitted:
        text += f",alpha={ALPHA}"
    machine = Machine(text)
    for name, value in fitted.items():
        if name not in machine.given:
            machine.values[name] = value
    return forecast.forecast(of, machine, 4, forecast.WEAK, frozenset()).seconds


def main() -> None:
    """Record, predict, run, and print the table."""
    import namespaces

    from collectives.records import forecast

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.environ.setdefault("COLLECTIVES_PROFILE", "0")
    os.environ |= {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # the hosts end, too
    forecasts: dict[tuple[str, str, str], list[float]] = {}
    times: dict[tuple[str, str], list[float]] = {}
    parts: dict[tuple[str, str, int], list[Any]] = {}
    with tempfile.TemporaryDirectory() as place, namespaces.several_hosts(Path(place), 4) as hosts:
        folder = Path(place)
        pauses = {}
        for name in STEPS:
            computed = steps_in(record(hosts, folder, name, 1))
            pauses[name] = folder / f"{name}.pauses"
            pauses[name].write_text(json.dumps(computed.before[:, 0].tolist()))
            print(f"{name} computes {1e3 * computed.before.sum(axis=(1, 2)).mean():.2f} ms a step")
        for _ in range(arguments.repeats):
            for name in STEPS:
                alone = steps_in(record(hosts, folder, name, 1, pauses[name]))
                for rate, mbit in RATES.items():
                    hosts.rate(mbit, max(LEAST_BURST, mbit * BURSTS[name]))
                    two = steps_in(record(hosts, folder, name, 2, pauses[name]))
                    for other in RATES:
                        key = name, f"2 hosts, {rate}", other
                        forecasts.setdefault(key, []).append(predicted(two, other, rate))
                    key = name, "1 host", rate
                    forecasts.setdefault(key, []).append(predicted(alone, rate, ""))
                    four = steps_in(record(hosts, folder, name, 4, pauses[name]))
                    times.setdefault((name, rate), []).append(forecast.recorded(four).seconds)
                    for each in (two, four):
                        row = forecast.recorded(each)
                        parts.setdefault((name, rate, row.ranks), []).append(row)
    for (name, rate, ranks), rows in parts.items():
        sleeps, waits, calls = (
            1e3 * statistics.median(getattr(row, part) for row in rows)
            for part in ("computing", "straggler", "communication")
        )
        print(
            f"{name} on {ranks} hosts of {rate}: it sleeps {sleeps:.2f} ms, waits {waits:.2f} ms "
            f"for the last rank, and communicates {calls:.2f} ms"
        )
    report(forecasts, times, arguments.repeats)


def report(
    forecasts: dict[tuple[str, str, str], list[float]],
    times: dict[tuple[str, str], list[float]],
    repeats: int,
) -> None:
    """Print the table of the page."""
    from mpi4py import MPI

    from collectives.choice import profile

    print(
        f"{MPI.Get_library_version().split(chr(10))[0].strip()}, Python {platform.python_version()}"
    )
    print("{}, {} cores, load {:.1f}, ".format(*profile.machine(), os.getloadavg()[0]), end="")
    print(f"{repeats} repeats, {time.strftime('%Y-%m-%d', time.gmtime())}\n")
    print("| program | recorded on | four hosts of | predicted | measured | error |")
    print("|---|---|---|---|---|---|")
    for (name, recorded, rate), found in forecasts.items():
        one, other = statistics.median(found), statistics.median(times[name, rate])
        print(
            f"| {name} | {recorded} | {rate} | {1e3 * one:.2f} ms | {1e3 * other:.2f} ms "
            f"| {one / other - 1:+.0%} |"
        )


if __name__ == "__main__":
    if "--rank" in sys.argv:
        rank(sys.argv[2], sys.argv[4])
    else:
        main()
