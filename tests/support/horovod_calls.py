"""Promises of Horovod's calls for any framework: one body, and an adapter for each framework.

A class of tests inherits `HorovodCalls`, and makes and reads tensors. The fixture `way` of its
module calls a function of tensors: as it is, or compiled.
"""

from __future__ import annotations

import numpy as np
import pytest
from places import RANK, SIZE

from collectives.errors import MismatchError

MEAN = (SIZE - 1) / 2  # of the numbers of the ranks


class HorovodCalls:
    """The tests; `hvd` is the front end."""

    hvd = None

    def tensor(self, values, dtype="float32"):
        raise NotImplementedError

    def dtype(self, tensor):
        """Return the name of a tensor's dtype."""
        raise NotImplementedError

    def numpy(self, tensor):
        """Return the elements as float64."""
        raise NotImplementedError

    def total(self, tensor):
        """Return the sum of all elements, a tensor."""
        raise NotImplementedError

    def gradient(self, way, function, x):
        raise NotImplementedError

    def hold(self, tensor, expected, dtype=None):
        """Hold a tensor against its elements, exactly."""
        assert dtype is None or self.dtype(tensor) == dtype
        assert tuple(tensor.shape) == np.shape(expected)
        np.testing.assert_array_equal(self.numpy(tensor), np.asarray(expected))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
    def test_allreduce_takes_the_mean(self, way, dtype):
        @way
        def reduce(*tensors):
            calls = enumerate(tensors)
            return [self.hvd.allreduce(each, name=f"{dtype} {k}") for k, each in calls]

        shapes = [(), (0, 3), (5,), (2, 3, 4)]
        results = reduce(*[self.tensor(np.full(shape, RANK + 1), dtype) for shape in shapes])
        for shape, result in zip(shapes, results, strict=True):
            self.hold(result, np.full(shape, MEAN + 1), dtype)

    def test_all_operations(self, way):
        hvd = self.hvd
        every = np.stack([np.array([1.0, -2.0]) * (rank + 1) for rank in range(SIZE)])
        x = self.tensor(every[RANK])
        for op, function in (("Sum", "sum"), ("Min", "min"), ("Max", "max"), ("Product", "prod")):
            reduced = way(lambda x, op=op: hvd.allreduce(x, op=getattr(hvd, op)))(x)
            self.hold(reduced, getattr(every, function)(0))
        scales = {"prescale_factor": 0.5, "postscale_factor": 4.0}
        self.hold(way(lambda x: hvd.allreduce(x, op=hvd.Sum, **scales))(x), 2 * every.sum(0))

    def test_the_mean_of_integers_is_truncated(self, way):
        x = self.tensor([1 + RANK, -1 + RANK, 7 + RANK], "int32")
        total = sum(np.array([1, -1, 7]) + rank for rank in range(SIZE))
        self.hold(way(self.hvd.allreduce)(x), np.trunc(total / SIZE), "int32")
        self.hold(way(lambda x: self.hvd.allreduce(x, op=self.hvd.Sum))(x), total)

    def test_average_is_an_older_argument(self):
        x = self.tensor([1.0 + RANK])
        for average, expected in ((True, MEAN + 1), (False, SIZE * (MEAN + 1))):
            with pytest.warns(DeprecationWarning, match="op="):
                self.hold(self.hvd.allreduce(x, average=average), [expected])
        with pytest.raises(ValueError, match="both"):
            self.hvd.allreduce(x, average=True, op=self.hvd.Sum)

    def test_compression_and_groups(self, way):
        hvd, codec = self.hvd, self.hvd.Compression.fp16
        x = self.tensor(np.full(100, RANK))
        one = way(lambda x: hvd.allreduce(x, compression=codec, name="compressed"))(x)
        self.hold(one, np.full(100, MEAN), "float32")
        xs = [np.full(3, RANK), np.ones((2, 2)), 1.0 + RANK]
        xs = [self.tensor(x, "int32" if np.ndim(x) == 2 else "float32") for x in xs]
        results = way(lambda *xs: hvd.grouped_allreduce(list(xs), name="g", compression=codec))(*xs)
        self.hold(results[0], np.full(3, MEAN), "float32")
        self.hold(results[1], np.ones((2, 2)), "int32")
        self.hold(results[2], MEAN + 1, "float32")

    def test_a_codec_of_the_library_compresses_an_allreduce(self, way):
        # Float16 rounds nearly all of these. The sum of rounded thirds on 3 ranks is 1 again.
        hvd, every = self.hvd, [np.linspace(0.1, 0.9, 100), np.linspace(0.2, 0.8, 20).reshape(4, 5)]
        xs = [self.tensor(each) for each in every]
        one = way(lambda x: hvd.allreduce(x, compression="float16", name="codec"))(xs[0])
        options = {"compression": "float16", "name": "codecs"}
        both = way(lambda *xs: hvd.grouped_allreduce(list(xs), **options))(*xs)
        for result, expected in zip((one, *both), (every[0], *every), strict=True):
            assert self.dtype(result) == "float32"
            np.testing.assert_allclose(self.numpy(result), expected, rtol=1e-3)
            assert SIZE == 1 or not np.allclose(self.numpy(result), expected, rtol=1e-6)

    def test_a_codec_of_a_call_that_takes_none_is_refused(self):
        x = self.tensor(np.ones((SIZE, 2)))
        for tensors, call in ((x, self.hvd.reducescatter), ([x], self.hvd.grouped_reducescatter)):
            with pytest.raises(ValueError, match="is 'int8', and must be a class such as"):
                call(tensors, compression="int8")

    @pytest.mark.several
    @pytest.mark.parametrize("name", [None, "g"])
    @pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter"])
    def test_a_refused_member_leaves_nothing_of_its_group(self, kind, name):
        """A rank that catches the error goes on with the same calls as the others."""
        call = getattr(self.hvd, f"grouped_{kind}")
        options = {"name": name} if kind == "allgather" else {"name": name, "op": self.hvd.Sum}
        x = np.arange(2.0 * SIZE) + RANK
        if RANK == 0:
            wrong = self.tensor(1.0)
            if kind == "allreduce":
                options["op"], wrong = self.hvd.Max, self.tensor([1.0], "complex64")
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                call([self.tensor(x - 7), wrong], **options)
        options |= {} if kind == "allgather" else {"op": self.hvd.Sum}
        both = call([self.tensor(x), self.tensor(2 * x)], **options)
        every = np.array([np.arange(2.0 * SIZE) + rank for rank in range(SIZE)])
        wanted = every.ravel() if kind == "allgather" else every.sum(axis=0)
        if kind == "reducescatter":
            wanted = wanted[2 * RANK :][:2]
        for factor, result in enumerate(both, 1):
            self.hold(result, factor * wanted)

    def test_groups_of_what_moves(self, way):
        hvd = self.hvd
        x = self.tensor(np.ones((SIZE, 2)))
        parts = way(lambda x: hvd.grouped_reducescatter([x, 2 * x], op=hvd.Sum))(x)
        self.hold(parts[0], np.full((1, 2), float(SIZE)))
        self.hold(parts[1], np.full((1, 2), 2.0 * SIZE))
        x = self.tensor(np.full((RANK + 1, 2), RANK))
        joined, other = way(lambda x: hvd.grouped_allgather([x, x[:0]]))(x)
        self.hold(joined[:, 0], np.repeat(np.arange(SIZE), np.arange(SIZE) + 1))
        assert tuple(other.shape) == (0, 2)

    @pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "bool"])
    def test_allgather_takes_parts_of_different_lengths(self, way, dtype):
        x = self.tensor(np.ones((RANK + 1, 2)), dtype)
        self.hold(way(self.hvd.allgather)(x), np.ones((SIZE * (SIZE + 1) // 2, 2)), dtype)
        empty = way(lambda x: self.hvd.allgather(x, name="empty"))(self.tensor(np.zeros((RANK, 0))))
        assert tuple(empty.shape) == (sum(range(SIZE)), 0)

    @pytest.mark.parametrize("dtype", ["bfloat16", "int64"])
    def test_broadcast_by_any_rank(self, way, dtype):
        x = self.tensor([[RANK, 5]], dtype)
        for root in range(SIZE):
            sent = way(lambda x, root=root: self.hvd.broadcast(x, root, name="x"))(x)
            self.hold(sent, [[root, 5]], dtype)
            self.hold(x, [[RANK, 5]])
        with pytest.raises(ValueError, match="root_rank"):
            self.hvd.broadcast(x, SIZE)

    def test_alltoall_with_splits(self, way):
        x = self.tensor(np.full((SIZE * (SIZE - 1) // 2 + 1, 2), RANK))  # rank k gets k rows
        splits = self.tensor(np.arange(SIZE), "int32")
        moved, received = way(lambda x, n: self.hvd.alltoall(x, splits=n))(x, splits)
        self.hold(received, np.full(SIZE, RANK), "int32")
        self.hold(moved[:, 0], np.repeat(np.arange(SIZE), RANK))
        numbers = self.tensor(np.arange(SIZE), "int64")
        self.hold(way(self.hvd.alltoall)(numbers), np.full(SIZE, RANK), "int64")
        with pytest.raises(ValueError, match="splits"):
            self.hvd.alltoall(x, splits=[1] * (SIZE + 1))

    def test_reducescatter_gives_the_first_ranks_more(self, way):
        x = self.tensor(np.arange(2.0 * SIZE + 1)[:, np.newaxis])
        part = way(lambda x: self.hvd.reducescatter(x, op=self.hvd.Sum))(x)
        rows = np.array_split(np.arange(2.0 * SIZE + 1), SIZE)[RANK]
        self.hold(part[:, 0], SIZE * rows)

    def test_gradients(self, way):
        """That of a broadcast is the mean over ranks, as Horovod has it; all others are sums."""
        hvd, total, weight = self.hvd, SIZE * (SIZE + 1) / 2, RANK + 1.0
        flat = np.ones(3) * weight
        square = np.ones((SIZE, 2))
        weights = self.tensor(np.arange(1.0, SIZE * SIZE + 1)[:, np.newaxis])
        row = np.arange(1, SIZE * SIZE + 1)[RANK * SIZE : (RANK + 1) * SIZE]
        columns = np.ones((1, 2))
        for call, x, expected in (
            (lambda x: weight * hvd.allreduce(x, op=hvd.Sum), flat, np.full(3, total)),
            (lambda x: weight * hvd.allreduce(x), flat, np.full(3, total / SIZE)),
            (
                lambda x: sum(hvd.grouped_allreduce([x, x * x], op=hvd.Sum)),
                flat,
                SIZE * (1 + 2 * flat),
            ),
            (lambda x: weights * hvd.allgather(x), square, row[:, np.newaxis] * columns),
            (lambda x: weight * hvd.broadcast(x, 0), square, square * (MEAN + 1) * (RANK == 0)),
            (
                lambda x: weight * hvd.alltoall(x),
                square,
                np.arange(1, SIZE + 1)[:, np.newaxis] * columns,
            ),
        ):
            made = self.gradient(way, lambda x, call=call: self.total(call(x)), self.tensor(x))
            self.hold(made, np.asarray(expected, np.float32))

    def test_objects(self):
        assert self.hvd.broadcast_object({"rank": RANK}, SIZE - 1) == {"rank": SIZE - 1}
        assert self.hvd.allgather_object([RANK] * RANK) == [[rank] * rank for rank in range(SIZE)]

    def test_values_that_must_be_equal(self):
        equal = {"w": self.tensor([[1, 2], [3, 4]]), "rate": 0.5}
        self.hvd.same(equal, "model")
        other = {"w": self.tensor([[1, 2], [3, 4 + RANK]]), "rate": 0.5}
        if SIZE > 1:
            with pytest.raises(
                MismatchError, match=r"of model\.w, an array of float32 with .*4 ele"
            ):
                self.hvd.same(other, "model")
        self.hvd.same(equal, "model")

    @pytest.mark.several
    def test_what_differs_between_ranks_is_an_error_on_all(self, way):
        reduce = way(lambda x: self.hvd.allreduce(x, name="differs", op=self.hvd.Sum))
        for odd in (np.ones(2 + RANK), np.ones((1, RANK + 1))):
            text = "'allreduce.differs' differs between ranks"
            with pytest.raises(self.hvd.HorovodInternalError, match=text) as caught:
                reduce(self.tensor(odd))
            assert isinstance(caught.value.__cause__, MismatchError)
        with pytest.raises(
            self.hvd.HorovodInternalError, match=r"rank 0: allreduce of float64 \(3"
        ):
            reduce(self.tensor(np.ones(3), "float32" if RANK else "float64"))
        op = self.hvd.Sum if RANK else self.hvd.Average
        for call in self.hvd.allreduce, self.hvd.reducescatter:
            mean = way(lambda x, call=call: call(x, name="mean", op=op))
            with pytest.raises(self.hvd.HorovodInternalError, match=r"rank 0: .* AVG.*; .* SUM"):
                mean(self.tensor([1] * SIZE, "int32"))
        self.hold(reduce(self.tensor(np.ones(3))), np.full(3, SIZE))

    def test_ranks_with_less_data_join(self, way):
        for done in range(RANK + 1):
            for op, expected in (("Sum", SIZE - done), ("Average", (SIZE - done) / SIZE)):
                op = getattr(self.hvd, op)
                reduce = way(lambda x, op=op: self.hvd.allreduce(x, op=op, name="more"))
                self.hold(reduce(self.tensor(np.ones(2))), np.full(2, expected, np.float32))
        assert int(self.hvd.join()) == SIZE - 1
        self.hvd.barrier()

    @pytest.mark.several
    def test_process_sets(self, way):
        hvd = self.hvd
        first = hvd.add_process_set([0])
        others = hvd.add_process_set(range(1, SIZE)) if SIZE > 2 else None
        assert first.included() == (RANK == 0)
        assert first.size() == 1
        mine = first if RANK == 0 else others
        if mine is not None:
            ranks = [0] if RANK == 0 else list(range(1, SIZE))
            x = self.tensor([RANK], "int64")
            self.hold(way(lambda x: hvd.allgather(x, process_set=mine))(x), ranks)
            last = way(lambda x: hvd.broadcast(x, ranks[-1], process_set=mine))(x)
            self.hold(last, ranks[-1:])
            mean = way(lambda x: hvd.allreduce(x, process_set=mine))(self.tensor([float(RANK)]))
            self.hold(mean, [np.mean(ranks)])
            assert mine.rank() == ranks.index(RANK)
        if RANK:
            with pytest.raises(ValueError, match="not in"):
                hvd.allreduce(self.tensor([1.0]), process_set=first)
        with pytest.raises(ValueError, match="already"):
            hvd.add_process_set([0])
        assert hvd.remove_process_set(first)
        assert not hvd.remove_process_set(first)
        assert others is None or hvd.remove_process_set(others)
        assert not hvd.remove_process_set(hvd.global_process_set)
