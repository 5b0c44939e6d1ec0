"""The kernel's permission to read other processes: refused at first or later, and dead ranks."""

import shutil

import pytest
from jobs import run
from programs import passes
from ranks import BOUND, Ranks

pytestmark = pytest.mark.any_mpi

# From now on the kernel refuses process_vm_readv (number 310 on x86-64, 270 on aarch64) to this
# process, or process_vm_writev (the next number), as a container's filter of system calls may.
FORBID = """
import ctypes, errno, platform, struct
def forbid(writes=False):
    call = {"x86_64": 310, "aarch64": 270}[platform.machine()] + writes
    refuse, allow = 0x50000 | errno.EPERM, 0x7FFF0000
    rows = (0x20, 0, 0, 0), (0x15, 0, 1, call), (6, 0, 0, refuse), (6, 0, 0, allow)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    assert libc.prctl(38, ctypes.c_ulong(1), none, none, none) == 0  # no new privileges
    assert libc.prctl(22, ctypes.c_ulong(2), program) == 0, ctypes.get_errno()  # a filter
"""

MANY = 4_000_000  # bytes: far more than the ring of a rank holds of one publication


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path)


@pytest.mark.parametrize("writes", [False, True])
def test_one_rank_may_not_read_or_write(writes):
    """Then nobody lends, everybody says why, and results are the same."""
    result = passes(
        FORBID
        + f"""
import os, numpy as np
if int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]) == 1:
    forbid({writes})
import collectives as cc
from collectives.process import segment
comm = cc.world()
assert not comm._segment.reads
for name in cc.algorithms.names("allreduce"):
    try:
        got = comm.allreduce(np.full(100_000, comm.rank, np.float32), algorithm=name)
    except cc.errors.ArgumentError:
        continue
    assert (got == 3).all()
print(segment.unread(comm._segment))
""",
        3,
    )
    assert result.out.count("the kernel does not let rank 1: Operation not permitted") == 3


@pytest.mark.parametrize("writes", [False, True])
def test_reads_are_forbidden_in_the_middle(ranks, writes):
    """The rank that may no more says so; the others hear of it. Results that it has folded for
    others would be written to their arrays.
    """
    how = "round_robin" if writes else "all_to_all"
    notes = ranks(
        FORBID
        + f"""
x = np.ones({MANY}, np.uint8)
assert comm._segment.reads, "this test needs a kernel that allows reads"
comm.allreduce(x, algorithm="{how}")
if rank == 1:
    forbid({writes})
note_end(lambda: comm.allreduce(x, algorithm="{how}"))
leave()
""",
        2,
        env={"COLLECTIVES_SHM_READS": "1"},
        survive=True,
    )
    assert notes[1]["error"] == "CommunicatorError", notes
    assert "the kernel does not let this rank use the array of rank 0 (process " in notes[1]["text"]
    assert (
        "Operation not permitted; with COLLECTIVES_SHM_READS=0, arrays are copied"
        in (notes[1]["text"])
    )
    assert notes[0]["error"] == "PeerAbortedError", notes


def test_a_rank_dies_whose_array_is_read(ranks):
    """It has shown where its array is; before the other rank looks there, it is gone."""
    notes = ranks(
        f"""
x = np.ones({MANY}, np.uint8)
assert comm._segment.reads, "this test needs a kernel that allows reads"
if rank == 1:
    request = comm.iallreduce(x, algorithm="all_to_all")
    die()
while comm._segment.running():
    time.sleep(0.01)
note_end(lambda: comm.allreduce(x, algorithm="all_to_all"))
leave()
""",
        2,
        env={"COLLECTIVES_SHM_READS": "1"},
        survive=True,
    )
    assert notes[0]["error"] == "PeerLostError", notes
    assert "has died while its array is in use" in notes[0]["text"], notes
    assert notes[0]["at"] - notes[1]["at"] < BOUND


def test_ranks_in_namespaces_of_their_own():
    """The same number is another process there: nothing is lent."""
    unshare = ["unshare", "--pid", "--fork"]
    if not shutil.which("unshare") or run([*unshare, "true"], deadline=60).status:
        pytest.skip("this user cannot make namespaces (unshare --pid)")
    result = passes(
        f"""
import os, sys
if "INSIDE" not in os.environ:
    os.environ["INSIDE"] = "1"
    os.execvp("unshare", {unshare} + [sys.executable, *sys.orig_argv[1:]])
import numpy as np, collectives as cc
from collectives.process import segment
comm = cc.world()
assert (comm.allreduce(np.ones(100_000)) == comm.size).all()
print(segment.unread(comm._segment))
"""
    )
    assert result.out.count("does not see the other processes") == 2
