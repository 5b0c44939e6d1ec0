"""``collectives bench``, as a user calls it."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from commands import command
from usual import FULL

from collectives import algorithms
from collectives.cli.bench import COMMON
from collectives.measuring import candidates
from collectives.measuring.operations import OPERATIONS

pytestmark = pytest.mark.usefixtures("mpi")


@pytest.mark.each_mpi("mpich")
def test_bench_gives_a_table_and_json(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    words = "bench allreduce -n 2 -b 8 -e 1K -f 128 --algorithm auto,all --iters 5 --repeat 2"
    picture = tmp_path / "bench.svg"
    drawn = importlib.util.find_spec("matplotlib") is not None
    plot = ["--plot", str(picture)] if drawn else []
    done = command(*words.split(), "--json", str(path), *plot)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    if drawn:
        assert lines.pop() == f"The picture is in {picture}"
        assert "float32, 2 ranks on 1 host, " in picture.read_text()
    assert lines[0].split()[:4] == ["8", "2", "float32", "MPI"]
    assert lines[1].split()[3].startswith("auto=")
    document = json.loads(path.read_text())
    assert document["version"] == 1
    rows = document["runs"][0]["rows"]
    assert len(rows) == len(lines)
    assert {row["wrong"] for row in rows} == {0}
    assert {row["bytes"] for row in rows} == {8, 1024}
    assert all(row["median_us"] > 0 and row["ratio"] > 0 for row in rows)
    for key in ("cpu", "cores", "python", "numpy", "collectives", "command", "date", "commit"):
        assert key in document
    assert document["runs"][0]["mpi"]


@pytest.mark.any_mpi
@pytest.mark.parametrize(
    "words", ["-n 2 --root 1 --op max", *["-n 3 --dtype bool --op lxor"] * FULL]
)
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


def test_the_textbook_is_all_but_the_literature() -> None:
    found, left_out = candidates.chosen("auto,textbook", "allreduce", 4)
    assert found == [None, *algorithms.names("allreduce", textbook=True)]
    assert left_out == []
    assert "swing" not in found
    assert "ring" in found
    assert candidates.chosen("textbook,swing", "allreduce", 4)[0][-1] == "swing"
    assert candidates.chosen("textbook", "sendrecv", 4) == ([None], [])


@pytest.mark.any_mpi
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


@pytest.mark.any_mpi
def test_bench_prunes_and_prints_a_summary() -> None:
    words = "bench allgather,alltoall -n 2 -b 8 -e 1K -f 128 --iters 3 --repeat 1 --prune 1"
    done = command(*words.split(), "--algorithm", "all,auto", "--markdown", "--segment", "256")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  ")]
    # Of two sizes of two: MPI's, the library's choice, and not all of the 4 and the 3 others.
    assert 8 <= len(rows) < 2 * (2 + 4) + 2 * (2 + 3)
    assert any(each[3].startswith("auto/256=") for each in rows)
    assert "| bytes | allgather | alltoall |" in done.stdout


@pytest.mark.any_mpi
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


@pytest.mark.any_mpi
def test_torch_is_not_imported_without_a_wish(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    words = "bench allreduce -n 2 -b 8 -e 8 --iters 1 --repeat 1"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = command(*words.split(), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "gloo" not in done.stdout
    assert "limit" not in done.stdout


@pytest.mark.any_mpi
def test_bench_on_arrays_in_shared_memory(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    names = "all" if FULL else "allreduce,broadcast,gather,alltoall,barrier"
    words = f"bench {names} -n 2 -b 8 -e 64K -f 8192 --iters 2 --repeat 1 --buffers shared"
    done = command(*words.split(), "--json", str(path))
    assert done.returncode == 0, done.stderr
    ran = json.loads(path.read_text())["runs"][0]
    assert ran["buffers"] == "shared"
    assert {each["wrong"] for each in ran["rows"] if each["collective"] != "barrier"} == {0}
    done = command(*words.split(), COLLECTIVES_SHM="0")
    assert done.returncode == 2
    assert "--buffers is shared, and the ranks share no memory" in done.stderr


@pytest.mark.any_mpi
def test_bench_without_shared_memory_says_so() -> None:
    words = "bench barrier -n 2 --iters 1 --repeat 1"
    done = command(*words.split(), COLLECTIVES_SHM="0")
    assert done.returncode == 0, done.stderr
    assert "# state: ranks 0 and 1 share no memory" in done.stdout
