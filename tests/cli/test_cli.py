"""The command line, as a user calls it: each test starts a process with a deadline."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import DEADLINE, command, environment

from collectives import algorithms, errors, reductions
from collectives.algorithms.spec import COLLECTIVES
from collectives.cli import arguments, main, markdown, run, tables
from collectives.cli.bench import COMMON
from collectives.launch import launcher
from collectives.measuring import candidates, consistency, patterns, plot, report, state
from collectives.measuring.bench import PEERS
from collectives.measuring.contest import COPY, Entry
from collectives.measuring.operations import OPERATIONS

pytestmark = pytest.mark.each_mpi

Row = dict[str, Any]
Capture = pytest.CaptureFixture[str]


def fake(folder: Path, text: str) -> Path:
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# -- without MPI -----------------------------------------------------------------------------


def test_list_needs_no_mpi_and_no_matplotlib() -> None:
    code = (
        "import sys; from collectives.cli import main; status = main(['list']);"
        "assert not {'mpi4py', 'matplotlib'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "dissemination" in done.stdout
    assert "same bits on all ranks" in done.stdout


def test_list_as_markdown_has_equal_rows() -> None:
    lines = command("list", "--markdown").stdout.splitlines()
    assert lines[0].startswith("| collective | algorithm |")
    assert {line.count("|") for line in lines} == {7}
    assert any("| `ring` |" in line and "https://doi.org/" in line for line in lines)


def test_explain_prefers_allreduce_and_names_the_others() -> None:
    done = command("explain", "tree", "-n", "3")
    assert done.returncode == 0
    assert done.stdout.startswith("allreduce 'tree' on 3 ranks")
    assert "collectives explain broadcast/tree" in done.stdout
    done = command("explain", "broadcast/tree", "-n", "4", "--root", "1", "--bytes", "1M")
    assert done.stdout.startswith("broadcast 'tree' on 4 ranks, root 1")
    assert "broadcast of 1 MiB on 4 ranks: tree" in done.stdout


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_explain_knows_each_collective(collective: str, capsys: Capture) -> None:
    name = algorithms.names(collective)[-1]
    assert main(["explain", f"{collective}/{name}", "-n", "3"]) == 0
    assert capsys.readouterr().out.startswith(f"{collective} {name!r} on 3 ranks")


def test_explain_takes_a_parameter(capsys: Capture) -> None:
    assert main(["explain", "kary:2", "-n", "5"]) == 0
    assert capsys.readouterr().out.startswith("allreduce 'kary:2' on 5 ranks")
    assert main(["explain", "tree:2", "-n", "5"]) == 2
    assert "takes no parameter" in capsys.readouterr().err


def test_a_loaded_algorithm_can_be_explained(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from collectives import algorithms\n"
        "@algorithms.algorithm('broadcast')\n"
        "def mine(r, p, root):\n"
        "    'One after the other.'\n"
        "    for q in range(p):\n"
        "        if r == root and q != root:\n"
        "            yield algorithms.Exchange(send=(q, 0))\n"
        "        elif r == q != root:\n"
        "            yield algorithms.Exchange(recv=(root, 0))\n"
    )
    for words in (["--load", str(path), "mine"], [str(path)]):
        done = command("explain", *words, "-n", "3")
        assert done.returncode == 0, done.stderr
        assert "One after the other." in done.stdout
    done = command("simulate", f"{path},tree", "-p", "8", "-b", "1K")
    assert done.returncode == 0, done.stderr
    assert "tree wins" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["explain", "nosuch"], "there is no algorithm 'nosuch'"),
        (["explain", "my/own.py"], "my/own.py: there is no such file"),
        (["explain", "reduce/ring"], "reduce has no algorithm 'ring'"),
        (["explain", "ring", "-n", "999"], "on 999 ranks sends more than 20000 messages, too many"),
        (["explain", "nosuch/ring"], "there is no collective 'nosuch'"),
        (["explain", "ring", "--root", "1"], "allreduce has no root"),
        (["explain", "--load", "nosuch.py", "ring"], "there is no such file"),
        (["bench", "allreduce", "--algorithm", "nosuch"], "allreduce has no algorithm 'nosuch'"),
        (["bench", "allreduce", "--op", "nosuch"], "--op is 'nosuch'"),
        (["bench", "allreduce", "--dtype", "nosuch"], "--dtype is 'nosuch'"),
        (["bench", "reduce", "-n", "2", "--root", "2"], "must be below 2"),
        (["bench", "scan", "--root", "1"], "--root is 1, but scan has no root"),
        (["bench", "exscan", "--op", "avg"], "--op is avg, which exscan does not take"),
        (["bench", "sendrecv", "--algorithm", "ring"], "sendrecv has no algorithms to choose from"),
        (["bench", "alltoallv", "-n", "4", "--algorithm", "bruck"], "alltoallv 'bruck': blocks"),
        (["bench", "allreduce", "--algorithm", "kary:1"], "takes an integer from 2 on as k"),
        (["bench", "all", "--prune", "0.5"], "--prune is 0.5, and must be at least 1"),
        (["bench", "--consistency", "--algorithm", "all"], "leave --algorithm out"),
        (["bench"], "say what to measure: all, or one of allreduce,"),
        (["run", "-n", "2"], "run needs a program"),
        (["run", "-n", "2", "nosuch.py"], "no file 'nosuch.py'"),
    ],
)
def test_errors_are_one_line_and_status_2(words: list[str], text: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.startswith("collectives: ")
    assert done.stderr.count("\n") == 1


def test_run_leaves_the_program_its_words() -> None:
    words = ["run", "-n", "2", "--mpiexec-args", "-x A", "-m", "module", "-n", "9"]
    assert run.split(words) == (words[:5], words[5:])
    assert run.split(["run", "-n", "2", "--", "a.py", "--"]) == (["run", "-n", "2"], ["a.py", "--"])
    assert run.joined(words[:5])[-1] == "--mpiexec-args=-x A"
    assert run.split(["run", "-h"]) == (["run", "-h"], [])


def test_sizes() -> None:
    assert [arguments.nbytes(t) for t in ("8", "64K", "1MiB", "2g")] == [8, 65536, 1 << 20, 2 << 30]


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("HYDRA build details:", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.17", "intel"),
        ("mpiexec (Open MPI) 5.0.8", "openmpi"),
        ("mpirun (OpenRTE) 4.1.8", "openmpi"),
        ("something else", "other"),
    ],
)
def test_a_launcher_is_told_by_its_version(tmp_path: Path, text: str, family: str) -> None:
    assert launcher.family_of(str(fake(tmp_path, text))) == family


def test_a_foreign_launcher_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake(tmp_path, "mpirun (Open MPI) 5.0.8")
    monkeypatch.setattr(launcher, "candidates", lambda _: iter([str(path)]))
    lib = launcher.Library("MPICH 5.0.2", "mpich", "/x/lib/libmpi.so.12")
    with pytest.raises(errors.BindingError, match="is that of Open MPI") as caught:
        launcher.find(lib)
    assert "MPICH 5.0.2" in str(caught.value)
    assert "install" in str(caught.value)


def test_open_mpi_is_told_of_root_and_of_shared_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(launcher, "physical_cores", lambda: 1)
    for name in launcher.BATCH:
        monkeypatch.delenv(name, raising=False)
    starter = launcher.Launcher("mpiexec", launcher.Library("Open MPI 5.0.8", "openmpi", None))
    assert starter.command(1, ["a"]) == ["mpiexec", "--allow-run-as-root", "-n", "1", "a"]
    assert "--oversubscribe" in starter.command(2, ["a"])
    assert "mpi_yield_when_idle" not in starter.command(2, ["a"])
    assert "mpi_yield_when_idle" in starter.command(3, ["a"])
    assert "--oversubscribe" not in starter.command(3, ["a"], "--host a:2,b:2")


@pytest.mark.parametrize("op", reductions.ALL, ids=lambda op: op.name)
def test_the_pattern_tells_right_from_wrong(op: reductions.Reduction) -> None:
    dtype = np.dtype(op.dtypes()[-1] if "float32" not in op.dtypes() else "float32")
    arrays = [patterns.filled(1000, patterns.period(r, 3, 1, dtype, op.name)) for r in range(3)]
    total = arrays[0]
    for array in arrays[1:]:
        total = patterns.FOLDS[op.name](total, array).astype(dtype)
    if op.average:
        total = total * dtype.type(1 / 3)
    wanted = patterns.folded(0b111, 3, 1, dtype, op)
    tolerance = 0.01 if op.average else 0.0
    assert patterns.different(total, wanted, tolerance=tolerance) == 0
    assert patterns.different(total[40:], wanted, 40, tolerance) == 0
    patterns.poison(total[::2])
    assert patterns.different(total, wanted, tolerance=tolerance) >= 400


@pytest.mark.parametrize("dtype", ["int8", "float16", "bool"])
def test_what_is_moved_tells_ranks_and_places_apart(dtype: str) -> None:
    rows = [patterns.period(r, 8, 0, dtype, None) for r in range(8)]
    assert len({row.tobytes() for row in rows}) == 8
    assert patterns.different(rows[3], np.roll(rows[3], 1)) > 20


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "barrier"])
@pytest.mark.parametrize(("n", "p"), [(12, 4), (13, 5), (3, 1)])
def test_pieces_fit_together(name: str, n: int, p: int) -> None:
    operation = OPERATIONS[name]
    n = operation.elements(n, p)
    given: dict[int, tuple[int, int]] = {}
    for r in range(p):
        inputs = list(operation.pieces(operation.contract.inputs(r, p, 0), n, p))
        for one, other in itertools.pairwise(inputs):
            assert one[1] + one[2] == other[1], "an input is one window of the imagined array"
        given |= {part: (first, size) for part, first, size in inputs}
    for r in range(p):
        for part, first, size in operation.pieces(operation.contract.outputs(r, p, 0), n, p):
            assert given[part] == (first, size)


def test_bus_bandwidths_are_those_of_nccl_tests() -> None:
    factors = {name: operation.bus_factor(4) for name, operation in OPERATIONS.items()}
    assert factors["allreduce"] == 1.5
    cut = {name for name, factor in factors.items() if factor == 0.75}
    assert cut == {
        *("allgather", "reduce_scatter", "alltoall", "gather", "scatter"),
        *("allgatherv", "reduce_scatterv", "alltoallv", "gatherv", "scatterv"),
    }
    assert all(factors[name] == 1 for name in ("reduce", "broadcast", "scan", "exscan", "sendrecv"))


def row(name: str, nbytes: int, us: float, algorithm: str = "auto", noise: float = 0.0) -> Row:
    return {
        "collective": name,
        "asked": nbytes,
        "bytes": nbytes,
        "algorithm": algorithm,
        "chosen": "ring" if algorithm == "auto" else algorithm,
        "median_us": us,
        "noise_us": noise,
        "ratio": us / 10,
    }


def measured(algorithm: str, us: float) -> Row:
    return {
        "entry": None if algorithm in (*PEERS, COPY) else Entry(),
        "algorithm": algorithm,
        "chosen": "ring" if algorithm == "auto" else algorithm,
        "seconds": [us * 1e-6, us * 1e-6],
        "noise": 0.0,
        "blocks": [us * 1e-6],
        "wrong": 0,
        "iterations": 5,
    }


def derived(nbytes: int) -> list[Row]:
    contestants = (("MPI", 100.0), ("gloo", 400.0), ("auto", 50.0), (COPY, 40.0))
    rows = [measured(*each) for each in contestants]
    dtype = np.dtype("float32")
    return report.rows(rows, OPERATIONS["allreduce"], 2, nbytes, nbytes // 4, dtype, 100e-9)


def test_times_are_held_against_all_peers_and_the_limit() -> None:
    mpi, gloo, ours = derived(4 << 20)
    assert [each["algorithm"] for each in (mpi, gloo, ours)] == ["MPI", "gloo", "auto"]
    assert ours["ratios"] == pytest.approx({"MPI": 0.5, "gloo": 0.125})
    assert ours["ratio"] == pytest.approx(0.5)
    assert ours["best"]
    assert not mpi["best"]
    assert ours["limit_us"] == pytest.approx(40.0)
    assert ours["of_limit"] == pytest.approx(0.8)
    assert (ours["state"], ours["round_trip_ns"]) == ("near", pytest.approx(100.0))
    small = derived(64)[2]
    assert small["limit_us"] == pytest.approx(40.0)
    assert small["of_limit"] is None, "what fits into a cache may be faster than a copy past it"


def test_the_table_has_a_column_for_each_peer() -> None:
    table = tables.columns(PEERS, True)
    widths = {len(text) for text in tables.title(table)}
    texts = tables.lines(derived(4 << 20), table)
    assert {len(text.removesuffix(" *")) for text in texts} == widths
    assert texts[2].split()[-5:] == ["0.50", "0.12", "40.00", "80", "*"]
    without = tables.lines(derived(64)[2:], tables.columns(["MPI"], False))
    assert without[0].split()[-1] == "0.50"


def test_the_peers_have_a_table_of_their_own() -> None:
    rows = [*derived(64), *derived(4 << 20)]
    del rows[4]["ratios"]["gloo"], rows[5]["ratios"]["gloo"]
    rows.pop(4)
    run = {
        "rows": rows,
        "mpi": "some MPI",
        "gloo": "some torch",
        "thread_level": "single",
        "ranks": 2,
        "usable_cores": 2,
    }
    here = {"cpu": "some CPU", "commit": "abc", "collectives": "1.0"}
    lines = markdown.peer_lines(run, here)
    assert "commit abc. gloo: some torch." in lines[0]
    assert any(line.startswith("allreduce, float32: near; a flag") for line in lines)
    assert "| bytes | ours | MPI | gloo | x MPI | x gloo | limit | reached |" in lines
    assert "| 64 | 50.00 | 100.00 | 400.00 | 0.50 | 0.12 | 40.00 |  |" in lines
    assert "| 4 Mi | 50.00 | 100.00 |  | 0.50 |  | 40.00 | 80% |" in lines


def test_the_state_tells_near_from_far() -> None:
    assert state.name(None) is None
    assert [state.name(ns * 1e-9) for ns in (100, 500, 20_000)] == ["near", "far", "busy"]
    assert state.text([100e-9]) == "near; a flag from rank 0 to rank 1 and back takes 100 ns"
    text = state.text([100e-9, 120e-9, 500e-9, None])
    assert text.startswith("near at 2 of 3 sizes, far at 1 of 3 sizes; ")
    assert text.endswith("takes 120 ns (from 100 to 500)")
    assert "share no memory" in state.text([None])


def test_the_peers_and_the_limit_are_lines_of_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    plot.plot([*derived(64), *derived(4 << 20)], str(path), "caption")
    text = path.read_text()
    for label in ("MPI", "gloo", "auto", "limit: a copy"):
        assert f"<!-- {label} -->" in text


def test_consistency_leaves_other_libraries_out() -> None:
    rows = [row("allreduce", 8, 8.0), row("reduce", 8, 9.0), row("reduce", 8, 1.0, "gloo")]
    judged = consistency.judge(rows, 1.1)
    assert [each["left_us"] for each in judged["violations"]["ours"]] == [9.0]
    assert judged["checked"]["MPI"] == 0


def test_consistency_finds_what_is_broken_and_nothing_else() -> None:
    rows = [
        row("barrier", 0, 9.0),
        row("allreduce", 4, 8.0),
        row("allreduce", 8, 8.5),
        row("allreduce", 16, 31.0),
        row("reduce", 8, 5.0),
        row("broadcast", 8, 3.0),
        row("broadcast", 16, 0.0),  # vanished: nothing is said of it
        row("gather", 8, 5.0),
        row("allgather", 8, 9.0, noise=1.5),
        row("allreduce", 8, 20.0, "MPI"),
        row("reduce", 8, 5.0, "MPI"),
        row("broadcast", 8, 5.0, "MPI"),
    ]
    judged = consistency.judge(rows, 1.1)
    found = {(each["rule"], each["left"], each["right"]) for each in judged["violations"]["ours"]}
    assert found == {
        ("pattern", "barrier", "allreduce of 4 B"),
        ("division", "allreduce of 16 B", "2 times allreduce of 8 B"),
    }
    (one,) = judged["violations"]["MPI"]
    assert (one["left"], one["right"]) == ("allreduce of 8 B", "reduce + broadcast of 8 B")
    assert one["factor"] == 2.0
    tighter = consistency.judge(rows, 1.0)["violations"]["ours"]
    left = {each["left"] for each in tighter}
    assert "allreduce of 8 B" in left
    assert "allgather of 8 B" not in left, "9 us are not more than 8 by more than the noise, 1.5"
    text = "\n".join(tables.consistency_lines(judged))
    assert "# ours: 2 of " in text
    assert "factor 2.00" in text


def test_the_summary_has_a_cell_for_each_operation_and_size() -> None:
    rows = [
        row("allreduce", 8, 10.0, "MPI"),
        row("allreduce", 8, 5.0),
        row("allreduce", 8, 4.0, "butterfly"),
        row("gather", 8, 10.0, "MPI"),
        row("gather", 8, 14.0),
        row("gather", 8, 14.5, "ring"),
        row("gather", 16, 10.0, "MPI"),
        row("gather", 16, 9.0),
    ]
    lines = markdown.lines({"rows": rows, "mpi": "some MPI", "ranks": 2})
    assert "| bytes | allreduce | gather |" in lines
    assert "| 8 | 0.50, 0.40 butterfly | **1.40** |" in lines
    assert "| 16 |  | 0.90 |" in lines
    assert "Largest, default: 1.40 (gather of 8 B)." in lines


# -- with MPI --------------------------------------------------------------------------------


@pytest.mark.usefixtures("mpi")
def test_run_passes_words_and_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import os, sys, collectives as cc\n"
        "cc.barrier()\n"
        "os.write(1, f'{cc.rank()} of {cc.size()} {sys.argv[1:]}\\n'.encode())\n"
        "cc.barrier()\n"
        "sys.exit(7)\n"
    )
    done = command("run", "-n", "2", str(path), "-m", "--flag", "x y")
    assert done.returncode == 7, done.stderr
    for rank in range(2):
        assert f"{rank} of 2 ['-m', '--flag', 'x y']" in done.stdout


@pytest.mark.usefixtures("mpi")
def test_an_exception_on_one_rank_ends_all() -> None:
    code = "import collectives as cc\nassert cc.rank() == 0\ncc.barrier()"
    done = command("run", "-n", "2", "-c", code)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


@pytest.mark.usefixtures("mpi")
def test_an_exit_status_on_one_rank_ends_all() -> None:
    """What no hook of a program sees: its runner does, unless nobody wants that."""
    code = "import sys, collectives as cc\nif cc.rank(): sys.exit(3)\ncc.barrier()"
    done = command("run", "-n", "2", "-c", code, COLLECTIVES_TIMEOUT="600")
    assert done.returncode != 0
    for wish, runner in (("1", True), ("0", False)):
        line = command("run", "--dry-run", "-n", "2", "-c", "pass", COLLECTIVES_ABORT=wish).stdout
        assert ("-m mpi4py -c pass" in line) == runner


@pytest.mark.usefixtures("mpi")
def test_run_refuses_the_launcher_of_another_mpi(tmp_path: Path) -> None:
    for text in ("HYDRA build details:", "mpiexec (Open MPI) 5.0.8"):
        path = fake(tmp_path, text)
        if launcher.family_of(str(path)) == launcher.library().family:
            continue
        done = command("run", "-n", "2", "--mpiexec", str(path), "-c", "pass")
        assert done.returncode == 2
        assert "cannot start its ranks" in done.stderr


@pytest.mark.usefixtures("mpi")
def test_a_foreign_launcher_first_on_path_is_passed_over_and_reported(tmp_path: Path) -> None:
    fake(tmp_path, "of some other MPI")
    path = os.pathsep.join([str(tmp_path), environment()["PATH"]])
    assert command("run", "-n", "1", "-c", "pass", PATH=path).returncode == 0
    done = command("doctor", PATH=path)
    assert done.returncode == 1
    assert "PROBLEM: mpiexec is" in done.stdout
    assert "remedy" in done.stdout


@pytest.mark.usefixtures("mpi")
def test_interrupt_ends_the_ranks(tmp_path: Path) -> None:
    code = (
        "import os, time, collectives as cc; cc.barrier();"
        f"open(r'{tmp_path}/' + str(os.getpid()), 'w').close(); time.sleep({DEADLINE})"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "collectives", "run", "-n", "2", "-c", code],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    limit = time.monotonic() + DEADLINE / 2
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    child.send_signal(signal.SIGINT)
    assert child.wait(DEADLINE / 2) != 0
    limit = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


@pytest.mark.usefixtures("mpi")
def test_bench_gives_a_table_and_json(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    words = "bench allreduce -n 2 -b 8 -e 1K -f 128 --algorithm auto,all --iters 5 --repeat 2"
    done = command(*words.split(), "--json", str(path))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert lines[0].split()[:4] == ["8", "2", "float32", "MPI"]
    assert lines[1].split()[3].startswith("auto=")
    document = json.loads(path.read_text())
    rows = document["runs"][0]["rows"]
    assert len(rows) == len(lines)
    assert {row["wrong"] for row in rows} == {0}
    assert {row["bytes"] for row in rows} == {8, 1024}
    assert all(row["median_us"] > 0 and row["ratio"] > 0 for row in rows)
    for key in ("cpu", "cores", "python", "numpy", "collectives", "command", "date", "commit"):
        assert key in document
    assert document["runs"][0]["mpi"]


@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("words", ["-n 3 --root 1 --op max", "-n 2 --dtype bool --op lxor"])
def test_bench_measures_all_and_finds_nothing_wrong(words: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    done = command(
        *f"bench {','.join(OPERATIONS)} -b 8 -e 1000 -f 125 --iters 2 --repeat 1".split(),
        *f"--algorithm auto,all --json {path} {words}".split(),
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(path.read_text())["runs"][0]
    for name, operation in OPERATIONS.items():
        rows = [each for each in measured["rows"] if each["collective"] == name]
        able, _ = candidates.chosen("all", name, measured["ranks"])
        assert {each["algorithm"] for each in rows} == {"MPI", "auto", *filter(None, able)}
        assert {each["wrong"] for each in rows} == {0 if operation.moves else None}
        assert {each["asked"] for each in rows} == ({8, 1000} if operation.moves else {0})


@pytest.mark.usefixtures("mpi")
def test_a_wrong_result_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "lazy.py"
    path.write_text(
        "from collectives.measuring.operations import Arrays\n"
        "Arrays.theirs = lambda self, mpi, MPI: lambda: None\n"
    )
    words = "bench allgather,reduce,alltoall -n 2 -b 800 -e 800 --iters 1 --repeat 1"
    done = command(*words.split(), "--load", str(path))
    assert done.returncode == 1, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert {each[9] for each in rows if each[3] != "MPI"} == {"0"}
    # 200 elements in each of 4 buffers, on both ranks or on the root, and all of them are wrong.
    assert [each[9] for each in rows if each[3] == "MPI"] == ["1600", "800", "1600"]
    assert "4000 wrong elements" in done.stderr


@pytest.mark.usefixtures("mpi")
def test_bench_consistency_reports_ours_and_mpis(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    words = f"bench --consistency -n 2 -b 8 -e 16 --iters 3 --repeat 2 --json {path}"
    done = command(*words.split())
    assert done.returncode == 0, done.stderr
    judged = json.loads(path.read_text())["runs"][0]["consistency"]
    assert judged["tolerance"] == 1.1
    for who in ("ours", "MPI"):
        found, checked = len(judged["violations"][who]), judged["checked"][who]
        assert checked > 10
        assert f"# {who}: {found} of {checked} relations are broken" in done.stdout


@pytest.mark.usefixtures("mpi")
def test_bench_prunes_and_prints_a_summary() -> None:
    words = "bench allgather,alltoall -n 2 -b 8 -e 1K -f 128 --iters 3 --repeat 1 --prune 1"
    done = command(*words.split(), "--algorithm", "all,auto", "--markdown", "--segment", "256")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  ")]
    # Of two sizes of two: MPI's, the library's choice, and not all of the 4 and the 3 others.
    assert 8 <= len(rows) < 2 * (2 + 4) + 2 * (2 + 3)
    assert any(each[3].startswith("auto/256=") for each in rows)
    assert "| bytes | allgather | alltoall |" in done.stdout


@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("name", [None, "gloo"])
def test_bench_measures_peers(name: str | None, tmp_path: Path) -> None:
    """With torch, if it is here, and without."""
    path = tmp_path / "bench.json"
    words = "bench --peers -n 2 -b 8 -e 1M -f 131072 --iters 2 --repeat 1 --markdown"
    there = importlib.util.find_spec("torch") is not None
    if there != (name == "gloo"):
        pytest.skip(f"torch is {'' if there else 'not '}installed")
    done = command(*words.split(), "--json", str(path))
    assert done.returncode == 0, done.stderr
    ran = json.loads(path.read_text())["runs"][0]
    labels = {each["algorithm"] for each in ran["rows"]}
    names = {each["collective"] for each in ran["rows"]}
    assert "# gloo: " + ran["gloo"] in done.stdout
    if name is None:
        assert ran["gloo"] == "left out, torch is not installed"
        assert labels == {"MPI", "auto"}
        assert "| bytes | ours | MPI | x MPI | limit | reached |" in done.stdout
    else:
        assert labels == {"MPI", "gloo", "auto"}
        assert "| bytes | ours | MPI | gloo | x MPI | x gloo | limit | reached |" in done.stdout
        for each in names:
            have = {row["algorithm"] for row in ran["rows"] if row["collective"] == each}
            assert have == labels, each
    assert names == {*COMMON}
    assert done.stdout.count("# state: ") == len(names)
    for each in ran["rows"]:
        assert each["state"] in ("near", "far", "busy")
        assert each["round_trip_ns"] > 0
        assert (each["limit_us"] is None) == (each["collective"] == "barrier")
        # Of what ends before the others' barrier, nothing may be left.
        large = each["bytes"] >= 1 << 20 and each["median_us"] > 0
        assert (each["of_limit"] is not None) == large
        assert each["wrong"] == (None if each["collective"] == "barrier" else 0)


@pytest.mark.usefixtures("mpi")
def test_torch_is_not_imported_without_a_wish(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    words = "bench allreduce -n 2 -b 8 -e 8 --iters 1 --repeat 1"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = command(*words.split(), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "gloo" not in done.stdout
    assert "limit" not in done.stdout


@pytest.mark.usefixtures("mpi")
def test_bench_on_arrays_in_shared_memory(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    words = "bench all -n 2 -b 8 -e 64K -f 8192 --iters 2 --repeat 1 --buffers shared"
    done = command(*words.split(), "--json", str(path))
    assert done.returncode == 0, done.stderr
    ran = json.loads(path.read_text())["runs"][0]
    assert ran["buffers"] == "shared"
    assert {each["wrong"] for each in ran["rows"] if each["collective"] != "barrier"} == {0}
    done = command(*words.split(), COLLECTIVES_SHM="0")
    assert done.returncode == 2
    assert "--buffers is shared, and the ranks share no memory" in done.stderr


@pytest.mark.usefixtures("mpi")
def test_bench_without_shared_memory_says_so() -> None:
    words = "bench barrier -n 2 --iters 1 --repeat 1"
    done = command(*words.split(), COLLECTIVES_SHM="0")
    assert done.returncode == 0, done.stderr
    assert "# state: ranks 0 and 1 share no memory" in done.stdout


@pytest.mark.usefixtures("mpi")
def test_doctor_finds_nothing() -> None:
    done = command("doctor", COLLECTIVES_SHM_SPINS="123")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("allreduce right") == 2
    assert "No problem found." in done.stdout
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line)
    assert "shared memory 2 ranks share " in done.stdout
    assert re.fullmatch(r"(near|far|busy); a flag .* takes \d+ ns", facts["flags"])
    assert re.search(r"[\d.]+ GB/s by one rank, [\d.]+ GB/s by each of two", facts["copies"])
    assert "for 2 ranks" in facts["affinity"]
    assert "yields after 123 looks         COLLECTIVES_SHM_SPINS" in done.stdout
    for name in ("", "_LANE", "_LIMIT", "_STORES"):
        assert re.search(rf"setting .* COLLECTIVES_SHM{name}$", done.stdout, re.MULTILINE)


@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize(
    ("name", "value", "status", "text"),
    [
        ("COLLECTIVES_SHM", "0", 0, "shared memory none: COLLECTIVES_SHM is 0"),
        ("COLLECTIVES_SHM", "file", 0, "(file), "),
        ("COLLECTIVES_SHM_LIMIT", "1000", 1, "shared memory PROBLEM: the ranks of this host"),
        ("COLLECTIVES_SHM_SPINS", "-1", 1, "set it to a positive number of looks, or unset it"),
        ("COLLECTIVES_SHM_STORES", "no", 1, "set it to auto, cached or streamed, or unset it"),
    ],
)
def test_doctor_knows_the_settings_of_memory(name: str, value: str, status: int, text: str) -> None:
    done = command("doctor", **{name: value})
    assert done.returncode == status, done.stdout + done.stderr
    assert text in done.stdout
