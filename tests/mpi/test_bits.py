"""With ``bits="size"``, an element's bits depend on the contributions to it alone.

They are those of a fold in pairs, which each rank computes here for itself. Those of a scan are
folded from rank 0 up.
"""

import numpy as np
import pytest
from any_size import OPS, PLACES, contribution, folded, same, scanned

import collectives as cc
from collectives import background
from collectives.algorithms import get, names
from collectives.algorithms.bits import ORDERS
from collectives.errors import ArgumentError, MismatchError
from collectives.plans.order import has_fixed_order


@pytest.fixture(scope="module")
def comm(plain):
    return plain.comm.dup(bits="size")


def test_forty_lengths_and_places(comm):
    assert len(PLACES) == 40
    x, want = contribution(comm.rank), folded(comm.size)
    same(comm.allreduce(x), want)
    for n, at in PLACES:
        part = slice(at, at + n)
        same(comm.allreduce(x[part]), want[part])
        out = x[part].copy()
        same(comm.iallreduce(out, out=out).wait(), want[part])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_dtypes_and_operations(comm, dtype, op):
    if dtype == "complex64" and op != "SUM":  # NumPy may multiply in another way
        return
    x, want = contribution(comm.rank, dtype), folded(comm.size, dtype, op)
    for n, at in PLACES[::5]:
        part = slice(at, at + n)
        same(comm.allreduce(x[part], op=op), want[part])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_scales_and_averages(comm, dtype):
    """They are applied to each element by itself."""
    x = contribution(comm.rank, dtype)
    options = [{"op": cc.AVG}, {"prescale": 0.3}, {"postscale": 0.7, "prescale": 3.0}]
    for each in options:
        want = comm.allreduce(x, **each)
        for n, at in PLACES[::3]:
            part = slice(at, at + n)
            same(comm.allreduce(x[part], **each), want[part])


def test_other_collectives_give_the_same(comm):
    p, rank = comm.size, comm.rank
    x, want = contribution(rank), folded(p)
    for n, at in PLACES[::3]:
        part = slice(at, at + n)
        for root in {0, p // 2, p - 1}:
            got = comm.reduce(x[part], root=root)
            if rank == root:
                same(got, want[part])
        cut = slice(at, at + n // p * p)
        if n >= p:
            same(comm.reduce_scatter(x[cut]), want[cut].reshape(p, -1)[rank])
        counts = np.diff(np.linspace(0, n, p + 1).astype(int) ** 2 // max(n, 1))
        start = at + int(counts[:rank].sum())
        whole = slice(at, at + int(counts.sum()))
        got = comm.reduce_scatterv(x[whole], counts=counts)
        same(got, want[start : start + int(counts[rank])])
        same(comm.scan(x[part]), scanned(rank + 1)[part])
        got = comm.exscan(x[part])
        if rank:
            same(got, scanned(rank)[part])


def test_packed_with_others(comm):
    x, want = contribution(comm.rank), folded(comm.size)
    arrays = [x[at : at + n] for n, at in PLACES]
    for got, (n, at) in zip(comm.allreduce_many(arrays), PLACES, strict=True):
        same(got, want[at : at + n])
    handles = [background.submit("allreduce", each, group=comm) for each in arrays]
    for handle, (n, at) in zip(handles, PLACES, strict=True):
        same(handle.wait(), want[at : at + n])


def test_mode_of_a_submission(plain):
    """Calls with bits of their own are packed only with such, whatever comes between them."""
    comm = plain.comm.dup()
    x, want = contribution(comm.rank), folded(comm.size)
    handles = []
    for n, at in PLACES:
        handles.append(background.submit("allreduce", x[at : at + n], bits="size", group=comm))
        background.submit("allreduce", x[at : at + n], group=comm)
    for handle, (n, at) in zip(handles, PLACES, strict=True):
        assert ", bits size" in handle.describe()
        same(handle.wait(), want[at : at + n])
    parts = [x[at : at + n] for n, at in PLACES[::3]]
    results = background.submit_many(parts, bits="size", group=comm).wait()
    for got, (n, at) in zip(results, PLACES[::3], strict=True):
        same(got, want[at : at + n])
    counts = [17] * comm.size
    handle = background.submit(
        "reduce_scatterv", x[: sum(counts)], counts=counts, bits="size", group=comm
    )
    same(handle.wait(), want[: sum(counts)].reshape(comm.size, -1)[comm.rank])
    background.flush(comm)
    with pytest.raises(ArgumentError, match="bits is given, and 'broadcast' does not reduce"):
        background.submit("broadcast", x, bits="size", group=comm)
    with pytest.raises(ArgumentError, match="bits is 'sizes', and must be"):
        background.submit_many([x], bits="sizes", group=comm)
    with pytest.raises(
        ArgumentError, match=r"compressed .* make the call on comm.dup\(bits='size'"
    ):
        background.submit("allreduce", x, compression="float16", bits="size", group=comm)


def test_bits_of_a_submission_that_are_those_of_its_communicator(comm):
    x, want = contribution(comm.rank), folded(comm.size)
    handle = background.submit("allreduce", x[:999], bits="size", group=comm)
    assert handle.bits is None
    same(handle.wait(), want[:999])
    background.submit("allreduce", x.copy(), compression="int8", bits="any", group=comm).wait()


@pytest.mark.several
def test_ranks_differ_in_a_submission(plain):
    comm = plain.comm.dup()
    bits = "size" if comm.rank == comm.size - 1 else None
    with pytest.raises(MismatchError, match=r"differs between ranks: .* op SUM, bits size"):
        background.submit("allreduce", np.ones(3), name="x", bits=bits, group=comm).wait()
    with pytest.raises(MismatchError, match=r"differs between ranks: .* op SUM, bits size"):
        background.submit_many([np.ones(3)], name="y", bits=bits, group=comm).wait()
    assert background.submit("allreduce", np.ones(3), group=comm).wait()[0] == comm.size


def test_planned_and_shared_arrays(comm):
    x, want = contribution(comm.rank), folded(comm.size)
    for n, at in PLACES[::6]:
        part = slice(at, at + n)
        shared = comm.empty(n, np.float32)
        shared[:] = x[part]
        same(comm.allreduce(shared), want[part])
        planned = comm.plan("allreduce", shared, out=shared)
        planned()
        same(shared, want[part])


def test_whatever_is_learned(comm):
    """Trials of other settings have the same bits, too."""
    x, want = contribution(comm.rank), folded(comm.size)
    for n in (100, 5000, 70_001):
        comm._engine.settle(lambda n=n: same(comm.allreduce(x[:n]), want[:n]))


def test_segments(comm, segments):
    x, want = contribution(comm.rank), folded(comm.size)
    for nbytes in (0, 1 << 12, 100 << 10):
        with segments(comm, nbytes):
            same(comm.allreduce(x[:100_003]), want[:100_003])


def test_mode_of_a_call(plain):
    comm = plain.comm
    x, want = contribution(comm.rank), folded(comm.size)
    assert comm.bits == "any"
    for n, at in PLACES[::4]:
        part = slice(at, at + n)
        same(comm.allreduce(x[part], bits="size"), want[part])
        same(comm.iallreduce(x[part], bits="size").wait(), want[part])
        same(comm.allreduce_many([x[part]], bits="size")[0], want[part])
        same(comm.plan("allreduce", x[part].copy(), bits="size")(), want[part])
        got = comm.reduce(x[part], bits="size")
        if comm.rank == 0:
            same(got, want[part])
    assert has_fixed_order(comm.explain("allreduce", 1 << 20, bits="size").algorithm, comm.size)


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan", "exscan"])
def test_named_algorithms(comm, collective):
    """Those that the proof finds to fold in the fixed order; others are refused, with a remedy."""
    x = contribution(comm.rank)[: 5040 * comm.size]
    call = getattr(comm, collective)
    want = call(x)
    for name in names(collective):
        row = get(collective, name)
        if row.refusal(comm.size):
            continue
        if any(has_fixed_order(row.folding(order), comm.size) for order in ORDERS):
            got = call(x, algorithm=name)
            if want is not None:
                same(got, want)
            continue
        with pytest.raises(ArgumentError) as caught:
            call(x, algorithm=name)
        told = str(caught.value)
        assert told.startswith(f"bits is 'size', but {collective} '{name}' on {comm.size} ranks")
        assert "pass algorithm=None, bits='any', or one of: " in told
        call(x, algorithm=name, bits="any")


def test_functions_and_codecs_are_refused(comm):
    x = contribution(comm.rank)[:1000].copy()

    def add(incoming, accumulator):
        accumulator += incoming

    with pytest.raises(
        ArgumentError, match=r"bits is 'size', and op is a function, whose .* in all"
    ):
        comm.allreduce(x, op=cc.reduction(add))
    with pytest.raises(ArgumentError, match="bits is 'size', and op is a function"):
        background.submit("allreduce", x, op=cc.reduction(add), group=comm)
    comm.allreduce(x, op=cc.reduction(add), bits="any")
    with pytest.raises(ArgumentError, match=r"compression is int8.*; pass 'float16' or 'bfloat16'"):
        comm.allreduce(x, compression="int8")
    with pytest.raises(ArgumentError, match="compression is int8"):
        background.submit("allreduce", x, compression="int8", group=comm)
    whole = comm.allreduce(contribution(comm.rank), compression="float16")
    for n, at in PLACES[::8]:
        part = slice(at, at + n)
        got = comm.allreduce(contribution(comm.rank)[part], compression="float16")
        same(got, whole[part])


def test_who_has_it(plain, environ):
    comm = plain.comm
    made = comm.dup(bits="size")
    assert made.bits == "size"
    assert made.dup().bits == "size"
    assert made.dup(bits="any").bits == "any"
    assert made.split(0).bits == "size"
    assert comm.split(0, bits="size").bits == "size"
    with environ(COLLECTIVES_BITS="size"), cc.Communicator() as other:
        assert other.bits == "size"
    with environ(COLLECTIVES_BITS="size"), cc.Communicator(bits="any") as other:
        assert other.bits == "any"
    with (
        environ(COLLECTIVES_BITS="some"),
        pytest.raises(ArgumentError, match="COLLECTIVES_BITS is 'some', and must be one of any"),
    ):
        cc.Communicator()


@pytest.mark.several
def test_alpha_beta_and_gamma_are_measured(environ):
    """By algorithms that need not keep the bits."""
    with environ(COLLECTIVES_BITS="size", COLLECTIVES_TUNE="probe"), cc.Communicator() as comm:
        assert comm._chooser.parameters.origin == "the start-up probe"
        same(comm.allreduce(contribution(comm.rank)), folded(comm.size))


@pytest.mark.parametrize("bits", ["sizes", 1, b"size", []])
def test_no_such_mode(plain, bits):
    comm = plain.comm
    text = "bits is .*, and must be 'any', 'size' or None"
    with pytest.raises(ArgumentError, match=text):
        comm.allreduce(np.ones(3), bits=bits)
    with pytest.raises(ArgumentError, match=text):
        comm.dup(bits=bits)
    with pytest.raises(ArgumentError, match=text):
        cc.Communicator(bits=bits)


@pytest.mark.several
def test_no_such_mode_on_one_rank(world):
    comm = world.comm
    if comm.rank == 0:
        with pytest.raises(ArgumentError, match="bits is 'sizes'"):
            comm.allreduce(np.ones(3), bits="sizes")
    else:
        with pytest.raises(MismatchError, match="rank 0 refused allreduce"):
            comm.allreduce(np.ones(3))
    comm.barrier()


CALLS = {
    "allreduce": lambda comm, x, **bits: comm.allreduce(x, **bits),
    "iallreduce": lambda comm, x, **bits: comm.iallreduce(x, **bits).wait(),
    "reduce": lambda comm, x, **bits: comm.reduce(x, root=comm.size - 1, **bits),
    "reduce_scatter": lambda comm, x, **bits: comm.reduce_scatter(x, **bits),
    "reduce_scatterv": lambda comm, x, **bits: comm.reduce_scatterv(
        x, counts=[x.size // comm.size] * comm.size, **bits
    ),
    "scan": lambda comm, x, **bits: comm.scan(x, **bits),
    "exscan": lambda comm, x, **bits: comm.exscan(x, **bits),
    "allreduce_many": lambda comm, x, **bits: comm.allreduce_many([x, x], **bits),
    "plan": lambda comm, x, **bits: comm.plan("allreduce", x.copy(), **bits)(),
}


@pytest.mark.several
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ranks_differ_in_a_call(world, call):
    comm = world.comm
    x = np.ones(12 * comm.size)
    bits = "size" if comm.rank == comm.size - 1 else None
    with pytest.raises(MismatchError, match=r"the ranks do not agree: .*, bits=size"):
        call(comm, x, bits=bits)
    assert comm.allreduce(np.ones(3))[0] == comm.size


@pytest.mark.several
def test_ranks_differ_in_shared_memory(plain):
    comm = plain.comm.dup()
    if comm.transport != "shm":
        return
    bits = "size" if comm.rank == comm.size - 1 else None
    with pytest.raises(MismatchError, match=r"algorithm=\w+, bits=size"):
        comm.allreduce(np.ones(3), bits=bits)


@pytest.mark.several
def test_ranks_differ_in_making(plain):
    comm = plain.comm
    text = "bits is (size on rank 0 and any|any on .* and size|size on)"
    for make in (comm.dup, cc.Communicator):
        with pytest.raises(MismatchError, match=text):
            make(bits="size" if comm.rank == 0 else "any")
