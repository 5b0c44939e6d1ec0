"""The cases that a profile covers, as ``tune --show`` and ``doctor`` print them."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import command

from collectives.algorithms.spec import COLLECTIVES
from collectives.choice import profile
from collectives.choice.model import fitted
from collectives.choice.profile import Profile
from collectives.choice.sections import Row, Section
from collectives.measuring import coverage

ROWS = (Row(1023, "tree", 0, ((8, 1e-6), (512, 2e-6))), Row(None, "ring", 0, ((65536, 1e-3),)))
ONCE = (Row(None, "direct", 0, ((0, 1e-6),)),)
SECTION = Section(
    "shm",
    "MPICH 5.0.2",
    "one",
    "2026-11-21",
    "collectives tune -n 2,4",
    {2: fitted(1e-6, 2e-10, 3e-11, "a test"), 4: fitted(1e-6, 2e-10, None, "a test")},
    {"allreduce": {4: ROWS, 2: ROWS}, "barrier": {4: ONCE}},
    {2: (1e-7, 1e-7), 4: (1e-7, 5e-7)},
)


def test_a_section_in_one_line() -> None:
    assert f"{coverage.title(SECTION)}: {coverage.summary(SECTION)}" == (
        "shared memory, 2026-11-21: allreduce, barrier on 2, 4 ranks; 8 B to 64 KiB; cores near on "
        "2, near/far on 4; with MPICH 5.0.2"
    )
    every = Section(
        "mpich", "MPICH 5.0.2", "many", rows={key: {8: ROWS[1:]} for key in COLLECTIVES}
    )
    assert f"{coverage.title(every)}: {coverage.summary(every)}" == (
        "MPICH 5.0.2, several hosts, no date: all collectives on 8 ranks; 64 KiB"
    )


def test_show(tmp_path: Path) -> None:
    file = str(tmp_path / "p.json")
    Path(file).write_text(Profile("a cpu", 2, "0.1.0", (SECTION,)).text())
    done = command("tune", "--show", "--profile", file)
    assert (done.returncode, done.stderr) == (0, "")
    cpu, cores = profile.machine()
    assert done.stdout.splitlines() == [
        f"The profile is {file}",
        f"of a cpu with 2 cores; this machine is {cpu} with {cores} core{'s' * (cores != 1)}",
        "",
        f"{coverage.title(SECTION)}: {coverage.summary(SECTION)}",
        "by collectives tune -n 2,4",
        "2 ranks: alpha 1 us, beta 0.2 ns/B, gamma 0.03 ns/B",
        "4 ranks: alpha 1 us, beta 0.2 ns/B, gamma could not be fitted",
        "collective  ranks  sizes          algorithms",
        "allreduce   2, 4   8 B to 64 KiB  tree, ring",
        "barrier     4      -              direct",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "there is no profile {file}; collectives tune writes it"),
        (
            "{}",
            "the profile {file} cannot be read: it has no version. Delete it, and write it anew",
        ),
    ],
)
def test_show_of_no_profile(tmp_path: Path, text: str | None, told: str) -> None:
    file = tmp_path / "p.json"
    if text is not None:
        file.write_text(text)
    done = command("tune", "--show", "--profile", str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"collectives: {told.format(file=file)}")
