"""Ranks that call different things: named under validation, noticed by length without."""

import re

import numpy as np
import pytest
from forms import CUT, VECTOR, WHOLE

import collectives as cc
from collectives import errors
from collectives.errors import ArgumentError, MismatchError, PeerAbortedError, StallError

X = np.ones(8)


def regular(comm):
    return comm.allreduce(X)


# The calls of one rank instead of `regular`, and the errors of the others.
ODD = {
    "collective": (lambda comm: comm.broadcast(X), r"broadcast\(count=8, dtype=float64, root=0,"),
    "same bytes": (
        lambda comm: comm.allreduce(X.view(np.int64)),
        r"allreduce\(count=8, dtype=int64,",
    ),
    "average": (lambda comm: comm.allreduce(X, op=cc.AVG), r"dtype=float64, op=AVG,"),
    "prescale": (lambda comm: comm.allreduce(X, prescale=2.0), r"op=SUM, algorithm=.*prescale=2\b"),
    "postscale": (lambda comm: comm.allreduce(X, postscale=0.5), r"postscale=0\.5\b"),
    "nonblocking": (lambda comm: comm.iallreduce(X[:5]), r"allreduce\(count=5"),
}


def odd_ranks(comm):
    return sorted({0, comm.size // 2, comm.size - 1})


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.several
def test_every_rank_is_told_who_called_what(world, kind):
    comm = world.comm
    call, text = ODD[kind]
    for odd in odd_ranks(comm):
        with pytest.raises(MismatchError, match="the ranks do not agree: ") as caught:
            (call if comm.rank == odd else regular)(comm)
        told = str(caught.value)
        assert re.search(rf"\brank {odd} called [^;]*{text}", told), told
        assert re.search(r"called allreduce\(count=8, dtype=float64, op=SUM, algorithm=", told), (
            told
        )
        world.agree(told)
        assert (regular(comm) == comm.size).all()


@pytest.mark.several
def test_segments_differ(world, segments):
    """Ranks that read different settings would send pieces of different lengths."""
    comm = world.comm
    x = np.ones(1000)
    with (
        segments(comm, 64 if comm.rank == 0 else 128),
        pytest.raises(MismatchError, match=r"segment=64\b.*segment=128\b"),
    ):
        comm.allreduce(x, algorithm="ring")
    assert (comm.allreduce(x) == comm.size).all()


@pytest.mark.several
def test_all_differ(world):
    comm = world.comm
    with pytest.raises(MismatchError) as caught:
        comm.allreduce(np.ones(10 + comm.rank))
    for r in range(comm.size):
        assert re.search(rf"rank {r} called allreduce\(count={10 + r},", str(caught.value))


REFUSED = {
    "algorithm": (lambda comm: comm.allreduce(X, algorithm="x"), ArgumentError, "has no algorithm"),
    "out": (
        lambda comm: comm.allreduce(X, np.ones(3)),
        BufferError,
        "out has 3 elements, and the result has 8",
    ),
    "dtype": (lambda comm: comm.allreduce(np.array([None])), TypeError, "x has dtype object"),
    "root": (lambda comm: comm.reduce(X, root=-1), ArgumentError, "root is -1"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.several
def test_a_refused_call_is_told_to_the_others(world, kind):
    comm = world.comm
    call, error, text = REFUSED[kind]
    for odd in odd_ranks(comm):
        if comm.rank == odd:
            with pytest.raises(error, match=text) as caught:
                call(comm)
            assert not isinstance(caught.value, MismatchError)
        else:
            with pytest.raises(MismatchError, match=rf"rank {odd} refused [^;]*{text}"):
                regular(comm)
        assert (regular(comm) == comm.size).all()


def test_validation_agrees_where_ranks_may_differ(world):
    """Layout, out, and blocking or not are each rank's own business."""
    comm = world.comm
    odd = comm.rank % 2
    x = np.ones((4, 2))
    y = comm.allreduce(np.asfortranarray(x) if odd else x, np.empty(8) if odd else None)
    assert (y == comm.size).all()
    y = comm.iallreduce(x).wait() if odd else comm.allreduce(x)
    assert (y == comm.size).all()


def attempt(call):
    """Return the text of a MismatchError, without its consequences on other ranks."""
    try:
        call()
    except MismatchError as error:
        return str(error)
    except (PeerAbortedError, StallError):
        pass
    return ""


@pytest.mark.parametrize(
    ("forms", "count"),
    [(WHOLE, 5), (CUT, 100), (VECTOR, 5)],
    ids=["whole-5", "cut-100", "vector-5"],
)
@pytest.mark.several
def test_a_wrong_length_is_noticed_without_validation(world, fresh, forms, count):
    """Rank 0 has another count: somebody gets a message of a length that was not due."""
    p = world.comm.size
    usable = [(form, name) for form in forms for name in form.runnable()]
    # Ranks that share memory hear of it when another one has noticed; others wait for nothing.
    deadline = 20.0 if world.comm.transport == "shm" else 0.5
    requests = []
    for form, name in usable:
        comm = fresh(validate=False, timeout=deadline)
        case = form(p, 40)
        case.n = count if comm.rank == 0 else 40
        case.counts = np.full_like(case.counts, case.n)
        try:
            requests.append(case.call(comm, algorithm=name, start=True))
        except (MismatchError, PeerAbortedError) as error:  # another rank has noticed already
            requests.append(str(error) if isinstance(error, MismatchError) else "")
    world.mpi.Barrier()  # with short deadlines, no rank waits for another one's start
    told = [each if isinstance(each, str) else attempt(each.wait) for each in requests]
    said = zip(*world.mpi.allgather(told), strict=True)
    for (form, name), texts in zip(usable, said, strict=True):
        assert any(texts), (form.name, name)
        for text in filter(None, texts):
            assert re.match(
                rf"{form.collective} '{name}' on {p} ranks(, root 0)?: rank \d+, round \d+: "
                r"got (more|\d+) bytes from rank \d+ where \d+ were due; the ranks did not call|"
                rf"the ranks do not agree on call \d of the communicator: .*{form.collective}v?\(.*"
                rf"algorithm={name}\b|"
                r"the ranks do not agree: counts is .*, the root; pass the same on all ranks",
                text,
            ), text


@pytest.mark.several
def test_a_wrong_length_breaks_the_communicator(world, fresh):
    comm = fresh(validate=False, timeout=1.0)
    with pytest.raises((MismatchError, PeerAbortedError, StallError)):
        comm.allreduce(np.ones(3 if comm.rank == 0 else 4), algorithm="all_to_all")
    with pytest.raises(errors.CommunicatorError, match="the communicator is broken: rank"):
        comm.barrier()
    world.mpi.Barrier()
