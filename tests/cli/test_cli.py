"""The command line, as a user calls it: what it lists and explains, and its errors."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from commands import command, environment
from jobs import PATIENCE

from collectives import algorithms
from collectives.algorithms import formulas
from collectives.algorithms.spec import COLLECTIVES
from collectives.cli import COMMANDS, arguments, bench_ranks, catalogue, main
from collectives.measuring.operations import OPERATIONS

Capture = pytest.CaptureFixture[str]


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
    assert "\nallreduce, reduce, broadcast, barrier, allgather, reduce_scatter\n" in done.stdout


def test_list_takes_collectives(capsys: Capture) -> None:
    assert main(["list", "scan", "barrier"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Times are for p ranks")
    assert told.index("\n  up  ") < told.index("\nscan\n")
    assert "\n  hops(k)" not in told, "no formula of a scan or barrier has it"
    assert "\nbarrier\n" in told
    assert "\nallreduce\n" not in told
    assert main(["list", "alreduce"]) == 2
    assert "did you mean 'allreduce'?" in capsys.readouterr().err


def test_list_explains_each_word_of_its_formulas(capsys: Capture) -> None:
    of_python = {"p", "min", "max", "ceil", "log2"}
    assert set(catalogue.WORDS) == set(formulas.values(2)) - of_python
    for name in (*COLLECTIVES, ""):
        assert main(["list", *([name] if name else [])]) == 0
        legend, *rows = capsys.readouterr().out.split("\n\n")
        explained = set(re.findall(r"^  (\w+)(?:\(\w\))?  ", legend, re.MULTILINE))
        costs = " ".join(re.findall(r"time: (.*)", "\n".join(rows)))
        assert explained == set(re.findall(r"[a-z]\w*", costs)) & set(catalogue.WORDS)


def test_list_has_the_literature_under_a_heading_of_its_own(capsys: Capture) -> None:
    assert main(["list", "broadcast", "alltoall"]) == 0
    heads, names = "", {}
    for line in capsys.readouterr().out.splitlines():
        if line and line[0] != " ":
            heads = line
        elif re.match(r"  \w", line):
            names.setdefault(heads, []).append(line.split()[0].partition(":")[0])
    (heading,) = (each for each in names if "literature" in each)
    assert heading.startswith("broadcast, literature: a call runs one only if")
    assert names[heading] == ["bine", "circulant"]
    assert names["broadcast"] == algorithms.names("broadcast", textbook=True)
    assert names["alltoall"] == algorithms.names("alltoall")


def test_list_as_markdown_has_equal_rows() -> None:
    told = command("list", "--markdown").stdout
    assert told.startswith("| collective | algorithm |")
    lines = [line for line in told.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {7}
    textbook, _, literature = told.partition("\nThe literature: ")
    assert "| allreduce | `ring` |" in textbook
    assert "| allreduce | `swing` |" in literature
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
        (["explain", "rnig"], "'rnig'; did you mean 'ring'? There are: master_worker, tree, "),
        (["explain", "broadcast/rnig"], "broadcast has no algorithm 'rnig'; it has: flat, tree"),
        (["explain", "allredce/ring"], "'allredce'; did you mean 'allreduce'? There are: allred"),
        (["explain", "barrier"], "barrier is a collective; name one of its algorithms: direct, d"),
        (["explain", "ring", "--svg"], "--svg needs the name of a file, such as ring.svg"),
        (["explain", "ring", "--png"], "--png needs the name of a file, such as ring.png"),
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
        (["bench"], "name the collectives to measure: all, or one of allreduce,"),
        (["run", "-n", "2"], "run needs a program"),
        (
            ["simulate", "ring", "-p", "99999999999", "--limit", "9" * 30],
            "there is not enough memory",
        ),
        (["run", "-n", "2", "nosuch.py"], "no file 'nosuch.py'"),
    ],
)
def test_errors_are_one_line_and_status_2(words: list[str], text: str, capsys: Capture) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert text in told
    assert told.startswith("collectives: ")
    assert told.count("\n") == 1


def test_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    leaves, deep = tmp_path / "leaves.py", tmp_path / "deep.json"
    leaves.write_text("raise SystemExit(0)\n")
    deep.write_text("[" * 100_000)
    for words, text in (
        (["explain", str(leaves)], "leaves.py: SystemExit: 0"),
        (["list", "--load", str(leaves)], "leaves.py: SystemExit: 0"),
        (["timeline", str(deep)], "deep.json is not a timeline"),
    ):
        done = command(*words)
        assert done.returncode == 2
        assert text in done.stderr
        assert done.stderr.startswith("collectives: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_cannot_be_written() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "collectives", "list"],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("collectives: the output cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_without_a_command_there_is_help(capsys: Capture) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    listed = re.findall(r"^ {4}(\w+)", told, re.MULTILINE)  # a long name has a line of its own
    assert set(COMMANDS) <= set(listed)


def test_only_the_module_of_the_subcommand_is_imported() -> None:
    code = (
        "import sys; from collectives.cli import main; status = main(['list', 'barrier']);"
        "found = {name[16:] for name in sys.modules if name.startswith('collectives.cli.')};"
        "assert found == {'arguments', 'catalogue'}, found; sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["alreduce", "allreduc"])
def test_a_misspelt_operation(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["bench", name])
    told = capsys.readouterr().err
    assert f"there is no operation {name!r}; did you mean 'allreduce'? There are: all, " in told


@pytest.mark.parametrize(
    ("begin", "end", "factor", "sizes"),
    [(8, 4 << 20, 16, [8 << 4 * k for k in range(5)] + [4 << 20]), (8, 64, 2, [8, 16, 32, 64])],
)
def test_bench_measures_the_largest_size(
    begin: int, end: int, factor: int, sizes: list[int]
) -> None:
    options = Namespace(begin=begin, end=end, factor=factor)
    found = bench_ranks._sizes(options, OPERATIONS["allreduce"], 4, 2)
    assert [size for size, _ in found] == sizes


def test_sizes() -> None:
    assert [arguments.nbytes(t) for t in ("8", "64K", "1MiB", "2g")] == [8, 65536, 1 << 20, 2 << 30]


def test_a_file_with_several_algorithms_needs_a_name(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "several.py"
    path.write_text(
        "from collectives.algorithms import Exchange, algorithm\n"
        "for each in ('first', 'second'):\n"
        "    @algorithm('allreduce', name=each, replace=True, parameters={'k': 2})\n"
        "    def swap(r, p, k):\n"
        "        others = [(q, 0) for q in range(p) if q != r]\n"
        "        yield Exchange(send=others, recv=others, fold=True)\n"
        "@algorithm('broadcast', name='first', replace=True)\n"
        "def sent(r, p, root):\n"
        "    if r == root:\n"
        "        yield Exchange(send=[(q, 0) for q in range(p) if q != r])\n"
        "    else:\n"
        "        yield Exchange(recv=(root, 0))\n"
    )
    try:
        for command_name in ("explain", "simulate", "check"):
            assert main([command_name, str(path)]) == 2
            told = capsys.readouterr().err
            assert f"{path} registers 3 algorithms; name one: {path}:allreduce/first, " in told
            assert f"{path}:allreduce/second, {path}:broadcast/first" in told
        for command_name in ("explain", "simulate", "check"):
            assert main([command_name, f"{path}:second:3"]) == 0
            assert "allreduce 'second:3' on " in capsys.readouterr().out
        assert main(["check", f"{path}:broadcast/first"]) == 0
        assert main(["check", f"{path}:first"]) == 2
        assert main(["check", f"{path}:third"]) == 2
        assert f"{path} registers no algorithm 'third'; it has" in capsys.readouterr().err
    finally:
        for collective, name in (
            ("allreduce", "first"),
            ("allreduce", "second"),
            ("broadcast", "first"),
        ):
            algorithms.unregister(collective, name)
