"""Tests that all engines share: the numbers of ranks, and calls that fail."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import collectives as cc
from collectives.engines import rank as ranks
from collectives.process.rendezvous import Folder


def test_ranks_of_a_host_have_numbers_in_a_row() -> None:
    assert ranks.numbered(["b", "a", "b", "c", "a"]) == [0, 2, 1, 4, 3]
    assert ranks.numbered(["a"] * 3) == [0, 1, 2]


def fail(in_flight: bool) -> None:
    comm = cc.world()
    request = comm.iallreduce(np.ones(8)) if in_flight and comm.rank == 0 else None
    if comm.rank == 0:
        raise ValueError("the user's error")
    comm.recv(np.empty(1), 0)  # which never comes
    assert request


def do_well() -> int:
    return int(cc.allreduce_object(1))


def outcomes(folder: str, task: bytes) -> list[tuple[str, int]]:
    """Return the errors of jobs one after another, and how many files are open after each."""
    rank, found = cc.rank(), []
    gc.disable()
    for number in range(6):
        outcome = ranks.serve(ranks.by_store(Folder(f"{folder}/{number}", 30), rank, 2), task)
        text = "" if outcome.result else repr(ranks.failure(rank, 2, outcome).error)
        found.append((text, len(os.listdir("/proc/self/fd"))))
    return found


@pytest.mark.parametrize(
    "task",
    [(do_well, (), {}), (fail, (False,), {}), (fail, (True,), {})],
    ids=["well", "fails", "in flight"],
)
def test_a_call_keeps_its_error_and_no_files(tmp_path: Path, task: Any) -> None:
    told = cc.spawn(outcomes, 2, str(tmp_path), cloudpickle.dumps(task))
    wanted = ("", "") if task[0] is do_well else ("ValueError(", "gave up: ValueError: the user")
    for each, text in zip(told, wanted, strict=True):
        assert [error for error, _ in each if text not in error or bool(error) != bool(text)] == []
        opened = [files for _, files in each]
        assert opened[-1] - opened[1] < 4, each
