"""The sheets of the lab: skeletons fail, solutions pass, and usual mistakes are found."""

import re
import runpy
import sys

import pytest
from jobs import run
from programs import EXAMPLES

import collectives as cc
from collectives.errors import PeerAbortedError, PeerLostError, StallError

pytestmark = [pytest.mark.any_mpi, pytest.mark.each_mpi("mpich")]

LAB = EXAMPLES / "lab"
SHEETS = sorted(each.stem for each in (LAB / "solutions").iterdir() if each.suffix == ".py")

# For each mistake, the edits of the solution, a part of the line that is named, and of the words.
MISTAKES = {
    "pi": [
        ({"(comm.rank)": "(1)"}, "default_rng", "all ranks have the same points"),
        ({"comm.allreduce(np.array([hits]))": "[hits]"}, "return", "add up their counts"),
        (
            {"points // comm.size": "points", "(share * comm.size)": "points"},
            "rng.random",
            "every rank takes all points",
        ),
        ({"points // comm.size": "points"}, "rng.random", "more points together"),
        ({"return 4.0": "value = 4.0"}, "def pi", "shall all return a number"),
        ({"(share * comm.size)": "share"}, "return", "divided by the points of one of them"),
    ],
    "ping_pong": [
        (
            {"comm.send(ball, 1)\n            comm.recv(ball, 1)": "comm.recv(ball, 1)"},
            "comm.recv(ball, ",
            "deadlock",
        ),
        ({"(2 * times)": "times"}, "return", "a round trip, which has two messages"),
        ({"            ball += 1\n": ""}, "comm.send(ball, 0)", "rank 1 shall add 1"),
        (
            {"            ball += 1\n": "", "    return": "        ball += 1\n    return"},
            "comm.send(ball, 0)",
            "rank 1 shall add 1",
        ),
        ({"range(times):": "range(times):\n        start = clock()"}, "= clock()", "52 times"),
        (
            {
                "            comm.recv(ball, 0)\n": "",
                "(ball, 0)": "(ball, 0)\n            comm.recv(ball, 0)",
            },
            "comm.send(ball, 0)",
            "rank 1 sends before it has received",
        ),
    ],
    "ring": [
        ({"(r - t) % p))": "(r - t) % p), fold=True)"}, "r + 1 - t", "twice"),
        ({"range(p - 1):  # reduce": "range(p):  # reduce"}, "fold=True", "twice"),
        ({"(r + 1 - t) % p": "(r - t) % p"}, "recv=(left, (r - t) % p)", "block"),
        (
            {"yield Exchange(send=(right, (r - t": "return Exchange(send=(right, (r - t"},
            "return",
            "yield",
        ),
        ({"def my_ring": "def our_ring"}, "def our_ring", "called my_ring"),
        ({", fold=True": ""}, "recv=(left, (r - t - 1) % p)", "without fold=True"),
        (
            {"yield Exchange(send=(right, (r + 1": "Exchange(send=(right, (r + 1"},
            "r + 1",
            "without yield",
        ),
    ],
    "split": [
        ({"comm.rank // columns": "comm.rank // 2"}, "comm.rank // 2", "its row"),
        ({"row.allreduce": "comm.allreduce"}, "comm.allreduce", "the numbers of all ranks"),
        (
            {"of_row[0], of_column[0]": "of_column[0], of_row[0]"},
            "return",
            "the sum of the row comes first",
        ),
        ({"// columns": "// 3"}, "// 3", "with columns=2"),
        ({"of_row[0], of_column[0]": "of_row[0]"}, "return", "return two sums"),
        ({"rank // columns": "rank % columns"}, "return", "rank r has the number 10**r"),
    ],
    "task_queue": [
        ({"comm.send(np.array([STOP]), worker)": "pass"}, "comm.recv(task, 0)", "rank"),
        (
            {
                "[None] * len(tasks)": "[]",
                "results[given[worker]] = float(answer[0])": "results.append(float(answer[0]))",
            },
            "results.append",
            "in the order of their arrival",
        ),
        (
            {
                "worker, answer = cc.wait_any(requests)": "worker = next(w for w in range(3) "
                "if requests[w]); answer = requests[worker].wait(); requests[worker] = None",
            },
            "requests[worker].wait()",
            "until worker 2 has done four",
        ),
        ({"if number is None": "if not number"}, "results[", "the results are [None, 1.0"),
        ({"float(answer[0])": "answer"}, "results[given", "several results are one array"),
    ],
}

# Other ways to write the solutions that are as right.
ALSO_RIGHT = {
    "pi": {"4.0 * total[0] / (share * comm.size)": "4.0 * total / points"},
    "ping_pong": {"            ball += 1\n": "", "send(ball, 0)": "send(ball + 1, 0)"},
    "ring": {"(r - 1) % p, (r + 1) % p": "(p + r - 1) % p, (r + 1) % p"},
    "split": {"of_row[0], of_column[0]": "[of_row, of_column[0]]"},
    "task_queue": {"float(answer[0])": "answer.copy()"},
}


def checked(sheet):
    """Check a sheet; return the exit status, and what is printed."""
    result = run([sys.executable, LAB / "check.py", sheet])
    return result.status, result.out + result.err


def edited(folder, name, edits):
    """Write the solution of a sheet with some edits; return its file."""
    text = (LAB / "solutions" / f"{name}.py").read_text()
    for old, new in edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", SHEETS)
def test_a_solution_that_is_written_differently_passes(tmp_path, name):
    status, words = checked(edited(tmp_path, name, ALSO_RIGHT[name]))
    assert (status, words.partition(":")[0]) == (0, f"{name}.py is right")


@pytest.mark.parametrize("name", SHEETS)
def test_a_skeleton_fails_and_its_solution_passes(name):
    status, words = checked(name)
    assert status == 1
    line = int(re.fullmatch(rf"{name}\.py, line (\d+): .*\n", words)[1])
    lines = (LAB / f"{name}.py").read_text().splitlines()
    assert any("TODO" in each for each in lines[line - 3 : line])
    status, words = checked(LAB / "solutions" / f"{name}.py")
    assert (status, words.partition(":")[0]) == (0, f"{name}.py is right")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, marks=[pytest.mark.slow] * (number > 0))
        for name in SHEETS
        for number in range(len(MISTAKES[name]))
    ],
)
def test_a_usual_mistake_is_named_with_its_line(tmp_path, name, number):
    edits, marker, words = MISTAKES[name][number]
    file = edited(tmp_path, name, edits)
    text = file.read_text()
    status, printed = checked(file)
    assert status == 1
    line = re.match(rf"{name}\.py, line (\d+): ", printed)
    assert line, printed
    assert marker in text.splitlines()[int(line[1]) - 1], printed
    assert words in printed


@pytest.mark.parametrize("kind", [StallError, PeerLostError, PeerAbortedError])
def test_the_error_of_a_rank_that_waited_is_not_the_first(monkeypatch, kind):
    names = runpy.run_path(str(LAB / "check.py"))
    failed = [names["Failed"](0, kind("rank 1 failed"), 3), names["Failed"](1, KeyError("x"), 7)]
    monkeypatch.setattr(cc, "spawn", lambda *words, **options: failed)
    monkeypatch.setenv("COLLECTIVES_TIMEOUT", "1")  # on_ranks sets another one
    with pytest.raises(names["Wrong"]) as caught:
        names["on_ranks"](None, 2, None)
    assert caught.value.args == (7, "rank 1: KeyError: 'x'")


def test_a_sheet_that_does_not_exist_is_refused():
    status, words = checked("nothing")
    assert status == 1
    assert words == f"usage: python check.py SHEET, one of {', '.join(SHEETS)}, or its file\n"
