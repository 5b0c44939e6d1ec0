"""Ranks in Python: their start, output and ends, as threads and as processes."""

from __future__ import annotations

import re
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import jobs
import pure
import pytest

from collectives.slow.job import HOST, Hub

EXAMPLES = pure.ROOT / "examples"
LAB = EXAMPLES / "lab"
NEVER = "has left and never called this allreduce: is the call under an if"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pure.installed(tmp_path_factory.mktemp("pure"))


def run(site: Path, n: int, code: str, *options: str, **env: str) -> jobs.Result:
    """Run a program on ranks that are processes."""
    head = "import os, sys, numpy as np, collectives as cc\n"
    words = "-m", "collectives", "run", "-n", str(n), *options, "-c"
    return pure.python(site, *words, head + code, **env)


def spawned(site: Path, n: int, body: str, ends: str = "", **env: str) -> jobs.Result:
    """Run a function on ranks that are threads."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    head = "import sys, time, numpy as np, collectives as cc\nfrom collectives.errors import *\n"
    code = f"{head}def f():\n    comm = cc.world()\n{lines}\nprint(cc.spawn(f, {n}{ends}))\n"
    return pure.python(site, "-c", code, **env)


def test_processes_have_all_calls(site: Path):
    code = """
comm = cc.world()
assert comm.transport == "loopback", comm.transport
part = comm.split(comm.rank % 2)
big = np.full(1 << 20, float(comm.rank))
assert comm.allreduce(big)[5] == 3 and part.size == 1 + (comm.rank % 2 == 0)
left, right = (comm.rank - 1) % 3, (comm.rank + 1) % 3
request = comm.isend(big, right)
assert comm.recv(np.empty(1 << 20), left)[-1] == left
request.wait()
print(comm.gather_object({"rank": comm.rank, "of": part.rank}), sys.argv[1:], flush=True)
"""
    result = run(site, 3, code, "--prefix")
    wanted = "[{'rank': 0, 'of': 0}, {'rank': 1, 'of': 0}, {'rank': 2, 'of': 1}] []"
    lines = sorted(result.out.splitlines())
    assert (result.status, result.err) == (0, ""), result
    assert lines == [f"[0] {wanted}", "[1] None []", "[2] None []"]


@pytest.mark.parametrize(
    ("ends", "status", "words"),
    [
        ("1 / 0", 1, "PeerAbortedError: rank 1 gave up: ZeroDivisionError: division by zero"),
        ("os._exit(7)", 7, r"rank 1 \(process \d+\) has died while rank 0 waits: round 1"),
        pytest.param(
            "sys.exit(3)",
            3,
            NEVER,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sys.exit()",
            0,
            NEVER,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_processes_hear_of_the_end_of_others(site: Path, ends: str, status: int, words: str):
    code = f"""
cc.barrier()
if cc.rank():
    {ends}
try:
    cc.allreduce(np.ones(3))
except cc.CollectivesError as error:
    print(f"{{type(error).__name__}}: {{error}}", flush=True)
"""
    result = run(site, 2, code, COLLECTIVES_TIMEOUT="3600")  # longer than the test waits
    assert result.status == status, result
    assert re.search(words, result.out), result


def test_deadlines_and_the_ranks_that_are_missing(site: Path):
    code = """
if cc.rank():
    cc.world().recv(np.empty(1), 0, tag=1)
else:
    try:
        cc.allreduce(np.ones(3), timeout=0.3)
    except cc.errors.StallError as error:
        print(error)
    cc.send(np.ones(1), 1, tag=1)
"""
    result = run(site, 2, code, COLLECTIVES_TIMEOUT="30")
    assert result.out.startswith("allreduce 'all_to_all' on 2 ranks: rank 0 timed out after 0.3 s")
    assert "rank 1 has not called this allreduce yet: is the call under an if?" in result.out


def test_a_child_of_a_rank_is_no_rank(site: Path):
    code = """
import subprocess
cc.barrier()
words = [sys.executable, "-c", "import collectives as cc; cc.world()"]
child = subprocess.run(words, capture_output=True, text=True)
print(child.returncode, child.stderr, cc.allreduce(np.ones(1)))
"""
    result = run(site, 2, code)
    told = r"this process is no rank: rank (\d) of 2 \(process \d+\) has started it"
    assert sorted(re.findall(told, result.out)) == ["0", "1"], result
    assert result.out.count("[2.]") == 2, result


def test_a_connection_must_know_the_secret():
    hub = Hub(2)
    try:
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            Client((HOST, hub.port), authkey=b"another")
        with Client((HOST, hub.port), authkey=hub.secret.encode()) as made:
            made.send_bytes((1).to_bytes(4, "little"))
            hub.tell_end(0, "left", 5)
            assert made.poll(30)
    finally:
        hub.close()


def test_threads_print_lines_after_their_numbers(site: Path):
    result = spawned(site, 2, "print('a', end='')\nprint('b', comm.rank)\nreturn comm.rank")
    assert sorted(result.out.splitlines()) == ["[0, 1]", "[0] ab 0", "[1] ab 1"]


@pytest.mark.parametrize(
    ("body", "ends", "words"),
    [
        ("if comm.rank: raise KeyError('bad')\ncc.barrier()", "", "KeyError: 'bad'"),
        (
            "if comm.rank: sys.exit(3)\ncc.barrier()",
            "",
            "PeerLostError: rank 1 of 2 called",
        ),
        (
            "if comm.rank: time.sleep(100)",
            ", timeout=1",
            "StallError: rank 1 of 2 has not",
        ),
        pytest.param(
            "cc.spawn(print, 2)",
            "",
            "CommunicatorError: spawn was called on a rank",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "comm.barrier(timeout=0.3) if comm.rank else comm.recv(np.ones(1), 1)",
            "",
            "StallError",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_errors_of_threads_are_raised(site: Path, body: str, ends: str, words: str):
    result = spawned(site, 2, body, ends, COLLECTIVES_TIMEOUT="60")
    assert result.status == 1
    assert words in result.err, result
    if "KeyError" in words:
        assert "collectives.errors.RankError: on rank 1 of 2:" in result.err
        assert "rank 0 failed, too: collectives.errors.PeerAbortedError" in result.err


def test_arguments_are_copied_for_each_thread(site: Path):
    code = (
        "import collectives as cc\n"
        "given = [1]\n"
        "def f(mine):\n    mine.append(cc.rank())\n    cc.barrier()\n    return mine\n"
        "print(cc.spawn(f, 2, given), given)\n"
    )
    assert pure.python(site, "-c", code).out == "[[1, 0], [1, 1]] [1]\n"


def test_a_thread_of_a_rank_has_no_default_communicator(site: Path):
    body = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "with Pool(1) as pool:\n    return str(pool.submit(cc.size).exception())[:28]"
    )
    result = spawned(site, 2, body)
    assert result.out == f"{['this thread is not a rank, a'] * 2}\n"


@pytest.mark.parametrize(
    "words",
    [
        "my_algorithm.py",
        pytest.param("pi.py --points 100000", marks=pytest.mark.slow),
        pytest.param("dot_product.py", marks=pytest.mark.slow),
        pytest.param("matvec.py", marks=pytest.mark.slow),
        pytest.param("transpose.py", marks=pytest.mark.slow),
        pytest.param("ring_requests.py", marks=pytest.mark.slow),
        pytest.param("pipeline.py", marks=pytest.mark.slow),
        pytest.param("tensor_parallel.py", marks=pytest.mark.slow),
    ],
)
def test_examples_run(site: Path, words: str):
    name, *options = words.split()
    program = EXAMPLES / name, *options
    result = pure.python(site, "-m", "collectives", "run", "-n", "2", *program, cwd=EXAMPLES)
    assert result.status == 0, result
    assert result.out


def test_ranks_that_wait_for_each_other_are_a_deadlock(site: Path):
    body = (
        "try:\n    comm.recv(np.empty(1), 1 - comm.rank, timeout=3)\n"
        "except StallError as error:\n    return str(error)"
    )
    result = spawned(site, 2, body)
    waits = "rank 0 waits in recv for rank 1, and rank 1 waits in recv for rank 0"
    assert f"timed out after 3 s: deadlock: {waits}; round 1" in result.out, result
    assert f"StallWarning: recv 'direct' on 2 ranks: rank 0 has waited 1 s: deadlock: {waits}" in (
        result.err
    )


def test_programs_of_the_first_page(site: Path, tmp_path: Path):
    text = (pure.ROOT / "docs" / "start" / "first_program.md").read_text(encoding="utf-8")
    found = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", text, re.DOTALL)
    for name, program in found:
        (tmp_path / name).write_text(program, encoding="utf-8")
    hello = pure.python(site, "hello.py", cwd=tmp_path)
    assert sorted(hello.out.splitlines()) == [f"[{k}] I am rank {k} of 4" for k in range(4)]
    assert "4 ranks: pi is about 3.1411" in pure.python(site, "spawn_pi.py", cwd=tmp_path).out
    fails = pure.python(site, "fails.py", cwd=tmp_path).err
    assert fails.startswith("collectives.errors.RankError: on rank 0 of 4:\n")
    assert fails.rstrip().endswith("ZeroDivisionError: division by zero")
    pi = pure.python(site, "-m", "collectives", "run", "-n", "4", "pi.py", cwd=tmp_path)
    assert pi.out == "4 ranks: pi is about 3.1411\n"


@pytest.mark.parametrize(
    "sheet",
    [
        "task_queue",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("pi", "ping_pong", "ring", "split")
        ),
    ],
)
def test_sheets_of_the_lab_are_checked(site: Path, sheet: str):
    result = pure.python(site, LAB / "check.py", LAB / "solutions" / f"{sheet}.py", cwd=LAB)
    assert result.out.startswith(f"{sheet}.py is right: "), result
    if sheet == "ring":
        result = pure.python(site, LAB / "check.py", sheet, cwd=LAB)
        assert result.status == 1
        assert result.err.startswith("ring.py, line "), result
