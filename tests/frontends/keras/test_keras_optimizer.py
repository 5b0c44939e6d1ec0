"""`DistributedOptimizer` on Keras's backend, compared with one process and the whole batch."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle

import keras
import numpy as np
import pytest
from places import RANK, SIZE

import collectives.keras as hvd

BACKEND = keras.backend.backend()
ROWS = 8  # of the whole batch: 1, 2 and 4 ranks divide them
RATE = 0.5


def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    return x, rng.integers(0, 3, ROWS)


def mine(x):
    return np.split(x, SIZE)[RANK]


def model(seed=0):
    keras.utils.set_random_seed(seed)
    layers = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3, activation="softmax")
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.fixture
def mixed():
    """Compute with float16."""
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.01)


def trained(net, optimizer, x, y, epochs=3, batch_size=ROWS, **options):
    net.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", **options)
    net.fit(x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return net


def distance(one, other):
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(abs(a - b).max() for a, b in pairs)


def assert_same_on_all_ranks(net):
    weights = np.concatenate([each.ravel() for each in net.get_weights()])
    every = hvd.allgather(weights[np.newaxis])
    assert (every == every[0]).all()


def variables():
    return [keras.Variable(np.ones(shape, "float32")) for shape in ((3,), (2, 2))]


def gradients(rank, scale=1.0):
    return [
        keras.ops.convert_to_tensor(np.full(shape, scale * (rank + k), "float32"))
        for k, shape in enumerate(((3,), (2, 2)))
    ]


def apply(optimizer, grads, made):
    """Apply gradients: on JAX without side effects, as ``fit`` does."""
    if BACKEND != "jax":
        optimizer.apply(grads, made)
        return
    if not optimizer.built:
        optimizer.build(made)
    values = optimizer.stateless_apply(
        [each.value for each in optimizer.variables], grads, [each.value for each in made]
    )
    for each, value in zip([*made, *optimizer.variables], itertools.chain(*values), strict=True):
        each.assign(value)


def applied(optimizer, scale=1.0, after=1.0, passes=1):
    """Check the values that are subtracted from variables that are one."""
    made = variables()
    for k in range(passes):
        assert k == 0 or all((np.array(each) == 1).all() for each in made)
        optimizer.apply(gradients(RANK), made)
    for k, each in enumerate(made):
        mean = np.mean([rank + k for rank in range(SIZE)])
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(each), 1 - RATE * after * mean, rtol=1e-6
        )


OPTIONS = [
    ({}, 1),
    ({"op": hvd.Sum}, SIZE),
    ({"gradient_predivide_factor": 4.0}, 1),
    ({"compression": hvd.Compression.fp16}, 1),
    ({"compression": "bfloat16"}, 1),
    ({"groups": 2, "device_dense": "", "sparse_as_dense": True}, 1),
    ({"backward_passes_per_step": 2}, 2),
    ({"backward_passes_per_step": 2, "average_aggregated_gradients": True}, 1),
    ({"backward_passes_per_step": 3, "op": hvd.Sum}, 3 * SIZE),
]


@pytest.mark.parametrize(("options", "factor"), OPTIONS)
def test_gradients_are_reduced(options, factor):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), **options)
    applied(optimizer, after=factor, passes=options.get("backward_passes_per_step", 1))


@pytest.mark.skipif(BACKEND != "torch", reason="of strides on torch")
def test_gradients_keep_their_strides():
    """Of one that is reduced alone, and of two that are reduced together."""
    strides = []

    class Recording(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            strides[:] = [each.stride() for each in grads]
            super().apply(grads, trainable_variables)

    for count in (1, 2):
        made = [keras.Variable(np.ones((2, 3), "float32")) for _ in range(count)]
        grads = [keras.ops.transpose(keras.ops.ones((3, 2))) for _ in made]
        assert not grads[0].is_contiguous()
        optimizer = hvd.DistributedOptimizer(Recording(RATE))
        optimizer.apply(grads, made)
        assert strides == [each.stride() for each in grads]


@pytest.mark.parametrize("make", [sgd, adam])
def test_it_learns_what_one_process_does(make):
    net = model()
    trained(net, hvd.DistributedOptimizer(make()), *(mine(each) for each in data()))
    assert distance(net, trained(model(), make(), *data(), run_eagerly=True)) < 1e-6
    assert_same_on_all_ranks(net)


@pytest.mark.several
def test_variables_with_other_names_are_not_mixed():
    """Numbers that Keras adds to names do not count."""
    grads = gradients(RANK)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE))
    names = (f"kernel_{RANK}", f"odd{RANK % 2}")
    made = [
        keras.Variable(np.ones(each.shape, "float32"), name=name)
        for each, name in zip(grads, names, strict=True)
    ]
    with pytest.raises(ValueError, match=r"the first of them in variable 2: rank 0: odd0 float32"):
        apply(optimizer, grads, made)


def test_several_passes_make_a_step():
    net = model()
    optimizer = hvd.DistributedOptimizer(
        adam(), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    x, y = (np.concatenate([mine(each)] * 2) for each in data())
    trained(net, optimizer, x, y, batch_size=len(x) // 2)  # each pass has the whole share
    assert distance(net, trained(model(), adam(), *data(), run_eagerly=True)) < 1e-6
    assert int(keras.ops.convert_to_numpy(optimizer.iterations)) == 3
    assert_same_on_all_ranks(net)


def test_variables_of_layers_may_be_local():
    net = model()
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=net.layers[0]
    )
    before = net.get_weights()
    once = {"epochs": 1, "run_eagerly": True}
    trained(net, optimizer, *(mine(each) for each in data()), **once)
    shared = trained(model(), keras.optimizers.SGD(0.1), *data(), **once).get_weights()
    alone = keras.optimizers.SGD(0.1 / SIZE)
    own = trained(model(), alone, *(mine(each) for each in data()), **once).get_weights()
    for k, each in enumerate(net.get_weights()):
        np.testing.assert_allclose(each, (own if k < 2 else shared)[k], atol=1e-6)
        assert (each != before[k]).any()


def test_a_registered_variable_is_local():
    made = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), scale_local_gradients=False)
    optimizer.register_local_var(made[0])
    optimizer.apply(gradients(RANK), made)
    assert (keras.ops.convert_to_numpy(made[0]) == 1 - RANK).all()


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("is_given", [True, False])
def test_an_overflow_on_one_rank_skips_the_step_on_all(is_given):
    x, y = data()
    x = mine(x).copy()
    if RANK == SIZE - 1:
        x[0] = 1e30
    net = model()
    optimizer = sgd()
    if is_given:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    optimizer = hvd.DistributedOptimizer(optimizer)
    before = net.get_weights()
    trained(net, optimizer, x, mine(y), epochs=1)
    assert isinstance(net.optimizer, keras.optimizers.LossScaleOptimizer)
    assert type(net.optimizer.inner_optimizer) is type(sgd())
    scale = 4.0 if is_given else 2.0**15
    assert float(keras.ops.convert_to_numpy(net.optimizer.dynamic_scale)) == scale / 2
    assert all((a == b).all() for a, b in zip(before, net.get_weights(), strict=True))
    net.fit(mine(data()[0]), mine(y), batch_size=ROWS, verbose=0)
    assert any((a != b).any() for a, b in zip(before, net.get_weights(), strict=True))
    assert_same_on_all_ranks(net)


def test_an_overflow_spoils_all_passes_of_a_step():
    made = variables()
    inner = keras.optimizers.SGD(RATE)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0)
    optimizer = hvd.DistributedOptimizer(scaled, backward_passes_per_step=2)
    for scale in (np.inf if RANK == 0 else 1.0, 1.0):
        apply(optimizer, [each * scale + 1 for each in gradients(RANK)], made)
    assert all((keras.ops.convert_to_numpy(each) == 1).all() for each in made)
    for _ in range(2):
        apply(optimizer, gradients(RANK), made)
    mean = np.mean(range(SIZE))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(made[0]), 1 - RATE * 2 * mean)
    assert int(keras.ops.convert_to_numpy(optimizer.iterations)) == 1


@pytest.mark.parametrize("skipped", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_skipped_steps_do_not_count(skipped):
    """The first step of Adam is as long as its rate only if it is the first one that counts."""
    made = variables()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1, epsilon=1e-9))
    optimizer = hvd.DistributedOptimizer(scaled, backward_passes_per_step=3)

    def iterations(scales):
        for scale in scales:
            apply(optimizer, gradients(RANK + 1, scale), made)
            yield int(keras.ops.convert_to_numpy(optimizer.iterations))

    spoilt = [1.0, np.inf if RANK == SIZE - 1 else 1.0, 1.0]
    assert list(iterations(skipped * spoilt)) == skipped * [0, 0, 0]
    assert all((keras.ops.convert_to_numpy(each) == 1).all() for each in made)
    assert list(iterations([1.0] * 4)) == [0, 0, 1, 1]
    for each in made:
        np.testing.assert_allclose(1 - keras.ops.convert_to_numpy(each), 0.1, rtol=1e-3)


def test_variables_without_gradient_are_left_out():
    made = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE))
    with pytest.warns(UserWarning, match="[Gg]radients do not exist"):
        optimizer.apply([gradients(RANK)[0], None], made)
    assert (keras.ops.convert_to_numpy(made[1]) == 1).all()
    if BACKEND == "torch" and SIZE > 1:  # there, ranks may differ
        grads = gradients(RANK)
        optimizer.apply([grads[0] if RANK else None, grads[1]], made)
        mean = np.mean(range(SIZE))
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(made[0]), 1 - 2 * RATE * mean, rtol=1e-6
        )


def test_models_are_saved_as_without_the_library(tmp_path):
    net = model()
    optimizer = hvd.DistributedOptimizer(adam(), backward_passes_per_step=2)
    batch = [mine(each) for each in data()]
    trained(net, optimizer, *batch, epochs=4, run_eagerly=True)
    path = tmp_path / "model.keras"
    net.save(path)
    plain = keras.models.load_model(path)
    assert type(plain.optimizer) is type(adam())
    assert len(plain.optimizer.variables) == len(optimizer.variables) - 1 - len(net.weights)
    net.save(tmp_path / "model.h5")
    older = keras.models.load_model(tmp_path / "model.h5")
    assert type(older.optimizer) is type(adam())
    assert distance(older, net) == 0
    loaded = hvd.load_model(path)
    loaded.fit(*batch, batch_size=ROWS, shuffle=False, verbose=0)
    assert_same_on_all_ranks(loaded)
    assert type(loaded.optimizer).__name__ == "Adam"
    assert int(keras.ops.convert_to_numpy(loaded.optimizer.iterations)) == 5


def test_it_is_the_same_object_of_a_class_of_the_same_name():
    optimizer = sgd()
    made = hvd.DistributedOptimizer(optimizer)
    assert made is optimizer
    assert isinstance(made, keras.optimizers.SGD)
    assert type(made).__name__ == "SGD"
    assert keras.saving.serialize_keras_object(made) | {"config": 0} == (
        keras.saving.serialize_keras_object(sgd()) | {"config": 0}
    )
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(made)
    clone = made.__class__.from_config(made.get_config())
    assert type(clone) is type(sgd())
    made.build(variables())
    for each in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(each) is type(sgd())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": hvd.Max}, "Average or Sum"),
        ({"op": hvd.Adasum}, "Average or Sum"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op != Average"),
        ({"backward_passes_per_step": 0}, "whole number"),
        ({"groups": 0}, "positive number, or a list"),
    ],
)
def test_wrong_arguments_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(sgd(), **options)


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(ValueError, match="optimizer of Keras 3"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="pass one of them"):
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), backward_passes_per_step=2
        )
    with pytest.raises(ValueError, match="layers of Keras"):
        hvd.PartialDistributedOptimizer(sgd(), local_layers=[3])


@pytest.mark.several
def test_errors_of_the_library_come_out_of_fit():
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3 + RANK)])
    net.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
    with pytest.raises(hvd.HorovodInternalError, match="differ"):
        net.fit(np.ones((2, 4)), np.ones((2, 3 + RANK)), verbose=0)
    applied(hvd.DistributedOptimizer(keras.optimizers.SGD(RATE)))


def test_two_optimizers_at_once():
    one, other = (hvd.DistributedOptimizer(keras.optimizers.SGD(RATE)) for _ in range(2))
    names = {each._distribution.options.name for each in (one, other)}
    assert len(names) == 2
    applied(one)
    applied(other)


@pytest.mark.skipif(BACKEND != "tensorflow" or SIZE == 1, reason="of XLA on TensorFlow")
def test_xla_is_refused_with_the_remedy():
    optimizer = hvd.DistributedOptimizer(sgd())
    with pytest.raises(ValueError, match="jit_compile=False"):
        model().compile(optimizer=optimizer, loss="mse", jit_compile=True)
    net = model()
    net.compile(optimizer=optimizer, loss="mse")
    assert net.jit_compile is False


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of rows on TensorFlow")
@pytest.mark.parametrize("as_dense", [True, False])
@pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.fp16}, {"op": hvd.Sum}])
def test_gradients_with_some_rows(as_dense, options):
    import tensorflow as tf

    made = [keras.Variable(np.ones((4, 2), "float32"))]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), sparse_as_dense=as_dense, **options
    )

    def step():
        grad = tf.IndexedSlices(tf.fill((2, 2), RANK + 1.0), tf.constant([0, RANK % 2 + 1]), (4, 2))
        optimizer.apply([grad], made)

    step()
    tf.function(step)()
    total = np.zeros((4, 2))
    for rank in range(SIZE):
        total[[0, rank % 2 + 1]] += rank + 1
    share = 1 if options.get("op") == hvd.Sum else SIZE
    np.testing.assert_allclose(made[0].numpy(), 1 - 2 * total / share, rtol=1e-3)


def test_arguments_have_the_order_of_horovod():
    given = [*inspect.signature(hvd.DistributedOptimizer).parameters][7:10]
    assert given == ["op", "num_groups", "groups"]
    if keras.backend.backend() != "tensorflow":
        return
    from collectives.tensorflow import keras as keras_of_tensorflow

    given = [*inspect.signature(keras_of_tensorflow.DistributedOptimizer).parameters][7:10]
    assert given == ["op", "backward_passes_per_step", "average_aggregated_gradients"]
