"""Reports from times: rows and their tables, and the plot."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectives.cli import bench_table
from collectives.measuring import state
from collectives.measuring.bench import PEERS
from collectives.measuring.contest import COPY
from collectives.measuring.measure import Row, compared


def row(name: str, nbytes: int, us: float, algorithm: str = "auto", noise: float = 0.0) -> Row:
    """Return what two ranks measure, near to each other, beside 10 us of the MPI."""
    return Row(
        collective=name,
        ranks=2,
        asked=nbytes,
        bytes=nbytes,
        count=nbytes // 4,
        dtype="float32",
        algorithm=algorithm,
        chosen="ring" if algorithm == "auto" else algorithm,
        min_us=us,
        median_us=us,
        max_us=us,
        algbw=nbytes / max(us, 1.0) / 1e3,
        busbw=nbytes / max(us, 1.0) / 1e3,
        wrong=0,
        ratio=us / 10,
        round_trip_ns=100.0,
        state="near",
        noise_us=noise,
    )


def derived(nbytes: int) -> list[Row]:
    contestants = (("MPI", 100.0), ("gloo", 400.0), ("auto", 50.0), (COPY, 40.0))
    return compared([row("allreduce", nbytes, us, label) for label, us in contestants])


def test_times_are_held_against_all_peers_and_the_limit() -> None:
    mpi, gloo, ours = derived(4 << 20)
    assert [each.algorithm for each in (mpi, gloo, ours)] == ["MPI", "gloo", "auto"]
    assert ours.ratios == pytest.approx({"MPI": 0.5, "gloo": 0.125})
    assert ours.ratio == pytest.approx(0.5)
    assert ours.best
    assert not mpi.best
    assert ours.limit_us == pytest.approx(40.0)
    assert ours.of_limit == pytest.approx(0.8)
    small = derived(64)[2]
    assert small.limit_us == pytest.approx(40.0)
    assert small.of_limit is None, "what fits into a cache may be faster than a copy past it"


def test_the_table_has_a_column_for_each_peer() -> None:
    table = bench_table.columns(PEERS, True)
    widths = {len(text) for text in bench_table.title(table)}
    texts = bench_table.lines(derived(4 << 20), table)
    assert {len(text.removesuffix(" *")) for text in texts} == widths
    assert texts[2].split()[-5:] == ["0.50", "0.12", "40.00", "80", "*"]
    without = bench_table.lines(derived(64)[2:], bench_table.columns(["MPI"], False))
    assert without[0].split()[-1] == "0.50"


def test_the_peers_have_a_table_of_their_own() -> None:
    rows = [*derived(64), *derived(4 << 20)]
    del rows[4].ratios["gloo"], rows[5].ratios["gloo"]
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
    lines = bench_table.peer_lines(run, here)
    assert "commit abc. gloo: some torch." in lines[0]
    assert any(line.startswith("allreduce, float32: near; a flag") for line in lines)
    assert "| bytes | ours | MPI | gloo | x MPI | x gloo | limit | reached |" in lines
    assert "| 64 | 50.00 | 100.00 | 400.00 | 0.50 | 0.12 | 40.00 |  |" in lines
    assert "| 4 Mi | 50.00 | 100.00 |  | 0.50 |  | 40.00 | 80% |" in lines


def test_times_below_the_noise_are_words_without_star_and_bandwidth() -> None:
    mpi, short, ours = compared(
        [
            row("scatter", 4 << 20, 9.0, "MPI", noise=1.0),
            row("scatter", 4 << 20, 0.0, "flat", noise=2.0),
            row("scatter", 4 << 20, 7.0, noise=2.0),
            row("scatter", 4 << 20, 5.0, COPY),
        ]
    )
    assert [each.is_noise for each in (mpi, short, ours)] == [False, True, False]
    assert [each.best for each in (mpi, short, ours)] == [False, False, True]
    assert (short.ratios, short.ratio, short.of_limit) == ({}, None, None)
    table = bench_table.columns(["MPI"], False)
    texts = bench_table.lines([mpi, short, ours], table)
    assert len(texts[1]) == len(texts[0])
    assert texts[1].split()[3:] == ["flat", "below", "the", "noise", "-", "-", "0", "-"]
    assert texts[2].endswith(" 0.78 *")
    alone = compared([row("scatter", 8, 1.0, "MPI", noise=3.0), row("scatter", 8, 1.0)])
    assert [each.ratio for each in alone] == [None, None], "nothing is known of MPI's time"
    only = compared([row("scatter", 8, 0.0, noise=3.0), row("scatter", 8, 2.0, "flat", noise=3.0)])
    assert [each.best for each in only] == [False, False]
    run = {"rows": compared([row("scatter", 8, 9.0, "MPI"), row("scatter", 8, 0.0)])}
    facts = {"mpi": "some MPI", "gloo": "none", "thread_level": "single", "ranks": 2}
    here = {"cpu": "some CPU", "commit": "", "collectives": "1.0"}
    lines = bench_table.peer_lines({**run, **facts, "usable_cores": 2}, here)
    assert "| 8 | below the noise | 9.00 |  |  |  |" in lines
    assert "| 8 | - |" in bench_table.markdown_lines({**run, **facts})


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
    bench_table.plot([*derived(64), *derived(4 << 20)], str(path), "caption")
    text = path.read_text()
    for label in ("MPI", "gloo", "auto", "limit: a copy"):
        assert f"<!-- {label} -->" in text


def test_the_title_of_the_plot_has_the_numbers_of_the_machine() -> None:
    reports = [
        {"ranks": 2, "hosts": 1, "mpi": "MPICH 5.0", "usable_cores": 2, "rows": derived(64)},
        {"ranks": 4, "hosts": 1, "mpi": "MPICH 5.0", "usable_cores": 2, "rows": derived(64)},
    ]
    here = {"cpu": "some CPU", "collectives": "1.0"}
    assert bench_table.caption("float32", reports, here) == (
        "float32, 2, 4 ranks on 1 host, MPICH 5.0, collectives 1.0\n"
        "some CPU, 2 cores; state: near; a flag from rank 0 to rank 1 and back takes 100 ns"
    )


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
    lines = bench_table.markdown_lines({"rows": rows, "mpi": "some MPI", "ranks": 2})
    assert "| bytes | allreduce | gather |" in lines
    assert "| 8 | 0.50, 0.40 butterfly | **1.40** |" in lines
    assert "| 16 |  | 0.90 |" in lines
    assert "Largest, default: 1.40 (gather of 8 B)." in lines
