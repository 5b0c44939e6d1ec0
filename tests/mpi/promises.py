"""Promises of all collectives: one body of tests, which each test file runs for its own.

A class of tests inherits `Promises` and names its form; pytest sees only those classes.
"""

from __future__ import annotations

import array
import functools
import itertools
import random
import re

import numpy as np
import pytest
from cases import FULL, LARGE, digest, longer, sizes
from dtypes import COMPLEX, DTYPES, FLOATS, INTEGERS, SUPPORTED
from forms import MPI_OPS, Form
from interpreter import run

import collectives as cc
from collectives import errors

# By default one dtype of each size, and of each kind of kernel where there are kernels.
MOVED = ("bool", "bfloat16", "float32", "int64", "float128", "complex256")
FOLDED = ("bool", "uint8", "int64", "bfloat16", "float32", "complex64")


def strided(x):
    return np.stack([x, x[::-1]], axis=1)[:, 0]


INPUTS = {
    "strided": strided,
    "backwards": lambda x: x[::-1].copy()[::-1],
    "memoryview": memoryview,
    "strided memoryview": lambda x: memoryview(np.repeat(x, 2))[::2],
    "array.array": lambda x: array.array("d", x),
    "bytes behind a memoryview": lambda x: memoryview(x.tobytes()).cast("d"),
    "read-only": lambda x: np.frombuffer(x.tobytes()),
    "misaligned": lambda x: np.frombuffer(b"!" + x.tobytes(), np.uint8)[1:].view(np.float64),
    "broadcast": lambda x: np.broadcast_to(x, (2, len(x)))[1],
    "subclass": lambda x: x.view(np.recarray),
    "fortran": lambda x: np.asfortranarray(x.reshape(2 - x.size % 2, -1)),
}


# For MPI, up to twice as much. Sums of narrow integers overflow.
SPREADS = {"int8": 60, "uint8": 60, "int16": 9000, "uint16": 30_000, "int32": 1000, "float64": 1}
FEW_SPREADS = ("int8", "uint16", "int32", "float64")
NO_SECONDS = (0, -1, -0.5, float("nan"), "1", [1.0], 2j)  # values that are no deadline


class Promises:
    """The tests; `form` is the collective."""

    form: type[Form]
    whole = FULL  # whether every dtype and every length of segments is tried

    def pytest_generate_tests(self, metafunc):
        if "algorithm" in metafunc.fixturenames:
            metafunc.parametrize("algorithm", self.form.runnable())
        if "dtype" in metafunc.fixturenames:
            every = DTYPES if self.form.reduces else (*DTYPES, "complex256")
            few = FOLDED if self.form.reduces else MOVED
            # Vector forms differ in the places of parts, not in the work on them.
            few = few[-2:] if self.form.vector else few
            metafunc.parametrize("dtype", every if self.whole else few)
        if "number" in metafunc.fixturenames:
            metafunc.parametrize("number", SPREADS if self.whole else FEW_SPREADS)
        if "nbytes" in metafunc.fixturenames:
            metafunc.parametrize("nbytes", [64, 1000] if self.whole else [64])
        if "difference" in metafunc.fixturenames:
            kinds = ["dtype", "algorithm", "barrier"]
            kinds += ["count"] * (self.form.name != "alltoallv")
            kinds += ["root"] * self.form.rooted + ["op"] * self.form.reduces
            metafunc.parametrize("difference", kinds)

    def hold_bits(self, group, algorithm, *results):
        """Hold the results of all ranks against each other, if they must have the same bits."""
        row = cc.algorithms.get(self.form.collective, algorithm)
        if self.form.collective == "allreduce" and row.same_bits:
            group.agree(digest(*results))

    def roots(self, p):
        return range(p) if self.form.rooted else [0]

    def ops(self, dtype):
        if not self.form.reduces:
            return ["SUM"]
        ops = [op for op in SUPPORTED if dtype in SUPPORTED[op]]
        return [op for op in ops if op != "AVG" or self.form.scales]

    @pytest.mark.ranks(1, 2, 3, 4, 5)
    @pytest.mark.usual("float32")
    def test_matrix(self, plain, algorithm, dtype):
        """Every operation and length, with the roots in turn, in flight together."""
        comm = plain.comm
        p, rank = comm.size, comm.rank
        cases = [(op, n) for op in self.ops(dtype) for n in sizes(p) if n < LARGE]
        forms = [
            self.form(p, n, dtype=dtype, op=op, root=turn % p, seed=turn)
            for turn, (op, n) in enumerate(cases)
        ]
        requests = [form.call(comm, algorithm=algorithm, start=True) for form in forms]
        results = [request.wait() for request in requests]
        for form, result in zip(forms, results, strict=True):
            form.verify(result, rank)
        self.hold_bits(plain, algorithm, *results)
        for turn, (form, result) in enumerate(zip(forms, results, strict=True)):
            if FULL or turn % 7 == 0:
                again = form.call(comm, algorithm=algorithm)
                assert (again is None) == (result is None)
                assert again is None or digest(again) == digest(result)

    def test_every_root_of_every_communicator(self, group):
        comm = group.comm
        p = comm.size
        lengths = (0, 1, p + 1, 1009)
        for name in [*self.form.runnable(p), None]:
            for root in self.roots(p):
                for n in (lengths[root % 3], 1009) if self.form.rooted else lengths:
                    form = self.form(p, n, dtype="int32", root=root, seed=root)
                    changes = {"root": np.uint8(root)} if form.rooted and n == 1 else {}
                    form.verify(form.call(comm, algorithm=name, **changes), comm.rank)

    def test_agrees_with_mpi(self, world, number):
        comm = world.comm
        rng = np.random.default_rng([comm.rank, len(number)])
        for op in MPI_OPS if self.form.reduces else ["SUM"]:
            for turn, n in enumerate(sizes(comm.size)):
                form = self.form(comm.size, n, dtype=number, op=op, root=turn % comm.size)
                x = rng.uniform(-2, 2, form.x(comm.rank).size)
                if number != "float64":
                    x = np.rint(x * SPREADS[number]).astype("int64").astype(number)
                ours, theirs = form.call(comm, x), form.theirs(world.mpi, x)
                which = form.comparable(world.mpi, x)
                assert (ours is None) == (theirs is None)
                if ours is None:
                    continue
                ours = ours.reshape(-1)
                if number != "float64" or op in ("MIN", "MAX") or not self.form.reduces:
                    np.testing.assert_array_equal(ours[which], theirs[which])
                else:
                    most = 2.0**comm.size if op == "PROD" else 2 * comm.size
                    atol = 2 * comm.size * 2.3e-16 * most
                    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)

    def test_functions_of_the_module(self, world):
        """They are calls on the communicator of all ranks."""
        form = self.form(world.comm.size, 6, root=world.comm.size - 1)
        x, options = form.x(world.comm.rank), form.options(world.comm.rank)
        form.verify(getattr(cc, form.name)(x, **options), world.comm.rank)
        form.verify(getattr(cc, f"i{form.name}")(x, **options).wait(), world.comm.rank)

    def test_where_the_result_goes(self, world, algorithm):
        """A new array, `out` and shared memory hold the same bits; the input is not changed."""
        comm = world.comm
        rank = comm.rank
        for n in (0, 1, 1009, 20_000 // comm.size):
            form = self.form(comm.size, n, root=comm.size - 1)
            x = form.x(rank).copy()
            new = form.call(comm, x, algorithm=algorithm)
            out = form.empty(rank)
            # If nothing arrives, it is not looked at.
            got = form.call(comm, x, "no array" if out is None else out, algorithm=algorithm)
            assert digest(x) == digest(form.x(rank))
            given, shared = form.shared(rank)
            inside = form.call(comm, given, shared, algorithm=algorithm)
            form.verify(new, rank)
            if new is None:
                assert got is inside is None
                assert digest(given) == digest(form.x(rank))
            else:
                assert got is out
                assert inside is shared
                assert new.size == 0 or not np.shares_memory(new, x)
                assert digest(new) == digest(out) == digest(shared)

    def test_segments_change_no_bits(self, plain, segments, algorithm, nbytes):
        comm = plain.comm
        rank = comm.rank
        long = longer(nbytes) // (comm.size if self.form.cut else 1)
        for dtype, n in (("float16", 101), ("float32", long), ("complex128", 7)):
            form = self.form(comm.size, n, dtype=dtype, root=comm.size // 2)
            with segments(comm, 0):
                want = form.call(comm, algorithm=algorithm)
            form.verify(want, rank)
            given, shared = form.shared(rank)
            with segments(comm, nbytes):
                got = form.call(comm, algorithm=algorithm)
                inside = form.call(comm, given, shared, algorithm=algorithm)
            if want is not None:
                assert digest(got) == digest(want) == digest(inside), (dtype, n)

    def test_large(self, world, algorithm):
        comm = world.comm
        n = LARGE // comm.size + 1 if self.form.cut else LARGE
        form = self.form(comm.size, n, root=comm.size - 1)
        result = form.call(comm, algorithm=algorithm)
        form.verify(result, comm.rank)
        self.hold_bits(world, algorithm, result)

    def test_scales(self, world, segments, algorithm):
        comm, rank = world.comm, world.comm.rank
        if not self.form.scales:
            with pytest.raises(TypeError, match="unexpected keyword argument 'prescale'"):
                self.form(comm.size, 6).call(comm, prescale=2.0)
            return
        for dtype in (*FLOATS, *COMPLEX) if self.whole else ("bfloat16", "complex128"):
            for n, nbytes in ((0, 0), (1, 0), (1009, 0), (101, 64)):
                form = self.form(comm.size, n, dtype=dtype, root=n % comm.size)
                mean = self.form(comm.size, n, dtype=dtype, op="AVG", root=n % comm.size)
                x = form.x(rank)
                given, shared = form.shared(rank)
                with segments(comm, nbytes):
                    scaled = form.call(comm, algorithm=algorithm, prescale=0.5, postscale=-3.0)
                    doubled = mean.call(comm, algorithm=algorithm, prescale=2.0)
                    half = form.call(comm, given, shared, algorithm=algorithm, postscale=0.5)
                form.verify(scaled, rank, -1.5)
                mean.verify(doubled, rank, 2.0)
                form.verify(half, rank, 0.5)
                if form.cut:  # in place, only this rank's part is written
                    given[form.part(rank)] = x[form.part(rank)]
                    assert digest(given) == digest(x)

    def test_integers_are_not_scaled(self, world):
        for dtype in ("bool", *INTEGERS) if self.form.scales else ():
            op = "LOR" if dtype == "bool" else "SUM"
            form = self.form(world.comm.size, 3, dtype=dtype, op=op)
            for scale in ("prescale", "postscale"):
                text = f"need a floating dtype.*is {dtype}"
                with pytest.raises(errors.UnsupportedTypeError, match=text):
                    form.call(world.comm, **{scale: 0.5})
                form.verify(form.call(world.comm, **{scale: 1.0}), world.comm.rank)

    def test_agrees_with_the_plain_interpreter(self, world, algorithm):
        """The core folds in the order of the plan: equal bits, on every rank."""
        comm = world.comm
        form = self.form(comm.size, 101, root=comm.size - 1)
        got = form.call(comm, algorithm=algorithm)
        digests = world.mpi.gather(None if got is None else digest(got))
        if comm.rank:
            return
        row = cc.algorithms.get(form.collective, algorithm)
        lengths = form.counts.reshape(-1).tolist()
        inputs = [
            form.x(r) if row.collective.inputs(r, comm.size, form.root) else form.x(r)[:0]
            for r in range(comm.size)
        ]
        for r, parts in enumerate(run(row, inputs, form.root, np.add, lengths)):
            want = digest(np.concatenate(list(parts.values()))) if parts else None
            assert digests[r] == want

    def test_inputs(self, world):
        """An array in pieces is packed; the result is as long, and the input unchanged."""
        comm = world.comm
        form = self.form(comm.size, 6, dtype="float64", root=comm.size - 1)
        for change in INPUTS.values():
            x = change(form.x(comm.rank))
            before = bytes(np.asarray(x))
            options = [{}, {"start": True}, *[{"prescale": 2.0}] * self.form.scales]
            for more, out in itertools.product(options, (None, form.empty(comm.rank))):
                got = form.call(comm, x, out, **more)
                got = got.wait() if "start" in more else got
                got = None if got is None else got.reshape(-1)
                form.verify(got, comm.rank, more.get("prescale", 1.0))
            assert bytes(np.asarray(x)) == before

    def test_shapes(self, world):
        """Ranks come before the shape of the input, or parts are cut along its first axis."""
        p, rank, name = world.comm.size, world.comm.rank, self.form.collective
        cuts = name in ("scatter", "reduce_scatter", "alltoall")
        for shape in ((), (1,), (0, 3), (3, 0), (3, 4, 5), (1, 1009)):
            if self.form.vector or (cuts and not shape):
                continue
            form = self.form(p, int(np.prod(shape)), dtype="int32", root=p - 1)
            rows = (p * shape[0], *shape[1:]) if cuts else shape
            got = form.call(world.comm, form.x(rank).reshape(rows))
            if got is not None:
                ranks = (p,) if name in ("allgather", "gather") else ()
                assert got.shape == (rows if name == "alltoall" else (*ranks, *shape))
                got = got.reshape(-1)
            form.verify(got, rank)

    @pytest.mark.several
    def test_what_cannot_be_shared_equally(self, world):
        p, form = world.comm.size, self.form(world.comm.size, 6)
        if form.collective not in ("scatter", "reduce_scatter", "alltoall") or form.vector:
            return
        text = rf"elements, which {p} ranks cannot share equally; {form.collective}v"
        for x in (np.ones(2 * p + 1), np.ones((1, 2 * p + 1)), np.array(3.0)):
            for out in (None, np.ones_like(x), np.ones(2)):
                self.refused(world.comm, f"x has {x.size} {text}", x=x, out=out)

    def test_completed_in_other_orders_on_other_ranks(self, world):
        comm = world.comm
        names = self.form.runnable()
        forms = [
            self.form(comm.size, 1 + 37 * k, dtype="int32", root=k % comm.size, seed=k)
            for k in range(12)
        ]
        requests = [
            form.call(comm, algorithm=names[k % len(names)], start=True)
            for k, form in enumerate(forms)
        ]
        for k in random.Random(comm.rank).sample(range(12), 12):
            if k % 3 == 0:
                while not requests[k].test():
                    pass
            forms[k].verify(requests[k].wait(), comm.rank)
            assert requests[k].wait() is requests[k].wait()

    # -- errors: each leaves the communicator usable ---------------------------------------------

    def refused(self, comm, text, error=errors.ArgumentError, **arguments):
        """Have a call refused that is right but for `arguments`."""
        form = self.form(comm.size, 6, dtype="float64", root=comm.size - 1)
        x, out = arguments.pop("x", None), arguments.pop("out", None)
        for start in (False, True):
            with pytest.raises(error, match=text):
                form.call(comm, x, out, start=start, **arguments)
        form.verify(form.call(comm), comm.rank)

    def test_wrong_algorithm(self, world):
        known = ", ".join(cc.algorithms.names(self.form.collective))
        text = f"{self.form.collective} has no algorithm 'nonsense'; it has: {known}"
        self.refused(world.comm, text, algorithm="nonsense")
        for name in (3, ["ring"], {"name": "ring"}, b"ring"):
            self.refused(world.comm, r"algorithm is .*, and must be a name or None", algorithm=name)
        p = world.comm.size
        for name in set(self.form.algorithms()) - set(self.form.runnable()):
            self.refused(world.comm, f"{name}.*p is {p}", algorithm=name)

    def test_wrong_root(self, world):
        if not self.form.rooted:
            with pytest.raises(TypeError, match="unexpected keyword argument 'root'"):
                self.form(world.comm.size, 6).call(world.comm, root=0)
            return
        for root in (-1, 10**6, 2**70, None, "0", 0.0, [0], np.float32(0)):
            number = "" if isinstance(root, int) else "an integer "
            text = f"root is {root!r}, and must be {number}in 0..{world.comm.size - 1}"
            self.refused(world.comm, re.escape(text), root=root)

    def test_wrong_op(self, world):
        if not self.form.reduces:
            with pytest.raises(TypeError, match="unexpected keyword argument 'op'"):
                self.form(world.comm.size, 6).call(world.comm, op=cc.SUM)
            return
        for op in ("mean", "", None, np.add, cc.Reduction, 0):
            self.refused(world.comm, r"op is .*, and must be one of collectives\.SUM", op=op)
        text = "BAND is not defined on float64; it is on bool, int8"
        self.refused(world.comm, text, errors.UnsupportedTypeError, op=cc.BAND)

    def test_wrong_timeout(self, world):
        comm = world.comm
        form = self.form(comm.size, 6, dtype="float64", root=comm.size - 1)
        for timeout in NO_SECONDS:
            text = re.escape(f"timeout is {timeout!r}, and must be a positive number of seconds")
            with pytest.raises(errors.ArgumentError, match=text):
                form.call(comm, timeout=timeout)
            request = form.call(comm, start=True)
            with pytest.raises(errors.ArgumentError, match=text):
                request.wait(timeout=timeout)
            form.verify(request.wait(60), comm.rank)
        with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
            form.call(comm, start=True, timeout=1.0)

    @pytest.mark.several
    @pytest.mark.parametrize("start", [False, True])
    def test_a_deadline_of_its_own(self, world, fresh, start):
        """Rank 0 does not come: somebody waits for it as long as the call says, not longer."""
        comm = fresh(validate=False, timeout=1000.0)
        gives = self.form.collective in ("broadcast", "scatter")
        form = self.form(comm.size, 6, root=0 if gives else comm.size - 1)
        form.counts = np.full_like(form.counts, 6)  # nobody waits for an empty part
        told = ""
        if comm.rank:
            try:
                if start:
                    form.call(comm, start=True).wait(timeout=0.2)
                else:
                    form.call(comm, timeout=0.2)
            except errors.StallError as error:
                told = str(error)
                assert f": rank {comm.rank} timed out after 0.2 s: " in told
            except errors.PeerAbortedError:
                pass  # it had less to wait for, and another rank gave up
            assert comm.timeout == 1000.0
        assert any(world.mpi.allgather(told))

    def test_wrong_input(self, world):
        for x, text, error in (
            ([1.0], "x is a list, which has no buffer; pass np.asarray", BufferError),
            (np.array([None]), "x has dtype object; supported are bool", TypeError),
            (np.zeros(2, "i4,f4"), "x has dtype .*supported are bool", TypeError),
            (
                "abc",
                "x is a str, which has no buffer; calls for objects end in _object",
                errors.BufferError,
            ),
        ):
            self.refused(world.comm, text, error, x=x)

    def test_wrong_output(self, world):
        """If a rank gets no result, `out` is not looked at."""
        comm = world.comm
        form = self.form(comm.size, 6, dtype="float64", root=comm.size - 1)
        right = form.empty(comm.rank)
        n = 0 if right is None else right.size
        locked = np.zeros(n)
        locked.flags.writeable = False
        wrong = {
            f"out has {n + 1} elements, and the result has {n}; they must be": np.zeros(n + 1),
            "out is float32 and x is float64; they must be equal": np.zeros(n, "f4"),
            r"out is not C-contiguous \(shape": np.zeros((n + 2, 2))[:, 0],
            "out is read-only, and would be written": locked,
            "out is a list, which has no buffer": [0.0] * n,
        }
        for text, out in wrong.items():
            self.one_refuses(comm, form, right is not None, text, None, out)

    def one_refuses(self, comm, form, refuses, text, *arrays):
        """Have some ranks refuse a call; the others hear of it, if there are any who refuse."""
        if refuses:
            with pytest.raises(errors.BufferError, match=text):
                form.call(comm, *arrays)
        elif comm.size == 1:
            assert form.call(comm, *arrays) is None
        else:
            told = rf"refused {form.name}\(BufferError: out "
            with pytest.raises(errors.MismatchError, match=told):
                form.call(comm, *arrays)
        form.verify(form.call(comm), comm.rank)

    def test_partial_overlap(self, world):
        """Memory that is shared in another way than a call in place has it is refused."""
        comm = world.comm
        form = self.form(comm.size, 6, dtype="float64", root=comm.size - 1)
        if form.collective == "alltoall" or form.vector:
            pytest.skip("its input is copied where it overlaps, or some of its parts are empty")
        x, out = form.shared(comm.rank)
        start_x, start_out = (a.__array_interface__["data"][0] // 8 for a in (x, out))
        ahead = start_out + 1 - start_x
        base = max(0, -ahead)
        memory = np.zeros(base + max(x.size, ahead + out.size))
        x = memory[base:][: x.size]
        out = memory[base + ahead :][: out.size]
        assert np.shares_memory(x, out)
        remedy = {
            "allgather": "x as the part of out that it becomes",
            "gather": "x as the part of out that it becomes",
            "scatter": "out as this rank's part of x",
            "reduce_scatter": "out as this rank's part of x",
        }.get(form.collective, "out=x")
        if comm.size == 1:
            remedy = "out=x"
        text = f"out overlaps x in part; pass {remedy}, or arrays that share no memory"
        alone = form.rooted and comm.rank != form.root
        refuses = form.wanted(comm.rank) is not None and not alone
        self.one_refuses(comm, form, refuses, text, x, out)

    @pytest.mark.several
    def test_every_rank_is_told_who_called_what(self, world, difference):
        comm = world.comm
        p, name = comm.size, self.form.name
        other = {
            "count": {"n": 7},
            "dtype": {"dtype": "float64"},
            "root": {"root": 1},
            "op": {"op": "MAX"},
        }.get(difference, {})
        form = self.form(p, 6, dtype="int64")
        odd_form = self.form(p, **{"n": 6, "dtype": "int64"} | other)
        algorithms = self.form.algorithms()
        other_choice = 0 if difference == "algorithm" else -1
        text = {
            "count": "counts=" if form.vector else rf"count={odd_form.total}\b",
            "dtype": "dtype=float64",
            "root": "root=1",
            "op": "op=MAX",
            "algorithm": f"algorithm={algorithms[0]}",
            "barrier": "",
        }[difference]
        for odd in {0, p // 2, p - 1}:
            which, choice = (form, -1) if comm.rank != odd else (odd_form, other_choice)
            call = functools.partial(which.call, comm, algorithm=algorithms[choice])
            if comm.rank == odd and difference == "barrier":
                call = comm.barrier
            with pytest.raises(errors.MismatchError, match="the ranks do not agree: ") as caught:
                call()
            told = str(caught.value)
            called = "barrier" if difference == "barrier" else name
            assert re.search(rf"\brank {odd} called {called}\([^;]*{text}", told), told
            ours = rf"called {name}\([^;]*dtype=int64[^;]*={algorithms[-1]}\b"
            if difference == "barrier":  # which may come at the exchange of counts
                ours = f"called {form.collective}"
            if difference == "root" and form.vector:  # the root says its counts first
                ours = rf"called {name}\(root=0, its counts\)"
            assert re.search(ours, told), told
            world.agree(told)
            form.verify(form.call(comm), comm.rank)

    @pytest.mark.several
    def test_a_refused_call_is_told_to_the_others(self, world):
        comm = world.comm
        form = self.form(comm.size, 6)
        for odd in {0, comm.size - 1}:
            for exchange in {False, form.vector}:
                if comm.rank == odd:
                    with pytest.raises(errors.BufferError, match="x is a list"):
                        form.call(comm, [1.0], exchange=exchange)
                else:
                    text = rf"rank {odd} refused {form.name}\(BufferError: x is a list"
                    with pytest.raises(errors.MismatchError, match=text):
                        form.call(comm, exchange=exchange)
                form.verify(form.call(comm), comm.rank)
