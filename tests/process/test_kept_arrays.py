"""Folds that keep the arrays that they were given: their memory stays, whatever becomes of it."""

import pytest
from programs import passes

pytestmark = pytest.mark.any_mpi

# A thread may hold a view, a memoryview or a tensor of an array and not the array itself.
KEEP = """
import gc, sys, numpy as np, collectives as cc
kept = []
def fold(incoming, accumulator):
    accumulator += incoming
    kept.extend((incoming, accumulator, incoming[:1], memoryview(accumulator)))
op = cc.reduction(fold)
def forget():
    gc.collect()
    [bytearray(1 << 20) for _ in range(64)]
def read():
    assert kept
    for each in kept:
        np.asarray(each).sum()
    print("read", flush=True)
"""


@pytest.mark.parametrize("shm", ["auto", "0"])
def test_they_can_be_read_when_everything_is_freed(shm):
    """The arrays of callers, the library's own memory, and shared memory."""
    result = passes(
        """
comm = cc.Communicator()
for n in (3, 5000, 3_000_000):
    for name in ("ring", "tree", "all_to_all"):
        for out in (None, np.empty(n)):
            comm.allreduce(np.ones(n), out, op=op, algorithm=name)
shared = comm.empty(5000)
shared[:] = 1
comm.allreduce(shared, shared, op=op, algorithm="ring")
planned = comm.plan("allreduce", np.ones(70_000), op=op)
planned()
planned.start().wait()
comm.iallreduce(np.ones(70_000), op=op).wait()
del shared, planned
comm.free()
del comm
forget()
read()
""",
        head=KEEP,
        ranks=3,
        env={"COLLECTIVES_SHM": shm},
    )
    assert result.out.count("read") == 3


def test_a_fold_that_raises_keeps_them_in_its_traceback():
    result = passes("""
        import gc, numpy as np, collectives as cc
        comm = cc.Communicator()
        def fold(incoming, accumulator):
            raise ValueError("not today")
        caught = None
        try:
            comm.allreduce(np.ones(3_000_000), op=cc.reduction(fold), algorithm="all_to_all")
        except ValueError as error:
            caught = error
        del comm
        gc.collect()
        frame = caught.__traceback__.tb_next
        while frame.tb_frame.f_code.co_name != "fold":
            frame = frame.tb_next
        assert frame.tb_frame.f_locals["incoming"].sum() >= 0
        print("read", flush=True)
        """)
    assert result.out.count("read") == 2


def test_they_cannot_be_written_later():
    """Their memory is used by later calls, perhaps of other ranks."""
    result = passes(
        """
comm = cc.world()
comm.allreduce(np.ones(5000), op=op, algorithm="ring")
for each in kept:
    if isinstance(each, np.ndarray) and not each.flags.owndata and each.size > 1:
        assert not each.flags.writeable
kept.clear()
for n in (3, 5000, 100_000):
    for name in ("ring", "tree"):
        assert (comm.allreduce(np.ones(n), op=op, algorithm=name) == comm.size).all()
print("right", flush=True)
""",
        head=KEEP,
        ranks=3,
    )
    assert result.out.count("right") == 3


def test_those_that_are_not_kept_cost_no_memory():
    """A call drops its references when it is over, in spite of a function that outlives it."""
    result = passes("""
        import weakref, numpy as np, collectives as cc
        def fold(incoming, accumulator):
            accumulator += incoming
        op = cc.reduction(fold)
        comm = cc.world()
        for name in ("ring", "all_to_all"):
            x = np.ones(1000)
            gone = weakref.ref(x)
            y = comm.allreduce(x, op=op, algorithm=name)
            del x
            assert gone() is None
        print("gone", flush=True)
        """)
    assert result.out.count("gone") == 2
