"""Ranks that share memory and end badly, stop for a while, or have no room."""

import ctypes
import os
import shutil

import pytest
from jobs import run
from programs import OPEN_MPI, passes
from ranks import BOUND, Ranks

pytestmark = pytest.mark.any_mpi

# Of memory, which no MPI knows of.
KINDS = ["memfd"] if OPEN_MPI else ["memfd", "file"]


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path)


def who_lost(notes, dead):
    """Check that all others name the dead rank; return the seconds until the last one did."""
    others = {rank: each for rank, each in notes.items() if rank != dead}
    for each in others.values():
        assert each["error"] == "PeerLostError", notes
        assert f"rank {dead} (process {notes[dead]['pid']}) has died while rank " in each["text"]
    return max(each["at"] for each in others.values()) - notes[dead]["at"]


# -- ranks that die ----------------------------------------------------------------------------


@pytest.mark.parametrize("shm", KINDS)
def test_a_rank_is_killed(ranks, shm):
    """In the middle of whatever it does."""
    notes = ranks(
        """
        if rank == 1:
            threading.Timer(0.3, die).start()
        note_end(work)
        leave()
        """,
        4,
        env={"COLLECTIVES_SHM": shm},
        survive=True,
    )
    assert who_lost(notes, 1) < BOUND


def test_a_rank_is_killed_inside_of_mpi(ranks):
    """While all make a communicator, which MPI would wait for for ever."""
    notes = ranks(
        """
        if rank == 1:
            comm._meeting.split = lambda *args: die()
        note_end(lambda: comm.split(0))
        leave()
        """,
        env={"COLLECTIVES_TIMEOUT": "600"},
        survive=True,
    )
    assert who_lost(notes, 1) < BOUND


@pytest.mark.parametrize("call", ["wait()", "test()"])
def test_requests_of_a_rank_that_dies(ranks, call):
    """Also who only asks again and again hears of it."""
    notes = ranks(
        f"""
        comm.barrier()
        if rank == 1:
            die()
        request = comm.iallreduce(np.ones(3))
        def calls():
            while not request.{call}:
                pass
        note_end(calls)
        leave()
        """,
        survive=True,
    )
    assert who_lost(notes, 1) < BOUND


def test_a_rank_dies_whose_child_lives(ranks):
    """The process that was a rank counts, not another one that has its files open."""
    notes = ranks(
        """
        if rank == 2:
            if os.fork() == 0:
                os.closerange(0, 3)
                leave()
            die()
        note_end(work)
        leave()
        """,
        survive=True,
    )
    assert who_lost(notes, 2) < BOUND


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "fork"), reason="the C library has no fork")
def test_a_rank_dies_whose_child_of_another_library_lives(ranks):
    """One that was forked without a word to Python."""
    notes = ranks(
        """
        if rank == 2:
            import ctypes
            if ctypes.PyDLL(None).fork() == 0:
                os.closerange(0, 3)
                leave()
            die()
        note_end(work)
        leave()
        """,
        survive=True,
    )
    assert who_lost(notes, 2) < BOUND


OPENS_AND_CLOSES = """
def own_files():
    folder = "/proc/self/fd"
    for each in os.listdir(folder):
        try:
            if "collectives" in os.readlink(f"{folder}/{each}"):
                yield int(each)
        except FileNotFoundError:  # that of the folder
            pass
def opens_and_closes():
    for each in list(own_files()):
        os.close(os.open(f"/proc/self/fd/{each}", os.O_RDWR))
"""


@pytest.mark.parametrize("closes", ["opens_and_closes()", "[os.close(n) for n in own_files()]"])
def test_a_rank_lives_whose_files_are_closed(ranks, closes):
    """A library opens or closes all files of its process. A later death is noticed."""
    notes = ranks(
        OPENS_AND_CLOSES
        + f"""
if rank == 1:
    {closes}
    time.sleep(1)  # the others look around meanwhile
work(0.5)
comm.barrier()
if rank == 1:
    die()
note_end(work)
leave()
""",
        survive=True,
        env={"COLLECTIVES_SHM": "memfd"},
    )
    assert who_lost(notes, 1) < BOUND


@pytest.mark.skipif(OPEN_MPI, reason="Open MPI crashes where two ranks have the process ID 1")
def test_a_rank_lives_in_a_namespace_of_its_own():
    """If numbers of processes say nothing, the lock does."""
    unshare = ["unshare", "--pid", "--fork"]
    if not shutil.which("unshare") or run([*unshare, "true"], deadline=60).status:
        pytest.skip("this user cannot make namespaces (unshare --pid)")
    again = f"""
import os, sys
if "INSIDE" not in os.environ:
    os.environ["INSIDE"] = "1"
    os.execvp("unshare", {unshare} + [sys.executable, *sys.orig_argv[1:]])
import time, numpy as np, collectives as cc
comm = cc.world()
"""
    result = passes(
        again
        + OPENS_AND_CLOSES
        + """
if comm.rank == 1:
    opens_and_closes()
    time.sleep(1)
assert (comm.allreduce(np.ones(3)) == comm.size).all()
print(f"transport {comm.transport}\\n", end="", flush=True)
"""
    )
    assert result.out.count("transport shm") == 2


def test_a_rank_dies_while_others_are_busy(ranks):
    """They hear of it in their next call; and of several, each may name another."""
    notes = ranks(
        """
        comm.barrier()
        if rank in (0, 3):
            die()
        time.sleep(0.5)
        note_end(work)
        leave()
        """,
        4,
        survive=True,
    )
    for rank in (1, 2):
        assert notes[rank]["error"] == "PeerLostError"
        assert any(
            f"rank {dead} (process {notes[dead]['pid']}) has" in notes[rank]["text"]
            for dead in (0, 3)
        )


@pytest.mark.parametrize("shm", KINDS)
def test_all_ranks_are_killed(ranks, shm):
    notes = ranks(
        """
        threading.Timer(0.2, die).start()
        note_end(work)
        """,
        env={"COLLECTIVES_SHM": shm},
    )
    assert "killed" in [each["error"] for each in notes.values()]


def test_a_rank_dies_as_segments_are_made(ranks):
    """The file has no name that somebody would have to take away."""
    notes = ranks(
        """
        from collectives.process import segment
        if rank == 1:
            segment._open = lambda *offer: die()
        cc.Communicator()
        """,
        env={"COLLECTIVES_SHM": "file"},
    )
    assert notes[1]["error"] == "killed"


# -- ranks that end early ----------------------------------------------------------------------


def test_a_rank_raises(ranks):
    """The others hear what it said."""
    notes = ranks(
        """
        comm.barrier()
        if rank == 1:
            raise ValueError("this rank is unlucky")
        note_end(work)
        """,
        env={"COLLECTIVES_ABORT": "0"},
        survive=True,
    )
    for rank in (0, 2):
        assert notes[rank]["error"] == "PeerAbortedError", notes
        assert notes[rank]["text"] == "rank 1 gave up: ValueError: this rank is unlucky"


def test_a_rank_leaves_in_good_order(ranks):
    """A rank that does not need it any more is not disturbed."""
    notes = ranks("""
        comm.broadcast(np.ones(3), root=1, algorithm="flat")
        if rank != 1:
            if rank == 2:
                time.sleep(0.5)
            note_end(work)
        """)
    assert ranks.result.status == 0, ranks.result
    assert notes[1]["error"] == "nothing yet"
    for rank in (0, 2):
        assert notes[rank]["error"] == "PeerLostError", notes
        assert f"rank 1 (process {notes[1]['pid']}) has left and never " in notes[rank]["text"]


def test_the_last_message_of_a_rank_that_leaves(ranks):
    """It has been published: who comes later finds it."""
    notes = ranks("""
        def rest():
            assert (comm.broadcast(np.full(3, rank), root=1, algorithm="chain") == 1).all()
        if rank == 1:
            rest()
        else:
            time.sleep(0.3 * rank)
            note_end(rest)
        """)
    assert ranks.result.status == 0, ranks.result
    assert notes[0]["error"] is notes[2]["error"] is None, notes


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("shm", KINDS)
@pytest.mark.parametrize(
    "ending", ["pass", "raise ValueError('unlucky')", "sys.exit(3)", "comm.free()"]
)
def test_nothing_is_left_behind(ranks, shm, ending):
    notes = ranks(f"work(0.05)\n{ending}", 2, env={"COLLECTIVES_SHM": shm})
    assert len(notes) == 2


# -- ranks that do not run for a while ---------------------------------------------------------


def test_a_rank_is_stopped_and_goes_on(ranks):
    """Nobody takes it for dead."""
    notes = ranks("""
        pids = [int(pid) for pid in comm.allgather(np.array([os.getpid()])).ravel()]
        def disturb():
            for other in pids[1:]:
                time.sleep(0.1)
                os.kill(other, signal.SIGSTOP)
                time.sleep(0.3)
                os.kill(other, signal.SIGCONT)
        if rank == 0:
            threading.Thread(target=disturb).start()
        note_end(lambda: work(1.5))
        """)
    assert ranks.result.status == 0, ranks.result
    assert all(each["error"] is None for each in notes.values()), notes


def test_a_rank_is_stopped_while_it_gives_up(ranks):
    """It has said that it gives up, and not why. Others wait to their own deadline, and their
    threads run. The first word of the second line of the segment is the number of such a rank.
    """
    notes = ranks(
        """
        import ctypes
        comm.barrier()
        if rank == 0:
            (line,) = [each for each in open("/proc/self/maps") if "/memfd:collectives " in each]
            ctypes.c_uint64.from_address(int(line.split("-")[0], 16) + 128).value = 1
            note(error=None)
        else:
            ticks = []
            tick = lambda: [ticks.append(time.sleep(0.1)) for _ in range(10)]
            threading.Thread(target=tick).start()
            try:
                comm.recv(np.empty(1), 0, timeout=3)
            except cc.CollectivesError as error:
                note(error=type(error).__name__, text=str(error), ticks=len(ticks))
        leave()
        """,
        2,
        env={"COLLECTIVES_SHM": "memfd"},
    )
    assert notes[1]["error"] == "StallError", notes
    assert notes[1]["ticks"] == 10, notes


def test_on_one_core(ranks):
    notes = ranks(
        """
        assert len(os.sched_getaffinity(0)) == 1
        note_end(lambda: work(0.5))
        """,
        4,
        env={"CORE": str(min(os.sched_getaffinity(0)))},
    )
    assert ranks.result.status == 0, ranks.result
    assert all(each["error"] is None for each in notes.values()), notes


def test_a_rank_waits_long_and_has_a_child(ranks):
    """A child that ends takes no lock of its parent along."""
    notes = ranks("""
        def calls():
            for turn in range(3):
                if rank == turn:
                    child = os.fork()
                    if child == 0:
                        os._exit(0)
                    os.waitpid(child, 0)
                    time.sleep(0.3)
                comm.barrier()
        note_end(calls)
        """)
    assert all(each["error"] is None for each in notes.values()), notes


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("call", ["barrier()", "ibarrier().wait()", "ibarrier()"])
def test_messages_of_the_program_move_on(ranks, call):
    """A rank waits in shared memory, and another for a message that it has sent with MPI itself."""
    notes = ranks(
        f"""
        x = np.ones(1 << 22, np.uint8)
        def calls():
            if rank == 0:
                request = MPI.COMM_WORLD.Isend(x, 1)
                barrier = comm.{call}
                while barrier and not barrier.test():
                    pass
                request.Wait()
            else:
                MPI.COMM_WORLD.Recv(x, 0)
                comm.barrier()
        note_end(calls)
        """,
        2,
        # Without these MPI moves by turns of the sender, as in containers, which forbid them.
        env={
            "MPIR_CVAR_CH4_CMA_ENABLE": "0",
            "OMPI_MCA_smsc": "^cma,xpmem,knem,accelerator",
        },
    )
    assert notes[0]["error"] is notes[1]["error"] is None, notes


# -- no room -----------------------------------------------------------------------------------


def private_shm(nbytes):
    """Return the command before another that gives it a ``/dev/shm`` of its own."""
    mount = f'mount -t tmpfs -o size={nbytes} none /dev/shm && exec "$@"'
    option = "-m" if os.geteuid() == 0 else "-rm"
    prefix = ["unshare", option, "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or run([*prefix, "true"], deadline=60).status:
        pytest.skip("this user cannot mount a file system of its own (unshare -m)")
    return prefix


def test_a_small_dev_shm(ranks):
    """Segments become smaller as long as they can; then there is one warning, and MPI."""
    notes = ranks(
        """
        import warnings
        def fill(left):
            comm.barrier()  # nobody has a segment any more that it has made below
            if rank == 0:
                free = os.statvfs("/dev/shm")
                with open(f"/dev/shm/filler-{left}", "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - left)
            comm.barrier()
        def made(kind):
            os.environ["COLLECTIVES_SHM"] = kind
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                made = cc.Communicator()
            y = made.allreduce(np.full(1 << 20, rank))
            assert (y == size * (size - 1) // 2).all()
            lane = made._segment.lane_bytes if made._segment else 0
            return made.transport, lane, [str(each.message) for each in caught]
        fill(20 << 20)
        some = made("file")
        fill(100 << 10)
        note(error=None, made=[some, made("file"), made("file"), made("auto")])
        """,
        4,
        prefix=private_shm(64 << 20),
    )
    assert ranks.result.status == 0, ranks.result
    for rank, each in notes.items():
        some, first, second, other = each["made"]
        assert some == ["shm", 512 << 10, []]
        assert first[:2] == second[:2] == ["openmpi" if OPEN_MPI else "mpich", 0]
        assert len(first[2]) == (rank == 0)
        for text in first[2]:
            assert text.startswith(
                "the ranks of this host cannot share memory and communicate through MPI"
            )
            assert "rank 0: /dev/shm has no room for" in text
        assert second[2] == []
        assert other == ["shm", 1 << 20, []]  # memory without a file system
