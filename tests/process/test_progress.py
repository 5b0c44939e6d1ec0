"""Operations in flight while the program is elsewhere: by the thread that moves them, and without.

In most programs rank 0 starts something and enters MPI's own barrier, which the others reach only
when this operation is complete.
"""

import json
import re
import textwrap

import programs
import pytest
from jobs import DEADLINE_PASSED
from programs import OPEN_MPI, program

pytestmark = pytest.mark.each_mpi("openmpi")
# The shared part is our own code, so that one MPI proves it for all.
WAYS = {"messages": "0"} if OPEN_MPI else {"messages": "0", "shared": "auto"}
either = pytest.mark.parametrize("shm", WAYS.values(), ids=WAYS)

HEAD = """
import os, signal, sys, threading, time
import numpy as np
from mpi4py import MPI
import collectives as cc
W = MPI.COMM_WORLD
comm = cc.Communicator(W)

def elsewhere(wait):
    # Rank 0 is in MPI until the others have what they wait for.
    if W.rank == 0:
        W.Barrier()
        return wait()
    result = wait()
    W.Barrier()
    return result

def threads():
    # The threads of this process that the library has started, as folders of /proc.
    tasks = [f"/proc/self/task/{each}" for each in os.listdir("/proc/self/task")]
    return [each for each in tasks if open(f"{each}/comm").read() == "collectives\\n"]

def says(wait):
    # Print what each rank is told, twice; then end in spite of what others may still wait for.
    told = []
    for turn in range(2):
        try:
            wait()
        except Exception as error:
            told.append(repr(error))
    told = W.gather(told)
    for each in sum(told or [], []):
        print(each, flush=True)
    time.sleep(0.5)
    W.Barrier()
    os._exit(0)

def until(condition):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)
"""

BARRIER = """
q = comm.iallreduce(np.ones(2_000_000))
assert (elsewhere(q.wait) == W.size).all()
"""


def runs(text, shm="0", ranks=3, ends_well=True):
    """Run a program with the thread; return what it left.

    Open MPI does not let a program end well that does not finalise it.
    """
    chosen = {"COLLECTIVES_SHM": shm, "COLLECTIVES_PROGRESS": "thread"}
    result = program(text, ranks, env=chosen, head=HEAD)
    assert result.status == 0 or (not ends_well and result.status != DEADLINE_PASSED), result
    return result


def fails(text, shm="0", ranks=3, env=None):
    """Run a program that ends with an error of its own; return what it left."""
    chosen = {"COLLECTIVES_SHM": shm, "COLLECTIVES_TIMEOUT": "2", **(env or {})}
    return programs.fails(text, ranks, env=chosen, head=HEAD)


@either
def test_a_rank_in_a_barrier_of_mpi(shm):
    runs(BARRIER, shm)


@either
def test_the_thread_polls_a_resting_program_only_while_something_moves(shm):
    """It waits a second for a rank that does not come, and sleeps most of the time."""
    runs(
        """
        if W.rank:
            W.Recv(np.empty(1))
            q = comm.iallreduce(np.ones(10))
        else:
            q = comm.iallreduce(np.ones(10))
            used = time.process_time()
            time.sleep(1)
            used = time.process_time() - used
            assert used < 0.5, used
            W.Send(np.empty(1), 1)
        q.wait()
        """,
        shm,
        ranks=2,
    )


@either
def test_without_the_thread_the_error_says_what_helps(shm):
    result = fails(BARRIER, shm)
    assert re.search(
        r"StallError: allreduce .* on 3 ranks: rank [12] timed out after 2 s: .*"
        r"\. If ranks? [0-2, -]+ started this with a nonblocking call, it moves on only inside the "
        r"library: call wait\(\) before MPI's own calls, or set COLLECTIVES_PROGRESS=thread\n",
        result.err,
    ), result


@either
def test_what_has_nothing_to_do_with_it_is_not_said(shm):
    """With the thread, or where the other rank has not even begun."""
    env = {"COLLECTIVES_PROGRESS": "thread" if shm == "0" else "0"}
    call = "if W.rank == 0:\n    comm.allreduce(np.ones(9))\nW.Barrier()\n"
    result = fails(call, shm, ranks=2, env=env)
    assert "rank 0 timed out after 2 s: " in result.err
    assert "nonblocking" not in result.err


@either
def test_every_kind_of_start(shm):
    runs(
        """
        x = np.full(500_000, W.rank + 1.0)
        planned = comm.plan("allreduce", x, out=np.empty_like(x))
        for turn in range(3):
            planned.start()
            assert (elsewhere(planned.wait) == 6).all()
        many = comm.iallreduce_many([x, x[:1000]])
        assert all((y == 6).all() for y in elsewhere(many.wait))
        q = comm.ibroadcast(x, root=2)
        assert (elsewhere(q.wait) == 3).all()
        q = comm.ialltoall(np.repeat(x[:3], 100_000))
        assert (elsewhere(q.wait).reshape(3, -1) == [[1], [2], [3]]).all()
        out = np.empty_like(x)
        q = comm.isendrecv(x, (W.rank + 1) % 3, out, (W.rank - 1) % 3)
        elsewhere(q.wait)
        assert (out == (W.rank - 1) % 3 + 1).all()
        """,
        shm,
    )


def test_many_at_once():
    runs("""
        requests = [comm.iallreduce(np.full(20_000, k)) for k in range(300)]
        results = elsewhere(lambda: [each.wait() for each in reversed(requests)])
        assert all((y == 3 * k).all() for k, y in enumerate(reversed(results)))
        """)


@either
def test_two_communicators(shm):
    """Rank 0 waits for neither; the others wait for the later one first."""
    runs(
        """
        other = comm.dup()
        for turn in range(10):
            a = comm.iallreduce(np.full(300_000, turn))
            b = other.iallreduce(np.full(300_000, turn + 1))
            comm.allreduce(np.ones(3))  # a blocking call goes beside them
            elsewhere(lambda: (b.wait(), a.wait()))
            assert (a.wait() == 3 * turn).all() and (b.wait() == 3 * turn + 3).all()
        """,
        shm,
    )


@either
def test_communicators_are_freed(shm):
    """A communicator that is gone is not touched; requests in flight are still refused."""
    runs(
        """
        for turn in range(20):
            with comm.dup() as other:
                q = other.iallreduce(np.full(50_000, turn))
                assert (elsewhere(q.wait) == 3 * turn).all()
                other.iallreduce(np.ones(10))  # nobody waits for this one
                other.barrier()
                q = other.ibroadcast(np.ones(3), root=1) if W.rank == 0 else None
                if W.rank == 0:
                    try:
                        other.free()
                        raise SystemExit("freed")
                    except cc.errors.CommunicatorError as error:
                        assert "operations are in flight" in str(error), error
                W.Barrier()
                q = q or other.ibroadcast(np.ones(3), root=1)
                q.wait()
        """,
        shm,
    )


def test_it_starts_late_and_sleeps():
    """It starts with the first nonblocking call; with nothing in flight it does not run."""
    runs("""
        def switches():
            text = open(threads()[0] + "/status").read()
            return text[text.index("voluntary_ctxt_switches"):]
        def sleeps():
            before = switches()
            time.sleep(0.05)
            return switches() == before
        comm.allreduce(np.ones(3))
        assert not threads()
        q = comm.iallreduce(np.ones(2_000_000))
        assert len(threads()) == 1
        elsewhere(q.wait)
        until(sleeps)
        q = comm.iallreduce(np.ones(2_000_000))
        assert len(threads()) == 1
        elsewhere(q.wait)
        comm.barrier()
        q = comm.iallreduce(np.ones(3)) if W.rank == 0 else None
        if q:
            assert not sleeps()  # the others have not come
        W.Barrier()
        (q or comm.iallreduce(np.ones(3))).wait()
        until(sleeps)
        """)


@either
def test_a_fold_written_in_python(shm):
    """The thread takes the GIL for it."""
    runs(
        """
        where = set()
        def add(a, b):
            where.add(threading.get_ident())
            b += a
        op = cc.reduction(add)
        q = comm.iallreduce(np.ones(200_000), op=op, algorithm="ring")
        assert (elsewhere(q.wait) == 3).all()
        assert W.rank or where - {threading.get_ident()}
        """,
        shm,
    )


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("raise ValueError('no good')", "ValueError('no good')"),
        ("comm.barrier()", "this thread is inside a collective already"),
    ],
    ids=["raises", "calls"],
)
def test_the_error_of_a_fold_is_raised_by_wait(line, text):
    result = runs(
        f"""
        def add(a, b):
            {line}
        q = comm.iallreduce(np.ones(9), op=cc.reduction(add), algorithm="ring")
        until(lambda: q.state() is None)
        says(q.wait)
        """,
        ranks=2,
        ends_well=False,
    )
    assert result.out.count(text) == 4, result


@either
def test_a_mismatch_is_raised_by_wait(shm):
    result = runs(
        """
        q = comm.iallreduce(np.ones(90 + 100 * W.rank), algorithm="ring")
        until(lambda: q.state() is None)
        says(q.wait)
        """,
        shm,
        ranks=2,
        ends_well=False,
    )
    assert len(re.findall(r"MismatchError\(.*(do not agree|bytes from)", result.out)) == 4, result


def test_an_interrupt_does_not_end_the_operation():
    runs(
        """
        if W.rank == 0:
            q = comm.iallreduce(np.ones(500_000))
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                q.wait()
                raise SystemExit("not interrupted")
            except KeyboardInterrupt:
                pass
        W.Barrier()
        if W.rank:
            q = comm.iallreduce(np.ones(500_000))
        assert (elsewhere(q.wait) == 3).all()
        """,
        shm="auto",
    )


def test_a_forked_child_has_no_thread():
    runs("""
        q = comm.iallreduce(np.ones(2_000_000)) if W.rank == 0 else None
        comm_of_mpi = W.Dup()
        child = os.fork()
        if child == 0:
            assert not threads()
            repr(q), repr(comm)
            try:
                comm.iallreduce(np.ones(3))
            except cc.errors.CommunicatorError:
                sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        q = q or comm.iallreduce(np.ones(2_000_000))
        assert (elsewhere(q.wait) == 3).all()
        """)


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit()",
        "MPI.Finalize()\nassert not threads()",
        "cc.world().iallreduce(np.ones(9)); comm.barrier()",
    ],
    ids=["falls off", "exits", "finalises", "forgets"],
)
def test_a_quiet_end(end):
    result = runs(BARRIER + f"cc.world().ibarrier().wait()\n{end}\n")
    assert result.err == "", result


@either
@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("", "rank 0 exits with operations in flight: allreduce"),
        (
            "raise ValueError('unlucky')",
            "rank 0 of 2 ends the job because of an uncaught exception",
        ),
    ],
    ids=["exits", "raises"],
)
def test_the_end_with_an_operation_in_flight(shm, end, text):
    result = fails(
        f"""
        if W.rank:
            time.sleep(20)
        q = comm.iallreduce(np.ones(500_000))
        {end}
        """,
        shm,
        ranks=2,
        env={"COLLECTIVES_PROGRESS": "thread"},
    )
    assert text in result.err, result
    assert result.seconds < 15
    assert "Segmentation" not in result.err


def test_a_timeline_has_what_the_thread_did(tmp_path):
    path = tmp_path / "out.json"
    runs(f"with comm.timeline({str(path)!r}):" + textwrap.indent(BARRIER, "    "), shm="auto")
    names = [each.get("name", "") for each in json.loads(path.read_text())["traceEvents"]]
    assert sum("allreduce" in name for name in names) >= 3


@pytest.mark.parametrize("level", ["serialized", "single"])
def test_the_thread_level_is_too_low(level):
    env = {"COLLECTIVES_PROGRESS": "thread", "MPI4PY_RC_THREAD_LEVEL": level}
    result = fails("", ranks=2, env=env)
    given = level if f"'{level}'" in result.err else "funneled"  # MPI may give more than asked
    assert (
        f"CommunicatorError: COLLECTIVES_PROGRESS is 'thread', and MPI was initialised with the "
        f"thread level '{given}': the thread would call MPI while the program does."
    ) in result.err, result
