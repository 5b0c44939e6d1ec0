"""Ranks of torchrun: they meet wherever torch does, and nobody else is one of them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jobs import PATIENCE, line_of
from test_rendezvous import Attack

from collectives.errors import CommunicatorError
from collectives.process import as_torchrun, rendezvous

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

MEET = """
import os, sys, time
time.sleep(float(os.environ.get("LATE", "0")))
import collectives as cc
total = cc.allreduce_object(1)
sys.stdout.write(f"{cc.rank()} of {cc.size()}: {total}\\n")
"""


@pytest.fixture
def store() -> Any:
    """The store of an agent."""
    from torch import distributed

    limit = timedelta(seconds=PATIENCE)
    return distributed.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)


def variables(port: int, rank: int, size: int, **more: str) -> dict[str, str]:
    return {
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "COLLECTIVES_PROFILE": "0",
        "COLLECTIVES_TIMEOUT": "60",
        **more,
    }


def start(env: dict[str, str], code: str = MEET, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "always", "-c", code],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def ended(children: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """Return what processes print, on both streams."""
    try:
        return [child.communicate(timeout=PATIENCE) for child in children]
    finally:
        for child in children:
            child.kill()


def check(told: list[tuple[str, str]]) -> None:
    n = len(told)
    assert [out for out, _ in told] == [f"{rank} of {n}: {n}\n" for rank in range(n)], told


def test_one_rank_needs_no_mpi() -> None:
    code = f"import sys\nsys.modules['mpi4py'] = None\n{MEET}"
    check(ended([start(variables(1, 0, 1), code)]))


def test_ranks_change_without_a_restart(store: Any) -> None:
    """Another agent has joined, or left: the store has the place of the last rank 0, for which
    ranks that come before the new one must not take it. Agents count restarts differently.
    """
    for size, local in ((2, 2), (3, 3), (2, 1), (2, 1)):
        each = [
            variables(
                store.port, rank, size, LOCAL_WORLD_SIZE=str(local), LATE="0" if rank else "2"
            )
            for rank in range(size)
        ]
        each[-1]["TORCHELASTIC_RESTART_COUNT"] = "1"
        check(ended([start(env) for env in each]))


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_rank_0_serves_the_store(late: int) -> None:
    with contextlib.closing(as_torchrun.Port()) as port:
        alone = [
            variables(port.number, rank, 2, TORCHELASTIC_USE_AGENT_STORE="False")
            for rank in range(2)
        ]
        alone[late]["LATE"] = "2"
        check(ended([start(each) for each in alone]))


def test_a_child_of_a_rank_is_none(store: Any) -> None:
    code = f"""
import subprocess, sys
import collectives as cc
cc.barrier()
done = subprocess.run([sys.executable, "-c", {MEET!r}], capture_output=True, text=True)
assert done.returncode == 1, done
text = f"this process is no rank: rank {{cc.rank()}} of 2"
assert text in done.stderr, done.stderr
{MEET}
"""
    check(ended([start(variables(store.port, rank, 2), code) for rank in range(2)]))


def test_nobody_writes_a_pickle_to_the_store(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of any user reaches it."""
    for name, value in variables(store.port, 1, 2).items():
        monkeypatch.setenv(name, value)
    for written, told in (
        (pickle.dumps(Attack(tmp_path / "executed")), "not a place"),
        (json.dumps(("tcp:1", "x" * 20)), "another process has written to the store of torchrun"),
    ):
        store.set("collectives/first", written)
        with pytest.raises(CommunicatorError, match=told):
            rendezvous.from_environment(0.5)
    assert not (tmp_path / "executed").exists()


AS_NOBODY = """
import os, time
import torch.distributed
from collectives.process import rendezvous
os.setgid(65534)
os.setuid(65534)
meeting = rendezvous.from_environment(60)
print("there", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_another_user_is_no_rank_of_a_host(store: Any, rank: int) -> None:
    """Neither does a rank take it for rank 0."""
    other = start(variables(store.port, rank, 2), AS_NOBODY)
    if rank == 0:
        assert line_of(other) == "there\n"
    mine = start(variables(store.port, 1 - rank, 2))
    if rank == 0:
        ((_, told),) = ended([mine])
        other.kill()
        other.communicate()
        assert "it belongs to another user" in told
        return
    _, told = other.communicate(timeout=PATIENCE)
    assert "cannot be rank 1 of 2" in told
    check(ended([mine, start(variables(store.port, 1, 2))]))


def test_ranks_of_several_hosts_are_told_what_they_trust(store: Any) -> None:
    apart = [variables(store.port, rank, 2, LOCAL_WORLD_SIZE="1") for rank in range(2)]
    told = ended([start(each) for each in apart])
    check(told)
    (_, first), (_, second) = told
    assert first.count("COLLECTIVES_SECRET is not set: whoever reaches the store of torchrun") == 1
    assert "COLLECTIVES_SECRET" not in second
    secret = {"COLLECTIVES_SECRET": "nobody else knows it"}
    told = ended([start({**each, **secret}) for each in apart])
    check(told)
    assert not any("COLLECTIVES_SECRET" in err for _, err in told)


@pytest.mark.slow
def test_who_does_not_know_the_secret_is_no_rank(store: Any) -> None:
    apart = [
        variables(store.port, rank, 2, LOCAL_WORLD_SIZE="1", COLLECTIVES_SECRET="x" * (20 + rank))
        for rank in range(2)
    ]
    first = start(apart[0])
    ((_, told),) = ended([start(apart[1])])
    assert "it has another secret" in told
    check(ended([first, start({**apart[0], "RANK": "1"})]))


def test_a_store_that_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables(1, 1, 4).items():
        monkeypatch.setenv(name, value)
    text = "rank 1 of 4 cannot reach the store of torchrun at 127.0.0.1:1"
    with pytest.raises(CommunicatorError, match=text):
        rendezvous.from_environment(1)
