"""Ranks that end, fail or go elsewhere while others make a communicator."""

import re
import textwrap

import pytest
from commands import command
from jobs import DEADLINE_PASSED
from programs import passes, program

pytestmark = pytest.mark.each_mpi("openmpi")

SOON = {"COLLECTIVES_TIMEOUT": "3", "COLLECTIVES_STALL_WARNING": "1"}
PATIENT = {"COLLECTIVES_TIMEOUT": "600"}


def said(result, pattern):
    """Check that a program failed in time, and that a line of its errors matches."""
    assert result.status not in (0, DEADLINE_PASSED), result
    assert re.search(pattern, result.err), result


def test_a_rank_ends_before_the_first_communicator():
    """The library has not run on it, so only the clock can tell."""
    result = program(
        """
        import sys
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            sys.exit()
        import collectives as cc
        cc.world()
        """,
        3,
        env=SOON,
    )
    waited = r"rank [02] of 3 has waited "
    said(result, rf"StallWarning: Communicator\(\): {waited}1")
    said(
        result,
        rf"StallError: Communicator\(\) timed out: {waited}3 s; some of the other ranks have",
    )


@pytest.mark.parametrize(
    ("making", "where"),
    [
        ("cc.Communicator()", r"Communicator\(\): rank 1 of COMM_WORLD"),
        ("comm.dup()", r"dup\(\): allgather .*: rank 1"),
        ("comm.split(0)", r"split\(\): allgather .*: rank 1"),
        ("comm.empty(3)", r"empty\(\): allgather .*: rank 1"),
        ("comm.timeline('timeline.json').start()", r"timeline\(\): allgather .*: rank 1"),
    ],
)
def test_a_rank_ends_while_others_make_something(making, where):
    """They hear of it at once if they share memory with it."""
    result = program(
        f"""
        import sys
        import collectives as cc
        comm = cc.world()
        sys.exit() if comm.rank == 1 else {making}
        """,
        3,
        env=PATIENT,
    )
    how = r"has left (while rank \d|and never called this \w+: is the call under an if\?)"
    said(result, rf"PeerLostError: (rank \d says: )?{where} \(process \d+\) {how}")


def test_a_rank_of_a_group_ends():
    """The error has its number in COMM_WORLD."""
    result = program(
        """
        import sys
        from mpi4py import MPI
        import collectives as cc
        comm = cc.world()
        if comm.rank > 0:
            group = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl([1, 2]))
            sys.exit() if comm.rank == 2 else cc.Communicator(group)
        """,
        3,
        env=PATIENT,
    )
    said(result, r"PeerLostError: Communicator\(\): rank 2 of COMM_WORLD \(process \d+\) has left")


def test_the_end_of_a_rank_outside_of_the_group_does_not_matter():
    result = program(
        """
        import sys, time
        from mpi4py import MPI
        import collectives as cc
        comm = cc.world()
        if comm.rank == 0:
            sys.exit()
        group = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl([1, 2]))
        if comm.rank == 2:
            time.sleep(1)  # rank 0 has ended by then, and rank 1 has waited
        print(cc.Communicator(group).size)
        """,
        3,
        env=PATIENT,
    )
    assert (result.status, "".join(result.out.split())) == (0, "22"), result


def test_an_earlier_communicator_that_was_freed_does_not_matter():
    result = program(
        """
        import time
        import collectives as cc
        first = cc.Communicator()
        first.free()
        if cc.rank() == 1:
            time.sleep(1)
        print(cc.Communicator().size)
        """,
        2,
        env=PATIENT,
    )
    assert (result.status, "".join(result.out.split())) == (0, "22"), result


# Faults of rank 1 after the ranks have agreed on a split, while the others are inside of MPI.
@pytest.mark.parametrize("memory", ["auto", "0"])
@pytest.mark.parametrize("makes", ["duplicate", "split"])
def test_the_deadline_holds_inside_of_mpi(makes, memory):
    result = program(
        f"""
        import time
        import collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            comm._meeting.{makes} = lambda *args: time.sleep(600)
        comm.{"dup()" if makes == "duplicate" else "split(0)"}
        """,
        3,
        env=SOON | {"COLLECTIVES_SHM": memory},
    )
    call = "dup" if makes == "duplicate" else "split"
    said(
        result,
        rf"StallError: {call}\(\) timed out: rank [02] of 3 has waited 3 s; some of",
    )


@pytest.mark.parametrize("makes", ["duplicate", "split"])
def test_a_rank_that_fails_tells_the_others(makes):
    result = program(
        f"""
        import collectives as cc
        comm = cc.world()
        if comm.rank == 1:
            def fail(*args):
                raise KeyboardInterrupt
            comm._meeting.{makes} = fail
        try:
            comm.{"dup()" if makes == "duplicate" else "split(0)"}
        except KeyboardInterrupt:
            pass
        except cc.errors.PeerAbortedError as error:
            print(error)
            raise
        """,
        3,
        env=PATIENT,
    )
    call = "dup" if makes == "duplicate" else "split"
    said(result, rf"PeerAbortedError: rank 1 gave up: it failed in {call}\(\): KeyboardInterrupt")


def test_a_split_that_was_given_up_ends_in_order():
    """MPI cannot be finalised while a thread is inside of it."""
    result = program(
        """
        import collectives as cc
        comm = cc.world()
        comm.split(0)
        if comm.rank == 1:
            def stop(*args):
                raise KeyboardInterrupt
            comm._meeting.split = stop
        try:
            comm.split(comm.rank % 2)
        except BaseException as error:
            print(type(error).__name__, flush=True)
        """,
        3,
        env=PATIENT,
    )
    said(result, r"exits with operations in flight: split\(\), given up inside of MPI")
    names = sorted(re.findall(r"[A-Z]\w+?(?:Error|Interrupt)", result.out))
    assert names == ["KeyboardInterrupt", *["PeerAbortedError"] * 2], result


def test_an_interrupt_after_the_announcement_is_told():
    result = program(
        """
        import collectives as cc
        from collectives.process import agreement
        comm = cc.world()
        if comm.rank == 1:
            def stop(*args):
                raise KeyboardInterrupt
            agreement.HEAD = type("Head", (), {"pack": agreement.HEAD.pack})()
            agreement.HEAD.unpack_from = stop
            agreement.HEAD.size = 17
        try:
            comm.dup()
        except cc.errors.PeerAbortedError as error:
            print(error, flush=True)
            raise
        """,
        2,
        env=PATIENT,
    )
    said(result, r"rank 1 gave up: it failed in dup\(\): KeyboardInterrupt")


def test_operations_in_flight_move_on_while_others_make_something():
    result = program(
        """
        import numpy as np, collectives as cc
        comm = cc.world()
        one, two = comm.dup(), comm.dup()
        x = np.ones(1_000_000)
        request = one.iallreduce(x)
        if comm.rank == 1:
            request.wait()
        made = two.dup()
        print(int(request.wait()[0]) + made.size)
        """,
        3,
        env=SOON | {"COLLECTIVES_SHM": "0"},
    )
    assert (result.status, "".join(result.out.split())) == (0, "666"), result


MISSING = """
    from datetime import timedelta
    from torch import distributed as dist
    import collectives.torch
    from collectives.errors import StallError
    collectives.torch.init_process_group()
    soon, rank = timedelta(seconds=2), dist.get_rank()
    everybody = dist.new_group(timeout=soon)
    if rank == 0:
        try:
            dist.barrier(everybody)
        except StallError as error:
            assert " timeout " in str(error), error  # as torch's own tests of a barrier
            print("barrier")
        try:
            dist.new_group([0, 1], timeout=soon, use_local_synchronization=True)
        except StallError as error:
            assert "rank 1 has not called it" in str(error), error
            print("group")
    dist.barrier()
"""


def test_a_member_of_a_group_of_torch_is_missing():
    result = passes(MISSING)
    assert sorted(result.out.split()) == ["barrier", "group"]


def test_a_member_of_a_group_of_torch_is_missing_without_mpi():
    result = command("run", "--no-mpi", "-n", "2", "-c", textwrap.dedent(MISSING))
    assert result.returncode == 0, result
    assert sorted(result.stdout.split()) == ["barrier", "group"]


AGAIN = """
    import time
    from datetime import timedelta
    import torch
    from torch import distributed as dist
    import collectives.torch
    from collectives.errors import StallError
    collectives.torch.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()

    def make(seconds):
        how = {"timeout": timedelta(seconds=seconds), "use_local_synchronization": True}
        try:
            group = dist.new_group(range(size), **how)
        except StallError as error:
            return str(error)
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert int(x) == size
        return "made"

    last = rank == size - 1
    if not last:
        assert f"rank {size - 1} has not called it" in make(1)
    dist.barrier()
    if last:  # the others have come, and left
        said = make(1)
        assert "given it up" in said and f"rank {rank} has waited 1 s" in said, said
    dist.barrier()
    if not last:
        assert f"rank {size - 1} has given it up" in make(1)
    dist.barrier()
    time.sleep(1 if rank == 0 else 0)
    print(make(60), make(60))
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_group_of_torch_is_made_again_after_a_failure(ranks):
    """Some have called it once, others twice, and messages of the failed calls are left."""
    result = passes(AGAIN, ranks)
    assert result.out.split() == ["made", "made"] * ranks


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_group_of_torch_is_made_again_without_mpi(ranks):
    result = command("run", "--no-mpi", "-n", str(ranks), "-c", textwrap.dedent(AGAIN))
    assert result.returncode == 0, result
    assert result.stdout.split() == ["made", "made"] * ranks


def test_a_rank_of_a_list_does_not_start_horovod():
    """MPI itself would wait for it for ever."""
    result = program(
        """
        import time
        from mpi4py import MPI
        import collectives.horovod as hvd
        hvd.init([0, 2]) if MPI.COMM_WORLD.rank == 0 else time.sleep(30)
        """,
        3,
        env=SOON,
    )
    waited = r"StallError: init\(\) timed out: rank 0 of 3 has waited 3 s; some of the other ranks"
    said(result, waited)
