"""Programs that do not end well: exceptions, children, forgotten communicators."""

import re

import pytest
from jobs import DEADLINE_PASSED
from programs import OPEN_MPI, alone, fails, passes, program

pytestmark = pytest.mark.each_mpi("openmpi")

SOON = 20  # seconds in which a job must be over that would otherwise wait until its deadline
PATIENT = {"COLLECTIVES_TIMEOUT": "600"}

ENDS = "collectives: rank 1 of 2 ends the job because of an uncaught exception"

UNLUCKY = """
import numpy as np, collectives as cc
comm = cc.world()
comm.barrier()
if comm.rank == 1:
    raise ValueError("this rank is unlucky")
comm.allreduce(np.ones(3))
"""


def ends_at_once(text, **options):
    """Run a program that must end with an error long before its deadline; return what it left."""
    result = fails(text, env=PATIENT, **options)
    assert result.seconds < SOON, result
    return result


# -- uncaught exceptions ---------------------------------------------------------------------


def test_an_uncaught_exception_ends_the_job():
    result = ends_at_once(UNLUCKY)
    assert ENDS in result.err
    assert "ValueError: this rank is unlucky" in result.err
    assert result.err.index("Traceback") < result.err.index("ValueError") < result.err.index(ENDS)
    assert "rank 0" not in result.err.partition(ENDS)[0]


def test_others_in_mpi_itself_end_too():
    result = ends_at_once("""
        from mpi4py import MPI
        import collectives as cc
        if cc.rank() == 1:
            raise ValueError("this rank is unlucky")
        MPI.COMM_WORLD.Barrier()
        """)
    assert ENDS in result.err


def test_opt_out():
    """The rank ends alone, and the one that waits for it is told why."""
    result = fails(UNLUCKY, env=PATIENT | {"COLLECTIVES_ABORT": "0"})
    assert "this rank is unlucky" in result.err
    assert "ends the job" not in result.err
    told = "PeerAbortedError: rank 1 gave up: ValueError: this rank is unlucky"
    assert OPEN_MPI or told in result.err  # Open MPI's launcher may be faster


def test_with_the_runner_of_mpi4py():
    """Two that do the same do not disturb each other."""
    result = ends_at_once(UNLUCKY, options=("-m", "mpi4py"))
    assert result.err.count("ValueError: this rank is unlucky") == 1
    assert ENDS in result.err


def test_a_hook_of_the_program_is_called_first():
    result = ends_at_once(
        UNLUCKY,
        head="""
        import sys
        sys.excepthook = lambda kind, error, trace: print("mine:", error, flush=True)
        """,
    )
    assert "mine: this rank is unlucky" in result.out
    assert "Traceback" not in result.err
    assert ENDS in result.err


def test_a_hook_of_the_program_that_fails():
    result = ends_at_once(
        UNLUCKY,
        head="""
        import sys
        def hook(kind, error, trace):
            raise RuntimeError("and so is its hook")
        sys.excepthook = hook
        """,
    )
    assert ENDS in result.err


def test_an_interrupt_ends_the_job():
    result = ends_at_once("""
        import os, signal, threading, numpy as np, collectives as cc
        comm = cc.world()
        comm.barrier()
        if comm.rank == 1:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.kill(os.getpid(), signal.SIGINT)
        comm.allreduce(np.ones(3))
        """)
    assert "KeyboardInterrupt" in result.err
    assert "collectives: rank 1 of 2 was interrupted" in result.err


def test_a_thread_that_communicates_ends_the_job():
    result = ends_at_once("""
        import threading, numpy as np, collectives as cc
        comm, other = cc.world(), cc.world().dup()
        def work():
            comm.barrier()
            if comm.rank == 1:
                raise ValueError("this thread is unlucky")
            comm.barrier()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        other.barrier()
        """)
    assert "this thread is unlucky" in result.err
    assert ENDS in result.err


def test_a_thread_that_does_not_is_the_programs_own_affair():
    result = passes("""
        import threading, numpy as np, collectives as cc
        comm = cc.world()
        def work():
            raise ValueError("this thread is unlucky")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        def leave():
            comm.barrier()
            raise SystemExit(3)
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        comm.barrier()
        print("done", flush=True)
        """)
    assert result.out.count("done") == 2
    assert result.err.count("this thread is unlucky") == 2


def test_one_rank_just_raises():
    result = alone(UNLUCKY.replace("== 1", "== 0"))
    assert result.status == 1
    assert "this rank is unlucky" in result.err
    assert "ends the job" not in result.err


@pytest.mark.parametrize("way", ["option", "environment", "prompt"])
def test_a_person_at_a_prompt_goes_on(way):
    """An exception before or at one is not the end."""
    first = "import os; os.dup2(os.open(os.devnull, os.O_RDONLY), 0)\n"  # nobody types anything
    if way == "prompt":
        first += "import sys; sys.ps1 = '>>> '\n"
    result = program(
        """
            import collectives as cc
            cc.barrier()
            raise ValueError("a slip")
            """,
        head=first,
        options=("-i",) if way == "option" else (),
        env={"PYTHONINSPECT": "1"} if way == "environment" else {},
    )
    assert result.status != DEADLINE_PASSED, result
    assert "a slip" in result.err
    assert "ends the job" not in result.err


def test_after_finalize():
    result = fails("""
        from mpi4py import MPI
        import collectives as cc
        cc.barrier()
        MPI.Finalize()
        raise ValueError("too late to matter")
        """)
    assert "too late to matter" in result.err
    assert "ends the job" not in result.err


# -- forked children -------------------------------------------------------------------------

FORKED = r"this process was forked from rank [01] of 2, and MPI does not survive a fork"


def test_a_forked_child_is_told():
    """At its first call, whatever that is; and its parent goes on."""
    result = passes("""
        import os, sys, numpy as np, collectives as cc
        from collectives.errors import CommunicatorError
        comm = cc.world()
        spare = comm.dup()
        planned = comm.plan("allreduce", np.ones(3))
        pending = comm.iallreduce(np.ones(200000))
        complete = comm.iallreduce(np.ones(3))
        complete.wait()
        child = os.fork()
        if child == 0:
            calls = [
                lambda: comm.allreduce(np.ones(3)),
                lambda: comm.ibarrier(),
                lambda: spare.barrier(),
                lambda: spare.dup(),
                lambda: spare.split(0),
                lambda: spare.free(),
                lambda: cc.Communicator(),
                lambda: cc.world(),
                lambda: cc.rank(),
                lambda: cc.allreduce(np.ones(3)),
                pending.test,
                pending.wait,
                complete.wait,
                planned,
                planned.start,
                lambda: comm.send(np.ones(3), 0),
            ]
            for number, call in enumerate(calls):
                try:
                    call()
                except CommunicatorError as error:
                    print(f"told {number}: {error}", flush=True)
            assert (comm.rank, comm.size) != (0, 0) and repr(pending)
            del comm, spare, pending
            sys.exit(7)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 7, status
        assert (pending.wait() == 2).all()
        assert (comm.allreduce(np.ones(3)) == 2).all()
        print("parent done", flush=True)
        """)
    assert result.out.count("parent done") == 2
    told = set(re.findall(rf"told (\d+): {FORKED}", result.out))
    assert told == {str(k) for k in range(16)}, result
    assert "ends the job" not in result.err


@pytest.mark.parametrize("first", ["", "from mpi4py import MPI"])
def test_how_children_end(first):
    """Neither our exit functions nor mpi4py's touch MPI in them, and the job ends well."""
    result = passes(f"""
        {first}
        import atexit, os, sys, numpy as np, collectives as cc
        atexit.register(print, "exit functions run", flush=True)
        endings = [
            ("pass", 0),
            ("sys.exit()", 0),
            ("sys.exit(7)", 7),
            ("sys.exit('a reason')", 1),
            ("os._exit(9)", 9),
            ("raise ValueError('a child is unlucky')", 1),
            ("cc.barrier()", 1),
        ]
        cc.barrier()
        for ending, wanted in endings:
            pending = cc.iallreduce(np.ones(3))
            child = os.fork()
            if child == 0:
                exec(ending)
                break
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == wanted, (ending, status)
            assert (pending.wait() == 2).all()
            assert (cc.allreduce(np.ones(3)) == 2).all()
        else:
            print("parent done", flush=True)
        """)
    assert result.out.count("parent done") == 2
    assert result.out.count("exit functions run") == 2 * 7  # os._exit() runs none
    assert "ends the job" not in result.err
    assert "in flight" not in result.err


def test_a_child_of_the_runner():
    """mpi4py's runner would abort the job for a child's exit status."""
    passes(
        """
        import os, sys, collectives as cc
        cc.barrier()
        child = os.fork()
        if child == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        cc.barrier()
        """,
        options=("-m", "mpi4py"),
    )


def test_multiprocessing_with_fork():
    result = passes("""
        import multiprocessing, numpy as np, collectives as cc
        comm = cc.world()
        def work(x):
            try:
                comm.barrier()
            except cc.CollectivesError as error:
                return type(error).__name__, x * comm.rank
        total = comm.allreduce(np.ones(3))
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for x, result in enumerate(pool.map(work, range(3))):
                assert result == ("CommunicatorError", x * comm.rank), result
        process = multiprocessing.get_context("fork").Process(target=comm.barrier)
        process.start()
        process.join()
        assert process.exitcode == 1
        comm.barrier()
        print("parent done", flush=True)
        """)
    assert result.out.count("parent done") == 2
    assert re.search(f"CommunicatorError: {FORKED}", result.err)


def test_forked_while_another_thread_communicates():
    """Its locks are held in the child by nobody who would release them."""
    result = passes("""
        import os, sys, threading, time, numpy as np, collectives as cc
        comm = cc.world()
        done = []
        def work():
            while not comm.allreduce(np.array([bool(done)]), op=cc.LAND)[0]:
                comm.iallreduce(np.ones(2000)).wait()
        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                try:
                    comm.barrier()
                except cc.CollectivesError:
                    sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        done.append(True)
        thread.join()
        print("parent done", flush=True)
        """)
    assert result.out.count("parent done") == 2


def test_a_child_that_was_forked_before_the_first_use():
    """It is not a child of anybody who communicates: nothing is refused to it."""
    result = alone("""
        import os, sys, collectives as cc
        child = os.fork()
        if child == 0:
            sys.exit(cc.size())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert cc.size() == 1
        """)
    assert result.status == 0, result


# -- forgotten communicators -----------------------------------------------------------------

FORGOTTEN = """
    import gc, sys, warnings, numpy as np, collectives as cc
    world = cc.world()
    def make():
        return world.dup()
    def begin(comm):
        return comm.iallreduce(np.ones(20000), algorithm="ring")
    comm = make()
    world.barrier()
    if world.rank == 0:
        begin(comm)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del comm
            gc.collect()
        assert [each.category for each in caught] == [ResourceWarning], caught
        print(caught[0].message, flush=True)
        world.barrier()
    else:
        world.barrier()
        begin(comm)
    for _ in range(20):
        assert (world.allreduce(np.ones(1000)) == 2).all()
    """


def test_a_communicator_that_is_collected_with_operations_in_flight():
    result = passes(FORGOTTEN)
    lines = [line.strip() for line in result.out.splitlines()]
    assert re.fullmatch(
        r"<collectives\.Communicator, rank 0 of 2 on 1 host by \w+> was garbage-collected with "
        r"operations in flight; wait for every request",
        lines[0],
    )
    assert lines[1].startswith("allreduce 'ring' on 2 ranks: round 1, segment 1 of 1 waits for")
    assert lines[1].endswith("started at <string>:7")
    assert "shows the whole tracebacks" in lines[2]
    assert lines[3] == "the communicator was made at (most recent call last):"
    assert lines[4] == 'File "<string>", line 8, in <module>'
    assert lines[5] == 'File "<string>", line 5, in make'


def test_the_whole_traceback_of_the_start():
    result = passes(FORGOTTEN, options=("-X", "dev"))
    lines = [line.strip() for line in result.out.splitlines()]
    assert lines[2] == 'File "<string>", line 11, in <module>'
    assert lines[3] == 'File "<string>", line 7, in begin'
    assert "in iallreduce" in lines[4]


def test_no_warning_without_need():
    """Freed, complete, or merely not freed; and none when Python ends."""
    result = passes(
        """
        import gc, numpy as np, collectives as cc
        world = cc.world()
        for free in (True, False):
            comm = world.dup()
            request = comm.iallreduce(np.ones(3))
            request.wait()
            if free:
                comm.free()
            del comm, request
            gc.collect()
        comm = world.dup()
        comm.iallreduce(np.ones(3))
        world.barrier()
        """,
        options=("-W", "error::ResourceWarning"),
    )
    assert "ResourceWarning" not in result.err


def test_where_a_pending_request_was_started():
    result = fails("""
        import numpy as np, collectives as cc
        comm = cc.world()
        comm.barrier()
        if comm.rank == 0:
            request = cc.iallreduce(np.ones(3), algorithm="tree")
        """)
    assert "waits for rank 1 to send, started at <string>:6." in result.err


# -- MPI's thread levels ---------------------------------------------------------------------


@pytest.mark.parametrize("level", ["serialized", "multiple"])
@pytest.mark.parametrize("validate", ["0", "1"])
def test_threads_where_mpi_takes_one_at_a_time(level, validate):
    result = passes(
        """
        import threading, numpy as np, collectives as cc
        comms = [cc.world().dup() for _ in range(3)]
        wrong = []
        def work(k):
            comm = comms[k]
            for turn in range(60):
                y = comm.allreduce(np.full(100, turn + k))
                z = comm.iallreduce(np.full(50, turn))
                u = comm.ibroadcast(np.full(9000, turn + comm.rank), root=1)
                if not (y == 2 * (turn + k)).all() or not (u.wait() == turn + 1).all():
                    wrong.append((k, turn))
                if not (z.wait() == 2 * turn).all():
                    wrong.append((k, turn))
        order = range(3) if cc.rank() else reversed(range(3))
        threads = [threading.Thread(target=work, args=(k,)) for k in order]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not wrong, wrong
        from mpi4py import MPI
        print(f"level {MPI.Query_thread() == MPI.THREAD_MULTIPLE}", flush=True)
        """,
        env={"MPI4PY_RC_THREAD_LEVEL": level, "COLLECTIVES_VALIDATE": validate},
    )
    assert result.out.count(f"level {level == 'multiple'}") == 2


@pytest.mark.parametrize("level", ["funneled", "single"])
def test_threads_where_mpi_takes_the_main_one_only(level):
    result = passes(
        """
        import threading, numpy as np, collectives as cc
        from mpi4py import MPI
        from collectives.errors import CommunicatorError
        told = []
        def work(function):
            try:
                function()
            except CommunicatorError as error:
                told.append(str(error))
        def in_thread(function):
            thread = threading.Thread(target=work, args=(function,))
            thread.start()
            thread.join()
        in_thread(cc.world)
        comm = cc.world()
        request = comm.iallreduce(np.ones(3))
        calls = [comm.barrier, comm.ibarrier, comm.dup, comm.free, request.test, request.wait]
        for call in (*calls, cc.Communicator):
            in_thread(call)
        assert (request.wait() == 2).all()
        comm.barrier()
        assert all("only its main thread may communicate" in each for each in told), told
        print(f"told {len(told)}", flush=True)
        """,
        env={"MPI4PY_RC_THREAD_LEVEL": level},
    )
    assert result.out.count("told 8") == 2


def test_the_first_use_in_several_threads():
    """They make one default communicator, not several."""
    result = passes("""
        import threading, numpy as np, collectives as cc
        from mpi4py import MPI
        start = threading.Barrier(4)
        worlds = []
        def work():
            start.wait()
            worlds.append(cc.world())
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(set(map(id, worlds))) == 1
        assert (cc.allreduce(np.ones(3)) == 2).all()
        print("done", flush=True)
        """)
    assert result.out.count("done") == 2
