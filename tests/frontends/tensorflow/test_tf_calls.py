"""Horovod's calls on tensors of TensorFlow, eagerly and in a tf.function."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from horovod_calls import MEAN, HorovodCalls
from horovod_names import exported, wanted
from places import RANK, SIZE

import collectives.tensorflow as hvd


class TestCalls(HorovodCalls):
    hvd = hvd

    def tensor(self, values, dtype="float32"):
        return tf.cast(tf.constant(values), dtype)

    def dtype(self, tensor):
        return tensor.dtype.name

    def numpy(self, tensor):
        return tensor.numpy().astype(np.float64)

    def total(self, tensor):
        return tf.reduce_sum(tensor)

    def gradient(self, way, function, x):
        @way
        def compute(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)

        return compute(x)


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


@pytest.mark.several
def test_bools_have_no_mean(way):
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(tf.constant([True]), prescale_factor=0.5)
    with pytest.raises(hvd.HorovodInternalError, match="bool"):
        way(hvd.allreduce)(tf.constant([True]))


def test_other_arguments():
    assert equal(hvd.allreduce(tf.Variable([1.0 + RANK]), device_dense="/cpu:0"), [MEAN + 1])
    assert equal(hvd.allreduce(float(RANK)), MEAN)
    assert equal(hvd.allreduce(tf.fill((100,), float(RANK)), compression="float16"), [MEAN] * 100)
    with pytest.raises(ValueError, match="no dimensions"):
        hvd.allgather(tf.constant(1.0))
    assert hvd.broadcast_object_fn(0)([RANK]) == [0]


def test_broadcast_of_variables(way):
    variables = [tf.Variable([RANK]), tf.Variable(float(RANK))]
    values = way(lambda: hvd.broadcast_(variables, SIZE - 1))()
    assert [int(each.numpy().item()) for each in [*variables, *values]] == [SIZE - 1] * 4


@pytest.mark.several
def test_process_sets_of_programs():
    last = hvd.add_process_set([SIZE - 1])
    assert int(hvd.size_op(last.process_set_id)) == 1
    assert int(hvd.process_set_included_op(last.process_set_id)) == (RANK == SIZE - 1)
    if RANK != SIZE - 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match="which is not in ProcessSet"):
            hvd.allreduce(tf.ones(1), process_set=last)
    hvd.remove_process_set(last)


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


def test_gradients_of_gradients(way):
    x = tf.constant([2.0, 3.0])
    calls = TestCalls()

    def inner(x):
        return calls.gradient(lambda f: f, lambda x: hvd.allreduce(x * x, op=hvd.Sum), x)

    assert equal(calls.gradient(way, inner, x), np.full(2, 2.0 * SIZE))


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


def test_a_variable_without_numbers_is_named_before_others_are_sent(way):
    words, number = tf.Variable("text", name="words"), tf.Variable(float(RANK))
    for call in (hvd.broadcast_variables, hvd.broadcast_):
        with pytest.raises(ValueError, match="the variable words:0 is of dtype string"):
            call([number, words], 0)
        way(lambda call=call: call([number], 0))()  # nothing is in flight
    assert number.numpy() == 0


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
    with pytest.raises(RuntimeError, match=r"call hvd\.broadcast_variables"):
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


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.several
def test_errors_are_those_of_tensorflow_as_well(way):
    with pytest.raises(tf.errors.FailedPreconditionError, match="differs between ranks"):
        way(lambda x: hvd.allreduce(x, name="differs"))(tf.ones(3 + RANK))
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


def test_a_warning_names_the_line_of_the_program():
    with pytest.warns(DeprecationWarning, match="op=") as said:
        hvd.allreduce(tf.ones(2), average=True)
    assert [each.filename for each in said] == [__file__]
