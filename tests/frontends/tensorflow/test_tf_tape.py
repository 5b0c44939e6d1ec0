"""Tapes whose gradients are those of all ranks."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from places import RANK, SIZE
from test_tf_calls import equal

import collectives.tensorflow as hvd

MEAN = (SIZE + 1) / 2


def network(seed=0):
    tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3)]
    return tf.keras.Sequential([tf.keras.Input((5,)), *layers])


def trained(way, x, y, wrap):
    """Return the weights after some steps with a tape that `wrap` makes of one."""
    model = network()
    optimizer = tf.keras.optimizers.SGD(0.1)
    loss = tf.keras.losses.MeanSquaredError()

    @way
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = wrap(tape).gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for part in range(3):
        step(x[part], y[part])
    return model.get_weights()


OPTIONS = [
    {},
    {"groups": 2},
    {"gradient_predivide_factor": 2.0},
    {"compression": hvd.Compression.fp16},
    {"op": hvd.Adasum},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: str([*each][:1]))
def test_training_is_that_of_one_process(way, options):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 4 * SIZE, 5)).astype(np.float32)
    y = rng.normal(size=(3, 4 * SIZE, 3)).astype(np.float32)
    mine = slice(4 * RANK, 4 * RANK + 4)
    wrap = lambda tape: hvd.DistributedGradientTape(tape, **options)  # noqa: E731
    weights = trained(way, x[:, mine], y[:, mine], wrap)
    every = hvd.allgather_object([each.tobytes() for each in weights])
    assert all(each == every[0] for each in every)
    if options.get("op") != hvd.Adasum:
        alone = trained(tf.function, x, y, lambda tape: tape)
        for one, all_ranks in zip(alone, weights, strict=True):
            assert np.allclose(one, all_ranks, atol=2e-3 if "compression" in options else 1e-6)


def test_sources_without_gradients_and_nested_ones(way):
    variables = {"a": tf.Variable([1.0, 2.0]), "b": [tf.Variable(3.0), tf.Variable(4.0)]}
    unused = tf.Variable(5.0)

    @way
    def compute():
        with tf.GradientTape() as tape:
            value = (RANK + 1.0) * (tf.reduce_sum(variables["a"]) * variables["b"][1])
        return hvd.DistributedGradientTape(tape).gradient(value, [variables, unused])

    gradients, none = compute()
    assert none is None
    assert gradients["b"][0] is None
    assert equal(gradients["a"], [4 * MEAN] * 2)
    assert equal(gradients["b"][1], 3 * MEAN)


def test_a_tape_before_its_with_statement(way):
    x = tf.Variable(2.0)

    @way
    def compute():
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            first, second = x * x * (RANK + 1.0), x * (RANK + 1.0)
        assert isinstance(tape, tf.GradientTape)
        return tape.gradient(first, x), tape.gradient(second, [x])[0]

    assert [float(each) for each in compute()] == [4 * MEAN, MEAN]


def test_the_tape_that_was_wrapped_stays_local(way):
    x = tf.Variable(2.0)

    @way
    def compute():
        with tf.GradientTape(persistent=True) as tape:
            value = x * (RANK + 1.0)
        distributed = hvd.DistributedGradientTape(tape)
        return tape.gradient(value, x), distributed.gradient(value, x), tape.gradient(value, x)

    assert [float(each) for each in compute()] == [RANK + 1, MEAN, RANK + 1]


def test_two_tapes_in_one_step(way):
    x, y = tf.Variable([1.0] * 3), tf.Variable([1.0] * 3)

    @way
    def compute():
        with tf.GradientTape() as first, tf.GradientTape() as second:
            value = tf.reduce_sum(x * (RANK + 1.0))
            other = tf.reduce_sum(y * (RANK + 2.0))
        one = hvd.DistributedGradientTape(first).gradient(value, [x])
        return one + hvd.DistributedGradientTape(second, op=hvd.Sum).gradient(other, [y])

    for _ in range(2):
        one, two = compute()
        assert equal(one, [MEAN] * 3)
        assert equal(two, [SIZE * (MEAN + 1)] * 3)


@pytest.mark.parametrize("as_dense", [False, True])
def test_slices(way, as_dense):
    table = tf.Variable(tf.zeros((SIZE + 1, 2)))
    weight = tf.Variable(1.0)

    @way
    def compute():
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [RANK, SIZE])
            value = tf.reduce_sum(rows) + weight * (RANK + 1.0)
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense)
        slices, other = tape.gradient(value, [table, weight])
        assert isinstance(slices, tf.IndexedSlices) == (not as_dense)
        return tf.convert_to_tensor(slices), other

    dense, other = compute()
    expected = [[1 / SIZE] * 2] * SIZE + [[1.0, 1.0]]
    assert equal(dense, np.asarray(expected, np.float32))
    assert equal(other, MEAN)


def test_local_sources_are_not_reduced(way):
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 1))
    shared = tf.Variable(2.0)

    @way
    def compute(scale_local_gradients):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(layer(tf.ones((1, 1)))) * (RANK + 1.0) + shared * (RANK + 1.0)
        tape = hvd.PartialDistributedGradientTape(
            tape, local_layers=layer, scale_local_gradients=scale_local_gradients
        )
        local, others = tape.get_local_and_global_gradients(value, [*layer.weights, shared])
        return local[0][1], others[0][1]

    for scales, divisor in ((True, SIZE), (False, 1)):
        local, other = compute(scales)
        assert float(local[0, 0]) == pytest.approx((RANK + 1) / divisor)
        assert float(other) == MEAN
    with pytest.raises(ValueError, match="local_layers has 1, and must be layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[1])


@pytest.mark.several
def test_ranks_outside_of_a_process_set_keep_their_gradients(way):
    process_set = hvd.add_process_set([SIZE - 1])
    x, mine = tf.Variable([1.0, 2.0]), np.full(2, RANK + 1)

    @way
    def compute():
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(x) * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape, process_set=process_set).gradient(value, x)

    assert equal(compute(), mine)
    with tf.Graph().as_default():
        x = tf.compat.v1.get_variable("x", initializer=[1.0, 2.0])
        sgd = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        optimizer = hvd.DistributedOptimizer(sgd, process_set=process_set)
        ((gradient, _),) = optimizer.compute_gradients(tf.reduce_sum(x) * (RANK + 1.0))
        with tf.compat.v1.Session() as session:
            assert (session.run(gradient) == mine).all()
    hvd.remove_process_set(process_set)


def test_what_is_reduced_together_is_chosen(way):
    variables = [tf.Variable([float(k)]) for k in range(4)]
    groups = [[variables[0], variables[3]]]

    @way
    def compute():
        with tf.GradientTape() as tape:
            value = tf.add_n([tf.reduce_sum(each * each) for each in variables]) * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape, groups=groups).gradient(value, variables)

    for k, each in enumerate(compute()):
        assert equal(each, [2 * k * MEAN])
    with pytest.warns(DeprecationWarning, match="groups="):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)
    with pytest.raises(ValueError, match="groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), groups="all")
    with pytest.raises(ValueError, match="predivide"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="no codec compresses"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum, compression="int8")
    with pytest.raises(ValueError, match=r"tf\.GradientTape"):
        hvd.DistributedGradientTape(None)


def test_a_function_in_a_function_and_a_loop():
    x = tf.Variable(1.0)

    @tf.function
    def inner(k):
        with tf.GradientTape() as tape:
            value = x * tf.cast(k, tf.float32) * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(value, x)

    @tf.function
    def outer():
        total = tf.constant(0.0)
        for k in tf.range(5):
            total += inner(k)
        return total

    assert float(outer()) == 10 * MEAN


def test_threads_have_functions_of_their_own():
    x = tf.Variable([1.0, 2.0])
    results = {}

    def work(k):
        @tf.function
        def reduce():
            return hvd.allreduce(x * (RANK + k), name=f"thread {k}", op=hvd.Sum)

        results[k] = [reduce().numpy() for _ in range(20)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for k, values in results.items():
        total = sum(rank + k for rank in range(SIZE))
        assert all(np.array_equal(each, [total, 2 * total]) for each in values)


@pytest.mark.several
def test_submissions_come_before_the_backward_pass_ends():
    """The last layer's gradient is submitted while the first ones are computed."""
    order = []
    variables = [tf.Variable(tf.ones((600, 600))) for _ in range(6)]  # each is more than a bucket
    from collectives.compiled.buckets import Bucket

    plain = Bucket.start

    def start(self, arrays, memory=None):
        order.append(self.places)
        return plain(self, arrays, memory)

    @tf.custom_gradient
    def marked(x):
        def grad(back):
            def mark(value):
                order.append("end")
                return value

            noted = tf.numpy_function(mark, [back], tf.float32)
            noted.set_shape(back.shape)
            return noted

        return tf.identity(x), grad

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            h = marked(x * variables[0])
            for each in variables[1:]:
                h = h * each
            value = tf.reduce_sum(h)
        return hvd.DistributedGradientTape(tape).gradient(value, variables)

    Bucket.start = start
    try:
        step(tf.ones((600, 600)))
    finally:
        Bucket.start = plain
    submitted = [k for each in order if each != "end" for k in each]
    assert submitted == [5, 4, 3, 2, 1, 0]


def test_batch_normalisation_over_all_ranks(way):
    rng = np.random.default_rng(2)
    rows = [3 + rank for rank in range(SIZE)]
    x = rng.normal(size=(sum(rows), 4)).astype(np.float32)
    weights = rng.normal(size=x.shape).astype(np.float32)
    first = sum(rows[:RANK])
    mine = slice(first, first + rows[RANK])

    def passes(layer, x, weights):
        @way
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                made = layer(x, training=True)
                value = tf.reduce_sum(made * weights)
            return made, tape.gradient(value, x)

        return run(tf.constant(x))

    layer, plain = hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    made, gradient = passes(layer, x[mine], weights[mine])
    expected, expected_gradient = passes(plain, x, weights)
    assert np.allclose(made, expected[mine], atol=1e-5)
    assert np.allclose(gradient, expected_gradient[mine], atol=1e-5)
    assert np.allclose(layer.moving_variance, plain.moving_variance, atol=1e-6)
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)


def test_states_are_sent_kept_and_restored():
    model = network(seed=RANK)
    model.compile(tf.keras.optimizers.Adam(), "mse")
    state = hvd.elastic.TensorFlowKerasState(model, batch=RANK)
    counts = tf.Variable(RANK)
    others = hvd.elastic.TensorFlowState([counts])

    @hvd.elastic.run
    def train(state):
        first = model.get_weights()[0].copy()
        assert all(np.array_equal(first, each) for each in hvd.allgather_object(first))
        assert state.batch == 0
        model.set_weights([each + 1 for each in model.get_weights()])
        state.restore()
        assert np.array_equal(model.get_weights()[0], first)
        return "done"

    assert train(state) == "done"
    others.sync()
    assert int(counts) == 0


@pytest.mark.several
def test_gradients_that_differ_and_are_as_many(way):
    """They are packed into arrays of one size."""
    shapes = (3, 4 + RANK % 2), (2,)
    variables = [tf.Variable(tf.ones(shape)) for shape in shapes]

    @way
    def step():
        with tf.GradientTape() as tape:
            value = sum(tf.reduce_sum(each) for each in variables)
        return hvd.DistributedGradientTape(tape).gradient(value, variables)

    with pytest.raises(hvd.HorovodInternalError, match=r"packed from \(2,\), \(3, 4\)"):
        step()


@pytest.mark.several
@pytest.mark.parametrize("kind", ["keys", "names"])
def test_gradients_of_other_variables(way, kind):
    """They are as many, and have the same shapes."""
    name = f"c{RANK % 2}_w"
    first, second = tf.Variable(tf.ones(3), name="a"), tf.Variable(tf.ones(3), name="b")
    other = tf.Variable(tf.ones(3), name=name)
    sources = {"keys": {"a": first, name: second}, "names": [first, other]}[kind]

    def step(sources):
        def gradients():
            with tf.GradientTape() as tape:
                value = sum(tf.reduce_sum(each) for each in tf.nest.flatten(sources))
            return hvd.DistributedGradientTape(tape).gradient(value, sources)

        return way(gradients)()

    with pytest.raises(hvd.HorovodInternalError, match=r"c0_w.*c1_w|c1_w.*c0_w"):
        step(sources)
    made = step({"a": first, "b": second} if kind == "keys" else [first, second])
    for each in tf.nest.flatten(made):
        assert np.array_equal(each, np.ones(3))
