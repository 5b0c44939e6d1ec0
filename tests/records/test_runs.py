"""Traces of runs: one record for each call, and the first call in which two runs differ."""

import json
import os
import signal
from functools import cache

import numpy as np
import pytest
from commands import command
from programs import alone, passes, program

from collectives.errors import ArgumentError
from collectives.records import checksums, runs

pytestmark = pytest.mark.any_mpi

TRACE = "COLLECTIVES_TRACE"

CALLS = """
import numpy as np, collectives as cc
from collectives import background
comm = cc.world()
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
x = np.arange(8.0) + comm.rank

cc.allreduce(x, op=cc.SUM_REPRODUCIBLE)
cc.scan(np.tile(x, 1000), op=cc.SUM_REPRODUCIBLE)
cc.allreduce(x, compression="topk:0.5", name="c")
cc.allreduce_object({"a": 1}, op=lambda a, b: a)
cc.broadcast_object(x, root=1)
cc.allgatherv(x, counts=[8] * comm.size)
cc.allreduce_many([x, x[:3], np.tile(x, 10_000)])
planned = comm.plan("allreduce", x)
planned()
x[0] = 7
cc.wait_all([planned.start(), cc.iallreduce_many([x])])
cc.same(x * 0 + 1)
comm.cart((0,), periods=True).neighbor_allgather(x[:2])
request = comm.isendrecv(x, right, np.empty_like(x), left)
request.wait()
comm.split(0).barrier()
handles = [background.submit("allreduce", x, name=name) for name in "ba"[:: 1 - 2 * comm.rank]]
handles.append(background.submit_many([x, x]))
handles.append(background.submit("allreduce", x, op="SUM_REPRODUCIBLE"))
handles.append(background.submit("allgatherv", x))
handles.append(background.submit("allreduce", x, compression="int8"))
for handle in handles:
    handle.wait()
background.stop()
try:
    cc.allreduce(x, op="no such")
except ValueError:
    pass
"""
KINDS = [
    *("allreduce", "scan", "allreduce", "allreduce_object", "broadcast_object", "allgatherv"),
    *("allreduce_many", "allreduce", "allreduce", "allreduce_many", "same", "neighbor_allgather"),
    *("sendrecv", "barrier", "allreduce", "allreduce", "allreduce_many", "allreduce"),
    *("allgatherv", "allreduce", "allreduce"),
]


def in_order(run, rank=0):
    return sorted(run.calls[rank].values(), key=lambda call: call["place"])


def traced(folder, text, env=None):
    """Run a program on one rank; return its trace."""
    result = alone(text, env={TRACE: str(folder), **(env or {})})
    assert (result.status, result.err) == (0, ""), result
    return runs.read(str(folder))


def check_calls(path):
    run = runs.read(str(path))
    assert run.ended == [True, True]
    for rank in range(2):
        calls = in_order(run, rank)
        assert [each["kind"] for each in calls] == KINDS
        assert [each["place"] for each in calls] == list(range(1, len(KINDS) + 1))
        assert {each["line"].partition(":")[0] for each in calls} == {"<string>"}
        assert calls[-1]["error"] == "ArgumentError"
        assert all(each["result"] for each in calls[:-1] if each["kind"] not in ("same", "barrier"))
        assert len(calls[4]["inputs"]) == (rank == 1)  # of a broadcast from rank 1
        assert [len(each["inputs"]) for each in calls if each["kind"] == "allreduce_many"] == [
            *(4, 2, 3)  # the list and its arrays
        ]
        before, after = calls[7:9]  # the runs of a plan, whose array has changed
        assert before["inputs"][0][:2] == after["inputs"][0][:2] != before["inputs"][0]
        assert before["inputs"] != after["inputs"]
    series = [{key for key in each if key[1]} for each in run.calls]
    messages = [key for key in series[0] if "background" not in key[1]]
    assert messages == [("0.0", "sendrecv dest 1 source 1", 1)]
    assert {("0.0", "background 'a'", 1), ("0.0", "background 'b'", 1)} <= series[0] & series[1]


@pytest.mark.each_mpi
def test_each_call_is_one_record(tmp_path):
    result = program(CALLS, 2, env={TRACE: str(tmp_path / "run")})
    assert (result.status, result.err) == (0, ""), result
    check_calls(tmp_path / "run")
    os.remove(tmp_path / "run" / "1.jsonl")
    with pytest.raises(ArgumentError, match="lacks the file of rank 1 of 2"):
        runs.read(str(tmp_path / "run"))


def test_without_mpi(tmp_path):
    words = "run", "--no-mpi", "-n", "2", "-c", CALLS
    done = command(*words, **{TRACE: str(tmp_path / "run")})
    assert (done.returncode, done.stderr) == (0, ""), done
    check_calls(tmp_path / "run")


STEPS = """
import os
import numpy as np, collectives as cc
comm = cc.world()
case = os.environ.get("CASE", "")
data = np.random.default_rng(1).normal(size=12).astype(np.float32)
part = np.array_split(data, comm.size)[comm.rank]
cc.allreduce(cc.sum_local(part), op="SUM_REPRODUCIBLE")
cc.allgatherv(part, counts=[12 // comm.size] * comm.size)
sub = comm.dup()
sub.barrier()
if case == "input" and comm.rank == 1:
    part[1] += 1
whole = np.tile(part.sum(), 100) * np.linspace(1, 2, 100, dtype=np.float32)
comm.allreduce(whole, algorithm="ring" if case == "sum" else "tree")
comm.reduce(whole, root=1 % comm.size)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Return a function that runs the steps once for each case, and returns the trace."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def made(case):
        path = str(folder / (case or "base"))
        env = {TRACE: path, "CASE": case}
        result = alone(STEPS, env=env) if case == "one rank" else program(STEPS, 3, env=env)
        assert (result.status, result.err) == (0, ""), result
        return path

    return made


def test_only_the_sum_differs(trace):
    a, b = trace(""), trace("sum")
    done = command("compare", a, b)
    assert (done.returncode, done.stderr) == (1, "")
    of = "allreduce of x, an array of float32 with shape (100,), op SUM, algorithm"
    assert done.stdout.splitlines() == [
        f"{a}: 3 ranks, 15 calls",
        f"{b}: 3 ranks, 15 calls",
        "the first call that differs is number 3 on communicator 0.0:",
        f"  {a}: {of} tree (<string>:15)",
        f"  {b}: {of} ring (<string>:15)",
        "ranks 0-2: the results differ (result)",
        "the inputs are equal on all ranks",
        "Only the rounding differs: the ranks have combined the same inputs in another order. "
        'bits="size", or COLLECTIVES_BITS=size, makes the order independent of the algorithm; '
        'op="SUM_REPRODUCIBLE" rounds once, so that the result does not depend on any order.',
    ]


def test_the_input_of_one_rank_differs(trace):
    done = command("compare", "--json", trace(""), trace("input"))
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["runs"][0] == {
        "path": trace(""),
        "ranks": 3,
        "calls": [5, 5, 5],
        "ended": [True, True, True],
    }
    first = told["first"]
    assert (first["number"], first["difference"], first["arrays"]) == (3, "inputs", ["x"])
    assert first["ranks"] == {"result": [0, 2], "inputs": [1]}
    assert (first["inputs_equal"], first["advice"]) == (False, "")
    assert (told["equal"], told["different"]) == (False, 2)
    lines = list(runs.text(told))
    assert "rank 1: the inputs differ (x)" in lines
    assert "ranks 0, 2: the results differ" in lines


def test_the_numbers_of_ranks_differ(trace):
    done = command("compare", trace(""), trace("one rank"))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[2:] == [
        "compared on rank 0: the order of collectives, and results that should be equal",
        # The sum that is rounded once and the gathered array before it are equal.
        "the first call that differs is number 3 on communicator 0.0:",
        lines[4],
        "rank 0: the results differ (result)",
        "Inputs of runs with different numbers of ranks are not compared. If they are parts of the "
        'same data, op="SUM_REPRODUCIBLE" rounds once, so that the result does not depend on the '
        "number of ranks (with sum_local also not on the parts).",
    ]


def test_equal_runs(trace):
    done = command("compare", trace(""), trace(""))
    assert (done.returncode, done.stdout.splitlines()[2:]) == (0, ["all calls are equal"])
    told = json.loads(command("compare", "--json", trace(""), trace("")).stdout)
    assert (told["equal"], told["different"], told["first"]) == (True, 0, None)


# ---- without ranks -------------------------------------------------------------------------------


def call(kind, x="1", result="2", number=1, *, said=None, shape="(3,)", **more):
    """Return a call as a line of a file has it."""
    array = f"an array of float64 with shape {shape}"
    facts = {"communicator": "0.0", "kind": kind, "name": None, "said": said or {}, "how": {}}
    facts |= {"line": "a.py:1", "inputs": [["x", array, x]], "place": number, "series": ""}
    return {**facts, "number": number, "result": [["result", array, result]], **more}


def write(path, *ranks, job="j", ended=True, version=1):
    """Write a trace with the calls of each rank."""
    path.mkdir(exist_ok=True)
    for rank, calls in enumerate(ranks):
        head = {"collectives_trace": version, "writer": "9.9", "job": job, "rank": rank}
        lines = [{**head, "size": len(ranks)}, *calls, *[{"end": len(calls)}] * ended]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (path / f"{rank}.jsonl").write_text(text)
    return str(path)


def compared(tmp_path, a, b):
    """Return the report on two runs, each with the calls of all ranks."""
    paths = write(tmp_path / "a", *a), write(tmp_path / "b", *b)
    return runs.report(*map(runs.read, paths))["first"]


@pytest.mark.parametrize(
    "other",
    [
        call("broadcast"),
        call("allreduce", shape="(4,)"),
        call("allreduce", said={"op": "MAX"}),
        call("allreduce", name="y"),
    ],
)
def test_another_call(tmp_path, other):
    base = [call("allreduce", said={"op": "SUM"}), call("barrier", number=2)]
    first = compared(tmp_path, [base, base], [base, [other, base[1]]])
    assert (first["difference"], first["number"], first["ranks"]) == ("call", 1, {"call": [1]})
    assert first["calls"][0] != first["calls"][1]
    assert first["advice"] == ""


def test_another_order(tmp_path):
    one = [call("barrier"), call("allreduce", number=2), call("scan", number=3)]
    two = [call("barrier"), call("scan", number=2), call("allreduce", number=3)]
    first = compared(tmp_path, [one], [two])
    assert (first["difference"], first["number"]) == ("call", 2)
    assert [each.partition(" ")[0] for each in first["calls"]] == ["allreduce", "scan"]


def test_one_is_longer(tmp_path):
    base = [call("allreduce"), call("allreduce", number=2)]
    first = compared(tmp_path, [base, base], [base, base[:1]])
    assert (first["difference"], first["number"], first["ranks"]) == ("call", 2, {"call": [1]})
    assert first["calls"][1] == "no such call"
    assert first["lines"] == ["a.py:1", None]


def test_an_error_differs(tmp_path):
    base = call("allreduce")
    first = compared(tmp_path, [[base]], [[{**base, "result": None, "error": "StallError"}]])
    assert first["difference"] == "error"
    assert first["calls"][1].endswith("raised StallError")


def test_two_communicators_and_the_background_have_their_own_numbers(tmp_path):
    sub = call("allreduce", communicator="0.1", place=2)
    named = [call("allreduce", series=f"background '{name}'", name=name, place=3) for name in "ab"]
    one = [call("allreduce"), sub, named[0], {**named[1], "place": 4}]
    two = [{**sub, "place": 1}, {**call("allreduce"), "place": 2}, {**named[1]}]
    assert compared(tmp_path, [one], [[*two, {**named[0], "place": 4}]]) is None
    first = compared(tmp_path, [one], [[*two, {**named[0], "place": 4, "inputs": []}]])
    assert (first["background"], first["number"]) == (True, 1)
    assert "name 'a'" in first["calls"][0]


def test_the_sender_of_another_message_is_named(tmp_path):
    sends = [call("barrier"), call("send", place=5, series="send dest 0", said={"dest": 0})]
    recvs = [call("recv", series="recv source 1", said={"source": 1}, inputs=[])]
    others = {**sends[1], "inputs": [["x", "an array of float64 with shape (3,)", "9"]]}
    got = {**recvs[0], "result": [["result", "an array of float64 with shape (3,)", "9"]]}
    first = compared(tmp_path, [recvs, sends], [[got], [sends[0], others]])
    assert (first["ranks"], first["calls"][0].partition(" ")[0]) == ({"inputs": [1]}, "send")
    first = compared(tmp_path, [recvs, sends], [[got], sends])
    assert first["ranks"] == {"result": [0]}


def test_no_advice_where_nothing_is_rounded(tmp_path):
    for op, advised in ("SUM", True), ("MAX", False):
        one = call("allreduce", said={"op": op})
        first = compared(tmp_path, [[one]], [[{**one, "result": [[*one["result"][0][:2], "9"]]}]])
        assert (first["difference"], first["inputs_equal"]) == ("result", True)
        assert bool(first["advice"]) is advised
    one = call("allreduce", said={"op": "SUM"}, inputs=None)  # not known
    first = compared(tmp_path, [[one]], [[{**one, "result": [["result", "a list", "9"]]}]])
    assert (first["inputs_equal"], first["advice"]) == (None, "")


def test_a_file_that_ends_in_a_record(tmp_path):
    path = write(tmp_path / "a", [call("allreduce"), call("scan", number=2)], ended=False)
    whole = (tmp_path / "a" / "0.jsonl").read_bytes()
    (tmp_path / "a" / "0.jsonl").write_bytes(whole[:-20])
    run = runs.read(path)
    assert ([each[2] for each in run.calls[0]], run.ended) == ([1], [False])
    assert "the records of rank 0 have no end" in next(runs.text(runs.report(run, run)))
    (tmp_path / "a" / "0.jsonl").write_bytes(whole.replace(b'"kind"', b"kind", 1))
    with pytest.raises(ArgumentError, match=r"0\.jsonl is damaged in line 2"):
        runs.read(path)


def test_other_files_are_named(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ArgumentError, match="empty is no trace of a run: it has no file 0"):
        runs.read(str(empty))
    with pytest.raises(ArgumentError, match="no such cannot be read: No such file or directory"):
        runs.read(str(tmp_path / "no such"))
    for text in ("", "[1]\n", '{"a": 1}\n', "\0\n", '{"collectives_trace": 1'):
        (empty / "0.jsonl").write_text(text)
        with pytest.raises(ArgumentError, match=r"0\.jsonl is no file of a trace"):
            runs.read(str(empty))
    done = command("compare", str(empty), str(empty))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"collectives: {empty}/0.jsonl is no file of a trace")
    with pytest.raises(ArgumentError, match=r"0\.jsonl is of another version of .*: 9\.9"):
        runs.read(write(tmp_path / "new", [], version=2))
    mixed = write(tmp_path / "mixed", [], [])
    (tmp_path / "mixed" / "1.jsonl").write_text(
        (tmp_path / "mixed" / "1.jsonl").read_text().replace('"j"', '"k"')
    )
    with pytest.raises(ArgumentError, match="mixed has the files of several runs"):
        runs.read(mixed)


def test_nan_is_compared_by_bits():
    nans = np.array([np.nan, np.nan])
    same = checksums.checksums("x", nans)
    assert same == checksums.checksums("x", nans.copy())
    nans.view(np.uint64)[1] ^= 1
    assert np.isnan(nans[1])
    assert checksums.checksums("x", nans) != same
    assert checksums.checksums("x", np.zeros(1)) != checksums.checksums("x", -np.zeros(1))


def test_a_value_that_cannot_be_compared_has_no_checksum():
    assert checksums.checksums("obj", object()) == [["obj", "an object", None]]


# ---- one rank ------------------------------------------------------------------------------------


def test_the_result_is_that_at_the_end_of_the_wait(tmp_path):
    text = """
    import numpy as np, collectives as cc
    comm = cc.world()
    def start(): return comm.iallreduce(np.ones(4))
    result = start().wait(); result *= 2
    request = start()
    assert isinstance(request, cc.Request) and repr(request).startswith("<Request")
    while not request.test(): pass
    request.wait()[:] = 3
    requests = [start(), start()]
    cc.wait_any(requests)[1][:] = 4
    cc.wait_all(requests)
    with comm.requests():
        start()
    comm.barrier()
    import asyncio
    async def main(): return await start()
    asyncio.run(main())
    left = start()
    """
    calls = in_order(traced(tmp_path / "run", text))
    results = [each.get("result") for each in calls if each["kind"] == "allreduce"]
    assert results[:-1] == [results[0]] * 6
    assert results[-1] in (None, results[0])  # not waited for
    assert calls[-1].get("unfinished", False) == (results[-1] is None)


def test_threads_on_two_communicators(tmp_path):
    text = """
    import threading
    import numpy as np, collectives as cc
    comms = [cc.world().dup(), cc.world().dup()]
    def work(k):
        for i in range(100):
            comms[k].allreduce(np.full(3, i + k))
    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for each in threads: each.start()
    for each in threads: each.join()
    """
    run, again = traced(tmp_path / "run", text), traced(tmp_path / "again", text)
    assert runs.differences(run, again) == []
    numbers = {}
    for key in run.calls[0]:
        numbers.setdefault(key[0], []).append(key[2])
    assert [sorted(each) for each in numbers.values()] == [list(range(1, 101))] * 2
    assert sorted(each["place"] for each in run.calls[0].values()) == list(range(1, 201))


def test_a_forked_child_does_not_write(tmp_path):
    text = """
    import os
    import numpy as np, collectives as cc
    cc.allreduce(np.ones(3))
    child = os.fork()
    if not child:
        try:
            cc.allreduce(np.ones(3))
        except cc.errors.CommunicatorError:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    cc.barrier()
    """
    run = traced(tmp_path / "run", text)
    assert [each["kind"] for each in in_order(run)] == ["allreduce", "barrier"]


def test_a_killed_rank_leaves_its_calls(tmp_path):
    text = """
    import os, signal
    import numpy as np, collectives as cc
    cc.allreduce(np.ones(3))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    result = alone(text, env={TRACE: str(tmp_path / "run")})
    assert result.status == -signal.SIGKILL
    run = runs.read(str(tmp_path / "run"))
    assert ([each["kind"] for each in in_order(run)], run.ended) == (["allreduce"], [False])


def test_the_files_of_an_earlier_run_are_replaced(tmp_path):
    write(tmp_path / "run", [call("scan")], [], [])
    (tmp_path / "run" / "9.jsonl").write_text("mine")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    text = "import collectives as cc; cc.barrier()"
    run = traced(tmp_path / "run", text)
    assert [each["kind"] for each in in_order(run)] == ["barrier"]
    assert sorted(os.listdir(tmp_path / "run")) == ["0.jsonl", "9.jsonl", "notes.txt"]


def test_off():
    text = """
    import sys
    import numpy as np, collectives as cc
    from collectives import background
    background.submit("allreduce", cc.allreduce(np.ones(3))).wait()
    assert "collectives.records.checksums" not in sys.modules
    assert not hasattr(cc.Communicator.allreduce, "__wrapped__")
    """
    result = alone(text, env={TRACE: ""})
    assert (result.status, result.err) == (0, ""), result


def test_a_full_disk_ends_the_trace_with_a_warning(tmp_path):
    text = """
    import os, resource, signal
    import numpy as np, collectives as cc
    cc.barrier()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = os.path.getsize(os.path.join(os.environ["COLLECTIVES_TRACE"], "0.jsonl"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, -1))
    for _ in range(3):
        assert cc.allreduce(np.ones(1))[0] == 1
    """
    result = alone(text, env={TRACE: str(tmp_path / "run")})
    assert result.status == 0, result
    assert result.err.count("the trace of this rank ends early: File too large") == 1
    assert [each["kind"] for each in in_order(runs.read(str(tmp_path / "run")))] == ["barrier"]


@pytest.mark.each_mpi("mpich")
def test_a_trace_that_cannot_be_written_is_an_error_on_all_ranks(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.jsonl").write_text("mine")
    (tmp_path / "file").write_text("mine")
    text = """
    import collectives as cc
    def refused(path, wanted):
        os.environ["COLLECTIVES_TRACE"] = os.path.join(folder, path)
        try:
            cc.world()
        except cc.errors.ArgumentError as error:
            assert wanted in str(error), error
        else:
            raise AssertionError(path)
    refused(rank, "COLLECTIVES_TRACE is ")
    refused("other", "rank 1: the trace ")
    refused("other", "1.jsonl is no file of a trace")
    refused("file", "rank 0: the trace ")
    refused("file/below", "cannot be written: Not a directory")
    os.environ["COLLECTIVES_TRACE"] = os.path.join(folder, "good")
    cc.barrier()
    """
    head = f"""
    import os
    folder = {str(tmp_path)!r}
    rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
    """
    passes(text, 2, head=head, env={TRACE: "somewhere"})
    assert (tmp_path / "other" / "1.jsonl").read_text() == "mine"
    assert runs.read(str(tmp_path / "good")).ended == [True, True]


def test_the_variable_is_set_too_late(tmp_path):
    text = f"""
    import os, collectives as cc
    os.environ["COLLECTIVES_TRACE"] = {str(tmp_path)!r}
    cc.barrier()
    """
    result = alone(text)
    assert result.status != 0
    assert "COLLECTIVES_TRACE was set after collectives was imported; set it before" in result.err


def test_the_trace_of_a_running_job_is_not_replaced(tmp_path):
    text = """
    import os, subprocess, sys
    import collectives as cc
    cc.barrier()
    code = "import collectives as cc; cc.barrier()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode, done
    assert "cannot be written: it is the trace of a job that still runs" in done.stderr, done
    """
    run = traced(tmp_path / "run", text)
    assert len(run.calls[0]) == 1


@pytest.mark.slow
def test_calls_of_torch_are_recorded(tmp_path):
    pytest.importorskip("torch")
    text = """
    import torch
    import collectives.torch as hvd
    hvd.init()
    hvd.allreduce(torch.ones(3, dtype=torch.bfloat16), name="x")
    handle = hvd.allreduce_async_(torch.ones(2), name="y")
    hvd.synchronize(handle)
    hvd.broadcast(torch.ones(2), root_rank=0)
    """
    run = in_order(traced(tmp_path / "run", text))
    calls = [each for each in run if each["kind"] != "allgather_object"]  # of init()
    found = [(each["kind"], each["name"]) for each in calls]
    assert found[:2] == [("allreduce", "allreduce.x"), ("allreduce", "allreduce.y")]
    assert [kind for kind, _ in found] == ["allreduce", "allreduce", "broadcast"]
    assert all(each["series"].startswith("background") and each["result"] for each in calls)


@pytest.mark.slow
def test_equal_runs_of_torch_distributed(tmp_path):
    pytest.importorskip("torch")
    text = """
import torch, collectives.torch
from torch import distributed as dist
dist.init_process_group("collectives")
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        done = command("run", "--no-mpi", "-n", "2", "-c", text, **{TRACE: path})
        assert (done.returncode, done.stderr) == (0, ""), done
    a, b = map(runs.read, paths)
    assert "allreduce" in [each["kind"] for each in in_order(a)]
    assert runs.differences(a, b) == []
