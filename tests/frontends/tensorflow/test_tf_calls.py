"""Horovod's calls on tensors of TensorFlow, eagerly and in a tf.function."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from horovod_names import exported, wanted
from places import RANK, SIZE

import collectives.tensorflow as hvd
from collectives.errors import MismatchError

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
MEAN = (SIZE - 1) / 2  # of the numbers of the ranks


@pytest.fixture(params=["eager", "function"])
def way(request):
    """How a function of tensors is called."""
    return tf.function if request.param == "function" else lambda function: function


def equal(tensor, expected, dtype=None):
    """Say whether a tensor has these elements, exactly."""
    assert dtype is None or tensor.dtype == dtype
    assert tuple(tensor.shape) == np.shape(expected)
    return bool(np.array_equal(tensor.numpy().astype(np.float64), np.asarray(expected)))


@pytest.mark.parametrize("front_end", ["tensorflow", "tensorflow.mpi_ops", "tensorflow.keras"])
def test_it_has_the_names_of_horovod(front_end):
    assert exported(front_end) == wanted(front_end)


def test_it_says_which_rank_this_is(way):
    assert (hvd.rank(), hvd.size()) == (RANK, SIZE)
    asked = way(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()])
    assert [int(each) for each in asked()] == [RANK, SIZE, hvd.local_rank(), hvd.local_size()]
    assert int(way(hvd.process_set_included_op)()) == 1
    assert int(hvd.process_set_included_op(77)) == -2
    assert not hvd.nccl_built()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_allreduce_takes_the_mean(way, dtype):
    @way
    def reduce(*tensors):
        return [hvd.allreduce(each, name=f"{dtype.name} {k}") for k, each in enumerate(tensors)]

    shapes = [(), (0, 3), (5,), (2, 3, 4)]
    results = reduce(*[tf.cast(tf.fill(shape, RANK + 1.0), dtype) for shape in shapes])
    for shape, result in zip(shapes, results, strict=True):
        assert equal(result, np.full(shape, MEAN + 1), dtype)


def test_all_operations(way):
    x = tf.constant([1.0, -2.0]) * (RANK + 1)
    every = np.stack([np.array([1.0, -2.0]) * (rank + 1) for rank in range(SIZE)])
    expected = {"Sum": every.sum(0), "Min": every.min(0), "Max": every.max(0)}
    expected["Product"] = every.prod(0)
    for op, value in expected.items():
        assert equal(way(lambda x, op=op: hvd.allreduce(x, op=getattr(hvd, op)))(x), value)
    scaled = way(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))
    assert equal(scaled(x), 2 * every.sum(0))


def test_the_mean_of_integers_is_truncated(way):
    x = tf.constant([1, -1, 7]) + RANK
    total = sum(np.array([1, -1, 7]) + rank for rank in range(SIZE))
    assert equal(way(hvd.allreduce)(x), np.trunc(total / SIZE), tf.int32)
    assert equal(way(lambda x: hvd.allreduce(x, op=hvd.Sum))(x), total)
    if SIZE == 1:
        return
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(tf.constant([True]), prescale_factor=0.5)
    with pytest.raises(hvd.HorovodInternalError, match="bool"):
        way(hvd.allreduce)(tf.constant([True]))


def test_arguments_of_older_programs():
    loss = tf.constant(float(RANK))
    with pytest.warns(DeprecationWarning, match="op="):
        assert equal(hvd.allreduce(loss, average=True), MEAN)
    with pytest.raises(ValueError, match="both"):
        hvd.allreduce(loss, average=True, op=hvd.Sum)
    assert equal(hvd.allreduce(tf.Variable([1.0 + RANK]), device_dense="/cpu:0"), [MEAN + 1])
    assert equal(hvd.allreduce(float(RANK)), MEAN)


@pytest.mark.parametrize("codec", [hvd.Compression.fp16, "float16"])
def test_compression(way, codec):
    x = tf.fill((100,), float(RANK))
    result = way(lambda x: hvd.allreduce(x, compression=codec, name="compressed"))(x)
    assert equal(result, np.full(100, MEAN), tf.float32)


def test_groups(way):
    xs = [tf.ones((3,)) * RANK, tf.ones((2, 2), tf.int32), tf.constant(1.0 + RANK)]
    first, second, third = way(lambda *xs: hvd.grouped_allreduce(list(xs), name="group"))(*xs)
    assert equal(first, np.full(3, MEAN))
    assert equal(second, np.ones((2, 2)), tf.int32)
    assert equal(third, MEAN + 1)
    parts = way(lambda x: hvd.grouped_reducescatter([x, 2 * x], op=hvd.Sum))(tf.ones((SIZE, 2)))
    assert equal(parts[1], np.full((1, 2), 2.0 * SIZE))
    joined, _ = way(lambda x: hvd.grouped_allgather([x, x]))(tf.fill((RANK + 1, 2), RANK))
    assert equal(joined[:, 0], np.repeat(np.arange(SIZE), np.arange(SIZE) + 1))


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.int64, tf.bool], ids=lambda dtype: dtype.name)
def test_allgather_takes_parts_of_different_lengths(way, dtype):
    x = tf.cast(tf.ones((RANK + 1, 2)), dtype)
    assert equal(way(hvd.allgather)(x), np.ones((SIZE * (SIZE + 1) // 2, 2)), dtype)
    empty = way(lambda x: hvd.allgather(x, name="empty"))(tf.zeros((RANK, 0)))
    assert tuple(empty.shape) == (sum(range(SIZE)), 0)
    with pytest.raises(ValueError, match="no dimensions"):
        hvd.allgather(tf.constant(1.0))


def test_broadcast(way):
    x = tf.constant([[RANK, 5]], tf.int64)
    last = SIZE - 1
    assert equal(way(lambda x: hvd.broadcast(x, last, name="x"))(x), [[last, 5]])
    variables = [tf.Variable([RANK]), tf.Variable(float(RANK))]
    values = way(lambda: hvd.broadcast_(variables, last))()
    assert [int(each.numpy().item()) for each in [*variables, *values]] == [last] * 4
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(x, SIZE)


def test_alltoall_with_splits(way):
    x = tf.fill((SIZE * (SIZE - 1) // 2 + 1, 2), float(RANK))  # rank k gets k rows
    moved, received = way(lambda x, n: hvd.alltoall(x, splits=n))(x, tf.range(SIZE))
    assert equal(received, np.full(SIZE, RANK), tf.int32)
    assert equal(moved[:, 0], np.repeat(np.arange(SIZE), RANK))
    assert equal(way(hvd.alltoall)(tf.range(SIZE)), np.full(SIZE, RANK))
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(x, splits=[1] * (SIZE + 1))


def test_reducescatter_gives_the_first_ranks_more(way):
    x = tf.range(2.0 * SIZE + 1)[:, tf.newaxis]
    part = way(lambda x: hvd.reducescatter(x, op=hvd.Sum))(x)
    rows = [3 if rank == 0 else 2 for rank in range(SIZE)]
    first = sum(rows[:RANK])
    assert equal(part[:, 0], SIZE * np.arange(first, first + rows[RANK]))


def test_slices_of_all_ranks_are_joined(way):
    @way
    def reduce(values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([SIZE + 1, 2]))
        return tf.convert_to_tensor(hvd.allreduce(slices, name="slices"))

    dense = reduce(tf.ones((2, 2)), tf.constant([RANK, SIZE]))
    assert equal(dense, np.array([[1 / SIZE] * 2] * SIZE + [[1.0, 1.0]]).astype(np.float32))
    whole = tf.IndexedSlices(tf.ones((1, 2), tf.uint8), tf.constant([0]))
    assert equal(hvd.allreduce(whole).values, np.full((SIZE, 2), 1 / SIZE, np.float32))
    for op in (hvd.Max, hvd.Adasum):
        with pytest.raises(NotImplementedError, match="Average and Sum"):
            hvd.grouped_allreduce([tf.constant([1]), whole], op=op)


# -- gradients -------------------------------------------------------------------------------------


def gradient(way, function, x):
    @way
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return compute(x)


def test_gradients_are_reduced_as_the_tensors(way):
    x = tf.ones(3) * (RANK + 1)
    weight = RANK + 1.0
    total = SIZE * (SIZE + 1) / 2
    sums = gradient(way, lambda x: tf.reduce_sum(weight * hvd.allreduce(x, op=hvd.Sum)), x)
    assert equal(sums, np.full(3, total))
    means = gradient(way, lambda x: tf.reduce_sum(weight * hvd.allreduce(x)), x)
    assert equal(means, np.full(3, total / SIZE))
    both = gradient(way, lambda x: tf.add_n(hvd.grouped_allreduce([x, x * x], op=hvd.Sum)), x)
    assert equal(both, SIZE * (1 + 2 * x.numpy()))


def test_gradients_of_what_moves(way):
    x = tf.ones((SIZE, 2))
    weights = tf.range(1.0, SIZE * SIZE + 1)[:, tf.newaxis]
    gathered = gradient(way, lambda x: tf.reduce_sum(weights * hvd.allgather(x)), x)
    assert equal(gathered[:, 0], np.arange(1, SIZE * SIZE + 1)[RANK * SIZE : (RANK + 1) * SIZE])
    sent = gradient(way, lambda x: tf.reduce_sum((RANK + 1) * hvd.broadcast(x, 0)), x)
    assert equal(sent, np.full((SIZE, 2), (SIZE + 1) / 2 if RANK == 0 else 0.0))
    moved = gradient(way, lambda x: tf.reduce_sum((RANK + 1) * hvd.alltoall(x)), x)
    assert equal(moved[:, 0], np.arange(1, SIZE + 1))
    parts = gradient(way, lambda x: tf.reduce_sum(hvd.reducescatter(x, op=hvd.Sum)), x)
    assert equal(parts, np.full((SIZE, 2), SIZE))


def test_gradients_of_gradients(way):
    x = tf.constant([2.0, 3.0])

    def inner(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x * x, op=hvd.Sum)
        return tape.gradient(y, x)

    assert equal(gradient(way, inner, x), np.full(2, 2.0 * SIZE))


# -- variables, objects, process sets --------------------------------------------------------------


def test_variables_are_sent_but_for_seeds(way):
    dropout = tf.keras.layers.Dropout(0.5, seed=RANK)
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2), dropout])
    optimizer = tf.keras.optimizers.Adam(0.1 * (RANK + 1))
    optimizer.build(model.trainable_variables)
    model.set_weights([np.full((3, 2), RANK), np.full(2, 5.0 + RANK)])
    seed = dropout.seed_generator.state.numpy()
    way(lambda: hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0))()
    assert np.array_equal(model.get_weights()[0], np.zeros((3, 2)))
    assert np.array_equal(model.get_weights()[1], np.full(2, 5.0))
    assert float(optimizer.learning_rate) == pytest.approx(0.1)
    assert np.array_equal(dropout.seed_generator.state.numpy(), seed)
    if SIZE > 1:
        with pytest.raises(ValueError, match="string"):
            hvd.broadcast_variables([tf.Variable("text")], 0)


def test_graphs_of_tensorflow_1():
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=[1.0 + RANK])
        loss = tf.reduce_sum(variable * variable)
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.25))
        step = optimizer.minimize(loss)
        hook = hvd.BroadcastGlobalVariablesHook(SIZE - 1)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(variable).tolist() == [SIZE]
            session.run(step)
            assert session.run(variable).tolist() == [SIZE / 2]
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)


FORMS = {
    "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum),
    "grouped_allreduce": lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[0],
    "reducescatter": lambda x: hvd.reducescatter(tf.stack([x] * SIZE), op=hvd.Sum)[0],
    "allgather": lambda x: tf.reduce_sum(hvd.allgather(x[tf.newaxis])),
    "broadcast": lambda x: SIZE * (hvd.broadcast(x, 0) + MEAN),
    "alltoall": lambda x: tf.reduce_sum(hvd.alltoall(tf.stack([x] * SIZE))),
}


def late(x, rank):
    """Return a tensor of a graph, which this rank has later than others if it is `rank`."""

    def slept(x):
        time.sleep(0.05 if rank == RANK else 0.0)
        return x

    made = tf.numpy_function(slept, [x], x.dtype)
    made.set_shape(x.shape)
    return made


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_a_graph_of_tensorflow_1_runs_in_any_order(form, threads):
    with tf.Graph().as_default():
        values = [late(tf.constant(100.0 * k + RANK), k) for k in range(4)]
        fetches = [FORMS[form](each) for each in values]
        expected = [SIZE * (100 * k + MEAN) for k in range(4)]
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
        with tf.compat.v1.train.MonitoredTrainingSession(config=config) as session:
            for _ in range(3):
                assert session.run(fetches) == expected


def test_gradients_in_a_graph_of_tensorflow_1():
    with tf.Graph().as_default():
        xs = [tf.constant(1.0) for _ in range(2)]
        weights = [late(tf.constant(10.0**k * (RANK + 1)), k) for k in range(2)]
        losses = [hvd.allreduce(x) * weight for x, weight in zip(xs, weights, strict=True)]
        with tf.compat.v1.Session() as session:
            assert session.run(tf.gradients(losses, xs)) == [MEAN + 1, 10 * (MEAN + 1)]


def test_the_gradient_of_a_broadcast_is_reduced_on_all_ranks_of_a_graph_of_tensorflow_1():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for root in range(SIZE):
            x = tf.constant(1.0)
            grad = tf.gradients(hvd.broadcast(x, root), x, tf.constant(RANK + 1.0))
            assert session.run(grad) == [MEAN + 1 if root == RANK else 0]


def test_objects():
    assert hvd.broadcast_object({"rank": RANK}, SIZE - 1) == {"rank": SIZE - 1}
    assert hvd.broadcast_object_fn(0)([RANK]) == [0]
    assert hvd.allgather_object("x" * RANK) == ["x" * rank for rank in range(SIZE)]


@pytest.mark.several
def test_process_sets(way):
    last = hvd.add_process_set([SIZE - 1])
    pair = hvd.add_process_set([0, SIZE - 1]) if SIZE > 2 else hvd.global_process_set
    x = tf.constant([float(RANK)])
    if RANK in (0, SIZE - 1):
        assert equal(way(lambda x: hvd.allreduce(x, process_set=pair))(x), [(SIZE - 1) / 2])
    if RANK == SIZE - 1:
        assert equal(way(lambda x: hvd.allreduce(x, process_set=last))(x), [RANK])
    else:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="which is not in ProcessSet"
        ) as caught:
            hvd.allreduce(x, process_set=last)
        assert isinstance(caught.value, ValueError)
    assert int(hvd.size_op(last.process_set_id)) == 1
    assert int(hvd.process_set_included_op(last.process_set_id)) == (RANK == SIZE - 1)
    hvd.remove_process_set(last)
    if SIZE > 2:
        hvd.remove_process_set(pair)


def test_ranks_with_less_data_join(way):
    for _ in range(RANK + 1):
        way(lambda x: hvd.allreduce(x, op=hvd.Sum, name="more"))(tf.ones(2))
    assert int(hvd.join()) == SIZE - 1
    hvd.barrier()


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.several
def test_what_differs_between_ranks_is_an_error_on_all(way):
    reduce = way(lambda x: hvd.allreduce(x, name="differs"))
    for _ in range(2):
        with pytest.raises(hvd.HorovodInternalError, match="differs between ranks") as caught:
            reduce(tf.ones(3, tf.float32 if RANK else tf.float64))
        assert isinstance(caught.value.__cause__, MismatchError)
        assert "rank 0: allreduce of float64 (3,)" in str(caught.value)
    assert equal(reduce(tf.ones(3)), np.ones(3))
    assert isinstance(caught.value, tf.errors.FailedPreconditionError)
    with pytest.raises(tf.errors.InvalidArgumentError, match="splits") as caught:
        way(lambda x: hvd.alltoall(x, splits=[2] * SIZE))(tf.ones(1))
    assert isinstance(caught.value, hvd.HorovodInternalError)


@pytest.mark.several
def test_a_function_that_xla_compiles_is_refused():
    @tf.function(jit_compile=True)
    def compiled(x):
        return hvd.allreduce(x)

    with pytest.raises(ValueError, match="jit_compile=False"):
        compiled(tf.ones(3))
