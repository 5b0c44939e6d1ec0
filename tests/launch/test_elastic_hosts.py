"""``collectives run --elastic --no-mpi -H``: ranks go on when others, or whole hosts, are lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from jobs import PATIENCE
from namespaces import Hosts
from ranks import is_alive
from test_several_hosts import between, env, hosts, run

__all__ = ["env", "hosts"]  # fixtures

pytestmark = pytest.mark.usefixtures("has_ucx")

COUNT = """
import signal
import numpy as np, collectives as cc
from collectives import elastic

def count(state):
    comm = state.comm
    sys.stdout.write(f"{r} is {comm.rank} of {comm.size} from {state.step}\\n")
    sys.stdout.flush()
    while state.step < 100 or goes_on(comm):
        if comm.size == 4 and state.step == 42 and r == WHO:
            lose()
        total = comm.allreduce(np.full(1000, comm.rank + 1))
        assert (total == comm.size * (comm.size + 1) // 2).all()
        state.step += 1
        if state.step % 10 == 0:
            state.commit()

goes_on = lambda comm: False
lose = lambda: os.kill(os.getpid(), signal.SIGKILL)
"""
END = "\nelastic.run(elastic.State(step=0), count)\nsys.stdout.write(f'{r} ends well\\n')"
LOSE_HOST = "\ndef lose():\n    os.kill(os.getppid(), signal.SIGKILL)\n    time.sleep(50)"


def begun(left: str, step: int) -> list[str]:
    """Return the output of ranks that begin from a step."""
    return [f"{r} is {new} of {len(left)} from {step}" for new, r in enumerate(left)]


@pytest.mark.parametrize(
    ("who", "lose", "left", "told"),
    [
        (1, "", "023", "collectives: rank 1 of 4 on a was ended by SIGKILL"),
        pytest.param(
            *(
                2,
                "\nlose = lambda: os._exit(7)",
                "013",
                "rank 2 of 4 on b ended with exit status 7",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(3, "\ndef lose(): raise KeyError('bad')", "012", "KeyError: 'bad'"),
            marks=pytest.mark.slow,
        ),
        (2, LOSE_HOST, "01", "collectives: the connection to b is lost\n"),
        (0, LOSE_HOST, "23", "collectives: the connection to a is lost\n"),
    ],
    ids=["killed", "ended", "raised", "host", "host of rank 0"],
)
def test_the_others_go_on(env: dict[str, str], who: int, lose: str, left: str, told: str) -> None:
    code = COUNT.replace("WHO", str(who)) + lose + END
    done = run(env, "--elastic", "-H", "a:2,b:2", code=code)
    assert done.returncode == 0, done
    wanted = [*begun("0123", 0), *begun(left, 40), *(f"{r} ends well" for r in left)]
    assert sorted(done.stdout.splitlines()) == sorted(wanted)
    assert told in done.stderr
    assert done.stderr.count("collectives: ") == 1


def test_the_status_is_that_of_the_first_if_none_ends_well(env: dict[str, str]) -> None:
    code = "time.sleep(r)\nif r == 1: os.kill(os.getpid(), 9)\nsys.exit(3 + r)"
    done = run(env, "--elastic", "-H", "a:2,b:1", code=code)
    assert done.returncode == 3, done
    assert done.stderr.splitlines() == [
        "collectives: rank 0 of 3 on a ended with exit status 3",
        "collectives: rank 1 of 3 on a was ended by SIGKILL (kill -9, or the kernel when memory "
        "runs out)",
        "collectives: rank 2 of 3 on b ended with exit status 5",
    ]


DIES_TOO = """
import signal
import numpy as np, collectives as cc
from collectives.process import surviving
comm, before = cc.Communicator(), surviving.shrunk

def shrunk(meeting):
    made = before(meeting)
    if r == 1 and made.size == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return made

surviving.shrunk = shrunk
if r == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.allreduce(np.ones(3))
except cc.errors.PeerLostError:
    left = comm.shrink()
    assert left.allgather_object(r) == [0, 3]
    sys.stdout.write("well\\n")
"""


@pytest.mark.parametrize(
    "where", ["-n 4", pytest.param("-H a:2,b:2", marks=pytest.mark.slow), "-H a:1,b:1,c:1,d:1"]
)
def test_a_second_rank_dies_while_the_others_shrink(env: dict[str, str], where: str) -> None:
    """All have agreed that it is left, and wait for it in the new communicator."""
    done = run(env, "--elastic", *where.split(), code=DIES_TOO)
    assert done.returncode == 0, done
    assert done.stdout == "well\n" * 2


@pytest.mark.slow
def test_a_cut_cable(hosts: Hosts, env: dict[str, str], tmp_path: Path) -> None:
    """Both sides miss each other; that without the launcher is ended by its supervisor."""
    code = COUNT.replace("WHO", "None") + "\ngoes_on = lambda comm: comm.size == 4 or r > 1"
    code += f"\nopen(f'{tmp_path}/{{os.getpid()}}', 'w').close()" + END
    child = between(hosts, env, code, "--elastic")
    try:
        limit = time.monotonic() + PATIENCE / 2
        while len(list(tmp_path.glob("[0-9]*"))) < 4 and time.monotonic() < limit:
            time.sleep(0.02)
        time.sleep(1)  # they communicate
        assert child.poll() is None
        hosts.cut()
        out, err = child.communicate(timeout=PATIENCE / 2)
    finally:
        child.kill()
    assert child.returncode == 0, err
    lines = out.splitlines()
    assert sorted(line for line in lines if "well" in line) == ["0 ends well", "1 ends well"]
    assert sum(" of 2 from " in line for line in lines if line[0] in "01") == 2
    assert "rank 2 of 4 on host2 was ended by SIG" in err
    assert not any(is_alive(int(path.name)) for path in tmp_path.glob("[0-9]*"))
