"""Check a sheet of the lab: ``python examples/lab/check.py ring``, or with the path of a file.

The sheets are `pi`, `ping_pong`, `ring`, `split` and `task_queue`. If a sheet is not right, the
program names the line to look at, and exits with status 1.
"""

import itertools
import linecache
import math
import os
import re
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

import collectives as cc
from collectives import check
from collectives.errors import (
    PeerAbortedError,
    PeerLostError,
    ProofError,
    StallError,
    StallWarning,
)

DEADLINE = 10  # seconds until a rank gives up to wait for another
STARTED = 120  # seconds until all ranks have started, also on a busy machine
RETURN = r"^\s*return\b", r":\s*return\b", r"^def "  # the last return, or the function without one


class Wrong(Exception):
    """A sheet is not right: the line to look at, and why."""


class Sheet:
    """The text of a sheet."""

    def __init__(self, file):
        self.name, self.text = file.name, file.read_text(encoding="utf-8")

    def line(self, *patterns):
        """Return the number of the last line that has one of some patterns, tried in order."""
        lines = list(enumerate(self.text.splitlines(), 1))
        for pattern in patterns:
            for number, text in reversed(lines):
                if re.search(pattern, text):
                    return number
        return 1

    def names(self):
        """Run the sheet; return its functions by name."""
        linecache.cache[self.name] = len(self.text), None, self.text.splitlines(True), self.name
        found = {"__name__": "sheet"}
        exec(compile(self.text, self.name, "exec"), found)
        return found

    def line_of(self, error):
        """Return the last line of the sheet that an exception came through, or None."""
        if isinstance(error, SyntaxError):
            return error.lineno
        frames = traceback.extract_tb(error.__traceback__)
        return next((each.lineno for each in reversed(frames) if each.filename == self.name), None)


def on_ranks(sheet, n, trial, *args):
    """Call ``trial(names of the sheet, comm, *args)`` on `n` ranks; return what it returns there.

    Raise the error of a rank that did not only wait for another.
    """
    os.environ["COLLECTIVES_TIMEOUT"] = str(DEADLINE)
    found = cc.spawn(guarded, n, sheet, trial, args, timeout=2 * STARTED)
    failed = [each for each in found if isinstance(each, Failed)]
    for each in sorted(failed, key=lambda each: (each.waited, each.line is None, each.rank)):
        raise Wrong(each.line or 1, each.words)
    return found


class Failed:
    """The error of a rank."""

    def __init__(self, rank, error, line):
        self.rank, self.line = rank, line
        self.waited = isinstance(error, (StallError, PeerAbortedError, PeerLostError))
        self.words = f"rank {rank}: {type(error).__name__}: {error}"


def guarded(sheet, trial, args):
    """Return what a trial returns on this rank, or its error."""
    comm = cc.world()
    comm.barrier(timeout=STARTED)
    warnings.simplefilter("ignore", StallWarning)  # the error says the same
    try:
        return trial(sheet.names(), comm, *args)
    except Exception as error:
        return Failed(comm.rank, error, sheet.line_of(error))


def number_of(value):
    """Return a number, or the one of an array of one number; None if it is something else."""
    array = np.asarray(value)
    return array.item() if array.size == 1 and array.dtype.kind in "iuf" else None


def check_pi(sheet):
    points, few = 400_000, range(4, 44, 4)
    (one,) = on_ranks(sheet, 1, lambda names, comm: number_of(names["pi"](comm, points // 4)))
    all_found = on_ranks(
        sheet,
        4,
        lambda names, comm: [number_of(names["pi"](comm, each)) for each in (points, *few)],
    )
    found = [of_rank[0] for of_rank in all_found]
    if None in found:
        words = f"the ranks return {found}, and shall all return a number"
        raise Wrong(sheet.line(*RETURN), words)
    if len(set(found)) > 1:
        raise Wrong(sheet.line(*RETURN), f"the ranks return {found}: add up their counts first")
    counts = [each * pi / 4 for each, pi in zip(few, all_found[0][1:], strict=True)]
    if abs(found[0] - 4 * math.pi) < 0.1:
        if all(abs(each / 4 - round(each / 4)) < 1e-6 for each in counts):  # of a quarter of them
            words = "the sum of all ranks is divided by the points of one of them"
            raise Wrong(sheet.line(*RETURN), words)
        raise Wrong(sheet.line(r"\.random\("), "every rank takes all points, not its share of them")
    if found[0] == one:
        raise Wrong(sheet.line("default_rng"), "all ranks have the same points: use comm.rank here")
    if abs(found[0] - math.pi) > 5 * 1.65 / points**0.5:
        raise Wrong(sheet.line(*RETURN), f"{found[0]} is not pi")
    if any(abs(each - round(each)) > 1e-6 for each in counts):  # a fraction of a hit
        raise Wrong(sheet.line(r"\.random\("), "the ranks take more points together than `points`")
    return f"pi is about {found[0]:.4f} on 4 ranks"


class Heard:
    """A communicator that writes down the first number of each array that it sends."""

    def __init__(self, comm):
        self._comm, self.sent, self.sends_first = comm, [], None

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def send(self, x, *args, **keywords):
        self.sent.append(number_of(x))
        if self.sends_first is None:
            self.sends_first = True
        return self._comm.send(x, *args, **keywords)

    def recv(self, *args, **keywords):
        if self.sends_first is None:
            self.sends_first = False
        return self._comm.recv(*args, **keywords)


def play(names, comm, times):
    ball, ticks, heard = np.zeros(1), itertools.count(), Heard(comm)
    seconds = names["ping_pong"](heard, ball, times, lambda: float(next(ticks)))
    return float(ball[0]), number_of(seconds), next(ticks), heard.sent, heard.sends_first


def check_ping_pong(sheet):
    times = 50
    (ball, seconds, ticks, *_), (*_, sent, sends_first) = on_ranks(sheet, 2, play, times)
    if sends_first:
        words = "rank 1 sends before it has received the ball"
        raise Wrong(sheet.line(r"send\(ball, 0\)", r"\.send\("), words)
    if sent and sent[0] not in (1, None):
        words = f"rank 1 shall add 1 before it sends: it sends {sent[0]:g} first"
        raise Wrong(sheet.line(r"send\(ball, 0\)", r"\.send\("), words)
    if ball != times:
        line = sheet.line(r"ball \+= 1", r"ball\[", r"send\(ball, 0\)")
        raise Wrong(line, f"rank 1 shall add 1 before it sends: {ball:g} after {times} round trips")
    if seconds is None:
        raise Wrong(sheet.line(*RETURN), "rank 0 shall return the seconds of a message")
    if ticks != 2:
        words = f"rank 0 calls clock() {ticks} times: call it once before and once after the game"
        raise Wrong(sheet.line(r"= *clock\(", r"clock\("), words)
    if not math.isclose(seconds, 0.5 / times):
        why = (
            "of a round trip, which has two messages"
            if seconds == 1 / times
            else f"not that of one message: the game has {2 * times}"
        )
        raise Wrong(sheet.line(*RETURN), f"the time is {why}")
    (real, _) = on_ranks(
        sheet,
        2,
        lambda names, comm: names["ping_pong"](comm, np.zeros(1), 2000, time.perf_counter),
    )
    return f"a message of 8 bytes takes {1e6 * real:.1f} us"


def check_ring(sheet):
    generate = sheet.names().get("my_ring")
    if generate is None:
        raise Wrong(sheet.line("^def "), "the function shall be called my_ring")
    most = 8
    for p in range(2, most + 1):
        try:
            proof = check.check("allreduce", "my_ring", p=p)
        except ProofError as error:
            raise Wrong(*told(sheet, generate, p, str(error))) from error
        if proof.depth != 2 * (p - 1):
            line = sheet.line("range", "yield")
            raise Wrong(line, f"on {p} ranks {proof.depth} rounds, and {2 * (p - 1)} are enough")
    return f"proven on 2 to {most} ranks, in 2 (p - 1) rounds"


def told(sheet, generate, p, words):
    """Return the line to look at for an error of the proof, and words with a hint."""
    if "ends with" in words:
        if re.search(r"^\s*Exchange\(", sheet.text, re.MULTILINE):
            return sheet.line(r"^\s*Exchange\("), f"{words}: without yield, a round is lost"
        if "fold=True" not in sheet.text:
            first = sheet.text.partition("yield")[0].count("\n") + 1
            return first, f"{words}: nothing is added without fold=True"
    return round_of(sheet, generate, p, words), words


def round_of(sheet, generate, p, words):
    """Return the line that yields the round of which an error tells."""
    found = re.search(r"rank (\d+)(?:,| in) round (\d+)", words)
    line = sheet.line(r"yield\b.*\(", r"Exchange\(")
    if "yield, not return" in words:
        return sheet.line(*RETURN)
    if not found:
        return line
    generator = generate(int(found[1]), p)
    for _ in itertools.islice(generator, int(found[2])):
        line = generator.gi_frame.f_lineno
    return line


class Watched:
    """A communicator that writes down who calls `split` and `allreduce`, and where."""

    def __init__(self, comm, members, log):
        self._comm, self._members, self._log = comm, members, log

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def split(self, color, *args, **keywords):
        part = self._comm.split(color, *args, **keywords)
        members = part.allgather_object(self._members[self._comm.rank])
        self._log.append(("split", sys._getframe(1).f_lineno, members))
        return Watched(part, members, self._log)

    def allreduce(self, *args, **keywords):
        self._log.append(("allreduce", sys._getframe(1).f_lineno, self._members))
        return self._comm.allreduce(*args, **keywords)


def watch(names, comm, columns):
    log = []
    watched = Watched(comm, list(range(comm.size)), log)
    found = names["sums"](watched, columns, 10**comm.rank)
    several = isinstance(found, (tuple, list)) or np.ndim(found) > 0
    return [number_of(each) for each in found] if several and len(found) == 2 else None, log


def check_split(sheet):
    for columns in (3, 2):
        check_columns(sheet, 6, columns)
    return "the sums of 2 rows and 3 columns"


def check_columns(sheet, size, columns):
    found = on_ranks(sheet, size, watch, columns)
    for rank, (sums, log) in enumerate(found):
        row = [each for each in range(size) if each // columns == rank // columns]
        column = [each for each in range(size) if each % columns == rank % columns]
        for call, line, members in log:
            if call == "split" and members not in (row, column):
                words = f"with columns={columns}, rank {rank} comes together with ranks {members}"
                raise Wrong(line, f"{words}, which are not its row {row} or its column {column}")
            if call == "allreduce" and len(members) == size:
                raise Wrong(line, "this adds up the numbers of all ranks: use a part of them")
        if sums is None or None in sums:
            raise Wrong(sheet.line(*RETURN), "return two sums: of the row, and of the column")
        wanted = [sum(10**each for each in ranks) for ranks in (row, column)]
        if sums != wanted:
            why = "the sum of the row comes first" if sums == wanted[::-1] else "wrong sums"
            words = f"{why}: {sums} on rank {rank}, wanted {wanted}; rank r has the number 10**r"
            raise Wrong(sheet.line(*RETURN), words)


def arrays_of(results):
    """Return the pairs of results that are arrays."""
    return itertools.combinations([each for each in results if isinstance(each, np.ndarray)], 2)


def queue(names, comm, tasks):
    if comm.rank == 0:
        results = names["master"](comm, tasks)
        if results is None:
            return None
        shared = any(np.shares_memory(*each) for each in arrays_of(results))
        return "shared" if shared else [number_of(each) for each in results]
    done = []

    def work(task):
        """Return the square. Worker 1 gets stuck in its first task until worker 2 has done four."""
        if comm.rank == 1 and not done:
            comm.recv(np.empty(1), 2, tag=1)
        done.append(task)
        if comm.rank == 2 and len(done) == 4:
            comm.send(np.zeros(1), 1, tag=1)
        return task * task

    names["worker"](comm, work)
    return done


def check_task_queue(sheet):
    tasks = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0]
    try:
        results, *done = on_ranks(sheet, 3, queue, tasks)
    except Wrong as error:
        line, words = error.args
        if "StallError" in words:
            words += ". Worker 1 takes long for its first task: until worker 2 has done four"
        raise Wrong(line, words) from None
    wanted = [task * task for task in tasks]
    if results is None:
        raise Wrong(sheet.line("^def master"), "master returns None: return the results")
    if results == "shared":
        words = "several results are one array, which the next answer overwrites: keep its number"
        raise Wrong(sheet.line(r"results\.append", r"results\[", "return results"), words)
    if results != wanted:
        line = sheet.line(r"results\.append", r"results\[", "return results")
        right = None not in results and sorted(results) == sorted(wanted)
        why = "in the order of their arrival, not of the tasks"
        why = why if right else f"{results}, wanted {wanted}"
        raise Wrong(line, f"the results are {why}")
    return f"the workers have done {' and '.join(str(len(each)) for each in done)} tasks"


SHEETS = {
    "pi": check_pi,
    "ping_pong": check_ping_pong,
    "ring": check_ring,
    "split": check_split,
    "task_queue": check_task_queue,
}


def main():
    file = Path(sys.argv[1] if len(sys.argv) == 2 else "")
    if file.stem not in SHEETS:
        sys.exit(f"usage: python check.py SHEET, one of {', '.join(SHEETS)}, or its file")
    if not file.suffix:
        file = Path(__file__).with_name(f"{file}.py")
    sheet = Sheet(file)
    try:
        words = SHEETS[file.stem](sheet)
    except Wrong as error:
        line, words = error.args
        sys.exit(f"{file.name}, line {line}: {words}")
    except Exception as error:
        if sheet.line_of(error) is None:
            raise
        sys.exit(f"{file.name}, line {sheet.line_of(error)}: {type(error).__name__}: {error}")
    print(f"{file.name} is right: {words}")


if __name__ == "__main__":
    main()
