"""Errors of a user's fold that have no text: they are raised, and the other ranks are told."""

import pytest
from programs import fails, passes

pytestmark = pytest.mark.any_mpi

PROGRAM = """
import time, numpy as np, collectives as cc
from mpi4py import MPI
class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")
class Leaving(Exception):
    def __str__(self):
        raise SystemExit(3)
comm = cc.world()
def fold(incoming, accumulator):
    raise ERROR
comm.barrier()
try:
    if comm.rank == 0:
        comm.reduce(np.ones(3), op=cc.reduction(fold), algorithm="flat")
    else:  # waits for the fold of rank 0
        comm.reduce(np.ones(3), op=cc.reduction(fold), algorithm="flat")
        comm.barrier()
except BaseException as error:
    try:
        text = ascii(str(error))
    except BaseException:
        text = "unprintable"
    print(f"rank {comm.rank}: {type(error).__name__}: {text}", flush=True)
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize(
    ("error", "mine", "theirs"),
    [
        ("ValueError('bad \\udc80 name')", "ValueError", r"ValueError: bad \udc80 name"),
        ("Silent()", "Silent", "Silent: <no text: RuntimeError in Silent.__str__>"),
        ("Leaving()", "Leaving", "Leaving: <no text: SystemExit in Leaving.__str__>"),
        ("KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_the_others_hear_of_it(error, mine, theirs):
    result = passes(PROGRAM.replace("ERROR", error), env={"COLLECTIVES_TIMEOUT": "600"})
    assert f"rank 0: {mine}: " in result.out
    said = ascii(f"rank 0 gave up: {theirs}")
    assert f"rank 1: PeerAbortedError: {said}" in result.out


@pytest.mark.parametrize("error", ["ValueError('bad \\udc80 name')", "Silent()"])
def test_uncaught_they_end_the_rank(error):
    result = fails(
        PROGRAM.replace("except BaseException", "except ZeroDivisionError", 1).replace(
            "ERROR", error
        ),
        env={"COLLECTIVES_TIMEOUT": "600"},
    )
    assert "collectives: rank 0 of 2 ends the job because of an uncaught exception" in result.err


def test_arguments_without_a_text():
    """The error is about the argument, and not about its text; the others hear of it, too."""
    result = passes(
        """
        import numpy as np, collectives as cc
        from mpi4py import MPI
        class Silent:
            def __repr__(self):
                raise RuntimeError("no text")
        comm = cc.Communicator()
        wrong = Silent()
        def ask(call):
            try:
                call()
            except cc.errors.ArgumentError as error:
                assert "is <no text: RuntimeError in Silent.__repr__>, and" in str(error), error
            except cc.errors.MismatchError as error:
                assert "ArgumentError" in str(error)
            else:
                raise AssertionError
        x = np.ones(3)
        for each in (
            lambda value: comm.allreduce(x, op=value), lambda value: comm.broadcast(x, root=value),
            lambda value: comm.allreduce(x, algorithm=value),
            lambda value: comm.allreduce(x, prescale=value),
            lambda value: comm.allreduce(x, timeout=value),
            lambda value: comm.allgatherv(x, counts=value),
            lambda value: comm.send(x, value), lambda value: cc.reduction(value),
        ):
            ask(lambda: each(wrong))
        print("right", flush=True)
        """,
        env={"COLLECTIVES_VALIDATE": "1", "COLLECTIVES_TIMEOUT": "600"},
    )
    assert result.out.count("right") == 2


def test_a_name_that_cannot_be_encoded():
    result = passes(
        """
        import numpy as np, collectives as cc
        comm = cc.Communicator()
        def fold(incoming, accumulator):
            accumulator += incoming
        op = cc.reduction(fold, name="bad \\udc80 name")
        assert (comm.allreduce(np.ones(3), op=op) == 2).all()
        print("right", flush=True)
        """,
        env={"COLLECTIVES_VALIDATE": "1"},
    )
    assert result.out.count("right") == 2
