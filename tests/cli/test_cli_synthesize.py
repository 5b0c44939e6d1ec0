"""``collectives synthesize``: its output and files, networks in files, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collectives.algorithms import get, unregister
from collectives.cli import arguments, main
from collectives.errors import ArgumentError, ProofError
from collectives.simulate import simulate
from collectives.simulation.graph import Graph

Capture = pytest.CaptureFixture[str]

SLOW = {
    "ranks": 4,
    "links": [["hub", r, "1Gbit/s" if r < 3 else "250Mbit/s", "5us"] for r in range(4)],
    "alpha": "10us",
}


def written(folder: Path, document: Any) -> str:
    path = folder / "mine.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_network_of_a_file_has_its_links_and_ways(tmp_path: Path) -> None:
    network = Graph(written(tmp_path, SLOW)).make(4)
    found = simulate("broadcast", "flat", 1000, network)
    # Three messages; each 10 us, two links of 5 us, and 1000 bytes at the slower speed of the way.
    assert found.time == pytest.approx(3 * 20e-6 + 2 * 8e-6 + 32e-6)
    assert found.links["hub", 3] == 1000


def test_way_is_the_one_of_least_latency_and_then_of_fewest_links(tmp_path: Path) -> None:
    ring: dict[str, Any] = {
        "ranks": 4,
        "links": [[0, 1, "1GB/s"], [1, 2, "1GB/s"], [2, 3, "1GB/s"], [3, 0, "1GB/s", "9us"]],
        "alpha": 0,
    }
    graph = Graph(written(tmp_path, ring))
    assert len(graph._reached(0)[3][1]) == 3
    ring["links"][3][3] = 0
    graph = Graph(written(tmp_path, ring))
    assert graph._reached(0)[3] == (0.0, [(0, 3)])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"links": [[0, 1, "1GB/s"], [2, 3, "1GB/s"]]}, "no way from rank 0 to ranks 2-3"),
        (
            {"links": [[0, 1, "0GB/s"]]},
            r"mine.json: the link \[0, 1, '0GB/s'\]: a speed of '0GB/s' would never end",
        ),
        (
            {"links": [[0, 1, "1GB/s", "soon"]]},
            r"mine.json: the link \[0, 1, '1GB/s', 'soon'\]: 'soon' is not a time",
        ),
        ({"gamma": "0B/s"}, "mine.json: gamma: a speed of '0B/s' would never end"),
        ({"links": [[0, 1, "0"]]}, r"the link \[0, 1, '0'\] has no speed above 0"),
        ({"links": [[0, 1, 0]]}, r"the link \[0, 1, 0\] has no speed above 0"),
        ({"one_way": [[0, 1, "0ns"]]}, r"the link \[0, 1, '0ns'\] has no speed above 0"),
        ({"links": [[0, 9, "1GB/s"]]}, "ends at rank 9, and there are 4 ranks"),
        ({"links": [[0, 1]]}, r"\[0, 1\] is not a link such as"),
        ({"links": [[0, 1.5, "1GB/s"]]}, "ends at 1.5, which is no node"),
        ({"links": [[0, 1, "1GB/s"], [1, 0, "1GB/s"]]}, "is there twice"),
        ({"links": 3}, "links is 3, and must be a list"),
        ({"one_way": [["a", 0, "1GB/s"]], "speed": 3}, "it has 'speed', and may have: ranks"),
        ({"ranks": "four"}, 'must be an object with "ranks": 4'),
    ],
)
def test_wrong_network_is_refused(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=told):
        Graph(written(tmp_path, SLOW | change))


def test_one_way_link_leads_to_no_rank_behind_it(tmp_path: Path) -> None:
    document = {"ranks": 3, "links": [[0, 1, "1GB/s"]], "one_way": [[1, 2, "1GB/s"]]}
    with pytest.raises(ArgumentError, match="no way from rank 2 to ranks 0-1"):
        Graph(written(tmp_path, document))


def test_file_that_is_no_network_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{")
    for name, told in ((str(path), "JSONDecodeError"), (str(tmp_path / "no.json"), "no such file")):
        with pytest.raises(ArgumentError, match=f"(?i)it cannot be read: .*{told}"):
            Graph(name)


def test_simulate_takes_the_network_of_a_file(tmp_path: Path, capsys: Capture) -> None:
    path = written(tmp_path, SLOW)
    assert main(["simulate", "ring,tree", "-p", "4", "-b", "1K,1M", "--topology", path]) == 0
    assert f"allreduce on 4 ranks, simulated on {path}" in capsys.readouterr().out
    assert main(["simulate", "ring", "-p", "5", "--topology", path]) == 2
    assert "it has 4 ranks, not 5" in capsys.readouterr().err


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "reduce_scatter"])
def test_file_is_written_and_its_algorithm_taken(
    collective: str, tmp_path: Path, capsys: Capture
) -> None:
    pytest.importorskip("scipy")
    path, out = written(tmp_path, SLOW), str(tmp_path / "found.py")
    words = ["synthesize", collective, "--topology", path, "-p", "4", "-b", "1M", "--root", "2"]
    assert main([*words, "--seconds", "1", "--out", out]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{collective} of 1 MiB on 4 ranks")
    assert "times the bound" in text
    assert "; proven" in text
    try:
        arguments.load([out])
        row = get(collective, "synthesized")
        from collectives.check import check

        for root in range(4):
            check(row, p=4, root=root)
        assert row.refusal(5) == f"{collective} 'synthesized' needs 4 ranks, and p is 5"
        assert main(["simulate", f"{collective}/synthesized", "-p", "4", "--topology", path]) == 0
        assert main(["explain", f"{collective}/synthesized", "-n", "4"]) == 0
    finally:
        unregister(collective, "synthesized")


@pytest.mark.parametrize("name", ["class", "mine-1"])
def test_names_that_are_no_functions(name: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("scipy")
    out = str(tmp_path / "found.py")
    words = ["synthesize", "allreduce", "--topology", "flat", "-p", "2", "-b", "1K"]
    assert main([*words, "--seconds", "1", "--name", name, "--out", out]) == 0
    try:
        arguments.load([out])
        assert get("allreduce", name).refusal(2) is None
    finally:
        unregister("allreduce", name)
    capsys.readouterr()


def test_wrong_rounds_in_a_file_are_refused_by_the_proof(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    path, out = written(tmp_path, SLOW), tmp_path / "found.py"
    words = ["synthesize", "allreduce", "--topology", path, "-p", "4", "-b", "1M"]
    assert main([*words, "--seconds", "1", "--out", str(out)]) == 0
    lines = out.read_text().splitlines(keepends=True)
    first = next(k for k, line in enumerate(lines) if "Exchange(" in line and "fold=True" in line)
    del lines[first]
    out.write_text("".join(lines))
    from collectives.check import check

    try:
        arguments.load([str(out)])
        with pytest.raises(ProofError):
            check("allreduce", "synthesized", p=4)
    finally:
        unregister("allreduce", "synthesized")


def test_search_that_is_stopped_prints_the_best_so_far(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    from collectives.synthesis.search import Search

    run = Search._try

    def once(self: Search, *candidate: Any) -> None:
        if self.best is not None:
            raise KeyboardInterrupt
        run(self, *candidate)

    monkeypatch.setattr(Search, "_try", once)
    out = tmp_path / "found.py"
    words = ["synthesize", "allreduce", "--topology", "flat", "-p", "4", "--out", str(out)]
    assert main(words) == 130
    text = capsys.readouterr().out
    assert text.startswith("The search was stopped. This is the best so far.")
    assert f"The algorithm is in {out}" in text
    assert out.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["allreduce", "-p", "10000"], "a search for 10000 ranks is not possible: it takes 1024"),
        (["allreduce", "-p", "1"], "needs two ranks at least, and p is 1"),
        (["alltoall", "-p", "4"], "there is no search for 'alltoall'; "),
        (["broadcast", "-p", "4", "--root", "4"], "root is 4, and must be in 0..3"),
        (["allreduce", "-p", "4", "-b", "0"], "needs a size, and the array has 0 bytes"),
        (["allreduce", "-p", "4", "--name", 'a"b'], "--name is 'a\"b', and must have letters"),
        (["allreduce", "-p", "4", "--out", "no/where.py"], "and there is no folder no"),
        (["allreduce", "-p", "4", "--blocks", "2"], "--blocks is an option of --exact"),
    ],
)
def test_impossible_search_is_refused(words: list[str], told: str, capsys: Capture) -> None:
    pytest.importorskip("scipy")
    assert main(["synthesize", *words, "--topology", "flat"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "a search needs scipy, which is not installed; pip install 'collectives-mpi[synth"),
        (["--exact"], "an exact search needs ortools, which is not installed; pip install 'coll"),
    ],
)
def test_missing_package_is_named(
    words: list[str], told: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collectives.cli import synthesize

    monkeypatch.setattr(synthesize, "find_spec", lambda name: None)
    assert main(["synthesize", "allreduce", "-p", "4", *words]) == 2
    assert told in capsys.readouterr().err
