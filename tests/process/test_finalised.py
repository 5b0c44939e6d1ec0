"""MPI that the program finalises itself: later calls raise an error of the library."""

import pytest
from programs import fails, passes

pytestmark = pytest.mark.each_mpi

START = """
import numpy as np, collectives as cc
from mpi4py import MPI
comm = cc.world().dup()
whole = comm.plan("allreduce", np.ones(3))
request = comm.iallreduce(np.ones(3))
request.wait()
comm.barrier()
"""


def test_calls_after_the_end_of_mpi():
    result = passes(
        """
            MPI.Finalize()
            x = np.ones(3)
            calls = [
                lambda: comm.allreduce(x),
                lambda: comm.barrier(),
                lambda: comm.iallreduce(x),
                lambda: comm.isend(x, comm.rank),
                lambda: comm.dup(),
                lambda: comm.split(0),
                lambda: comm.empty(3),
                lambda: comm.allreduce_many([x]),
                lambda: comm.broadcast_object(3),
                lambda: comm.plan("allreduce", x),
                lambda: whole(),
                lambda: request.test(),
                lambda: request.wait(),
                lambda: cc.Communicator(),
            ]
            told = []
            for call in calls:
                try:
                    call()
                except cc.errors.CommunicatorError as error:
                    told.append(str(error))
            assert len(told) == len(calls)
            assert all(each.startswith("MPI is finalised already") for each in told), told
            """,
        head=START,
    )
    assert result.err == ""


def test_what_needs_no_mpi():
    result = passes(
        """
            with cc.Communicator() as other:
                MPI.Finalize()
            comm.free()
            comm.free()
            cc.rank(), repr(comm), repr(request), repr(other)
            del comm, whole, request
            print("done", flush=True)
            """,
        head=START,
    )
    assert result.out.count("done") == 2
    assert result.err == ""


def test_mpi_that_was_never_used_here():
    result = passes("""
        from mpi4py import MPI
        import collectives as cc
        MPI.Finalize()
        try:
            cc.barrier()
        except cc.errors.CommunicatorError as error:
            print(error, flush=True)
        """)
    assert result.out.count("MPI is finalised already") == 2


def test_operations_in_flight_when_mpi_ends():
    """Nobody can end the other ranks any more; this one lists the open requests, and fails."""
    result = fails("""
        import time, numpy as np, collectives as cc
        from mpi4py import MPI
        comm = cc.world()
        comm.barrier()
        if comm.rank == 0:
            request = comm.iallreduce(np.ones(3))
        MPI.Finalize()
        """)
    assert "rank 0 exits with operations in flight: allreduce" in result.err
    assert "rank 1 exits" not in result.err


def test_mpi_that_the_library_initialises_ends_last():
    """Calls in flight are named while MPI can still be called."""
    result = fails("""
        import mpi4py
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        import numpy as np, collectives as cc
        comm = cc.world()
        comm.barrier()
        if comm.rank == 0:
            request = comm.iallreduce(np.ones(3))
        else:
            import time
            time.sleep(20)
        """)
    assert "rank 0 exits with operations in flight: allreduce" in result.err
    assert result.seconds < 15


def test_a_communicator_may_outlive_the_names_of_its_module():
    """Python empties modules that are still in use at its end, the last one first."""
    result = passes(
        """
        import ctypes, json
        import collectives as cc
        from collectives import communicator
        json.kept = cc.world().dup()
        for module in (json, communicator):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        """
    )
    assert result.err == ""
