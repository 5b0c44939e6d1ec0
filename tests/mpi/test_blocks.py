"""Parts that an algorithm cuts into several blocks, which the included ones do not do."""

import contextlib

import numpy as np
import pytest
from cases import FULL, digest
from conftest import environment
from forms import CUT, VECTOR

import collectives as cc
from collectives.algorithms import Exchange
from collectives.plans import schedule

FORMS = [(form, name) for form in (*CUT, *VECTOR) for name in form.runnable()]
BLOCKS = 3


def listed(messages):
    """Return messages as a list of (peer, list of blocks)."""
    is_one = isinstance(messages, tuple) and messages and not isinstance(messages[0], tuple)
    pairs = [messages] if is_one else list(messages)
    return [(peer, [b] if isinstance(b, int) else list(b)) for peer, b in pairs]


def cut(messages, numbers):
    """Replace each block by those of its blocks that have the given numbers."""
    return [
        (peer, [BLOCKS * b + i for b in blocks for i in numbers])
        for peer, blocks in listed(messages)
    ]


def part(exchange, numbers):
    """Return an exchange of those blocks that have the given numbers."""
    send, recv = (cut(each, numbers) for each in (exchange.send, exchange.recv))
    return exchange._replace(send=send, recv=recv)


def together(rounds):
    for each in rounds():
        yield part(each, range(BLOCKS))


def one_after_the_other(rounds):
    for i in range(BLOCKS):
        for each in rounds():
            yield part(each, [i])


def some_backwards(rounds):
    """The blocks of a part travel in another order than they lie in: in parcels."""
    for each in rounds():
        yield part(each, (2, 0, 1))


WAYS = (together, one_after_the_other, some_backwards)
# By default each algorithm is cut in one way, and all ways have their turn.
CASES = [
    (form, name, way)
    for turn, (form, name) in enumerate(FORMS)
    for way in (WAYS if FULL else [WAYS[turn % 3]])
    # Parcels lie in a workspace, for which an alltoallv knows too little.
    if form.name != "alltoallv" or way is not some_backwards
]


@contextlib.contextmanager
def registered(collective, name, way):
    """Have an algorithm of ours that does what an included one does, with more blocks."""
    row = cc.algorithms.get(collective, name)

    @cc.algorithms.algorithm(collective, name="cut", blocks=BLOCKS, same_bits=row.same_bits)
    def generate(r, p, *root):
        yield from way(lambda: row.rounds(r, p, *root))

    try:
        yield
    finally:
        cc.algorithms.unregister(collective, "cut")


@pytest.mark.parametrize(("form", "name", "way"), CASES)
def test_more_blocks_change_no_bits(plain, segments, form, name, way):
    comm = plain.comm
    with registered(form.collective, name, way):
        for n, nbytes in ((0, 0), (2, 0), (100, 64)):
            case = form(comm.size, n, root=comm.size - 1)
            want = case.call(comm, algorithm=name)
            case.verify(want, comm.rank)
            x, out = case.shared(comm.rank)
            with segments(comm, nbytes):
                got = case.call(comm, algorithm="cut")
                inside = case.call(comm, x, out, algorithm="cut", start=True).wait()
            if want is not None:
                assert digest(got) == digest(want) == digest(inside), n


@pytest.mark.several
@pytest.mark.parametrize("shared", ["0", "auto"])
def test_a_round_that_folds_and_stores(shared):
    """A rank stores a block that another one has folded, beside those that it folds itself."""

    def generate(r, p):
        others = [q for q in range(p) if q != r]
        for k in range(p):
            if r == k:
                yield Exchange(recv=[(q, k) for q in others], fold=True)
                yield Exchange(send=[(q, k) for q in others])
            else:
                yield Exchange(send=(k, k))
                yield Exchange(recv=(k, k))

    with environment(COLLECTIVES_SHM=shared):
        comm = cc.Communicator(timeout=20)
    p = comm.size
    cc.algorithms.algorithm("allreduce", name="in_turns", blocks=lambda p: p)(generate)
    try:
        plan = schedule.compile(cc.algorithms.get("allreduce", "in_turns"), p, p - 1)
        kinds = [{m.fold for m in each.messages if not m.send} for each in plan.rounds]
        assert {True, False} in kinds
        for n in (1, p, 1000):
            x = np.arange(n) * (comm.rank + 1.0)
            got = comm.allreduce(x, algorithm="in_turns")
            np.testing.assert_array_equal(got, np.arange(n) * p * (p + 1) / 2)
    finally:
        cc.algorithms.unregister("allreduce", "in_turns")
        comm.free()
