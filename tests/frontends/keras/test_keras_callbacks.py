"""Callbacks, values, variables and elastic states of Keras on one backend."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from places import RANK, SIZE

import collectives.keras as hvd
from collectives.process import stopping


def model(*layers, rate=0.1):
    keras.utils.set_random_seed(RANK)
    net = keras.Sequential([*layers, keras.layers.Dense(2), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.5))
    net.compile(optimizer=optimizer, loss="mse", run_eagerly=True)  # nothing has to be compiled
    return net


def fitted(net, *callbacks, epochs=1, steps=2, **options):
    rng = np.random.default_rng(RANK)
    x, y = rng.normal(size=(4 * steps, 3)), rng.normal(size=(4 * steps, 1))
    return net.fit(
        x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks), **options
    ).history


def numbers(variables):
    return np.concatenate([keras.ops.convert_to_numpy(each).ravel() for each in variables])


def assert_same_on_all_ranks(variables):
    every = hvd.allgather(numbers(variables)[np.newaxis])
    assert (every == every[0]).all()


class Rates(keras.callbacks.Callback):
    """Keep the learning rate of each batch."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


@pytest.mark.parametrize("is_built", [True, False])
def test_all_ranks_start_with_the_variables_of_one(is_built):
    net = model(*[keras.Input((3,))] * is_built, keras.layers.Dropout(0.5, seed=RANK))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(SIZE - 1)
    fitted(net, callback)
    assert callback.broadcast_done
    assert_same_on_all_ranks([*net.weights, *net.optimizer.variables])
    seeds = hvd.allgather(numbers(net.layers[0].seed_generator.state.value)[np.newaxis])
    assert len({tuple(each) for each in seeds.tolist()}) == SIZE


@pytest.mark.usual(2)
@pytest.mark.parametrize("every", [1, 2])
def test_training_stops_on_all_ranks_after_the_same_batch(every, monkeypatch):
    """By a request in place of a signal, after which the process could make no other."""
    monkeypatch.setattr(stopping, "watch", lambda: None)
    monkeypatch.setattr(stopping, "_reason", "")
    monkeypatch.setattr(stopping, "wanted", np.zeros(1, np.uint8))
    monkeypatch.setattr(hvd.global_process_set.comm(), "_stop_flag", None)

    class Asking(Rates):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if RANK == SIZE - 1 and len(self.rates) == 3:
                stopping.request("SIGTERM")

    done = Asking()
    net = model(keras.Input((3,)))
    history = fitted(net, done, hvd.callbacks.StopTogetherCallback(every), steps=8, epochs=2)
    assert len(done.rates) == 3  # the third call is one that asks, for both
    assert len(history["loss"]) == 1
    assert stopping.reason() == "SIGTERM" if RANK == SIZE - 1 else "the request of another rank"


def test_a_built_model_may_have_local_variables():
    net = model(keras.Input((3,)))
    mine = net.layers[0].kernel
    before = numbers([mine])
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=mine)
    net.optimizer.learning_rate = 0.0
    fitted(net, callback)
    assert (numbers([mine]) == before).all()
    assert_same_on_all_ranks(net.layers[1].weights)


def test_metrics_are_averaged_for_the_callbacks_behind():
    class Before(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["mine"] = float(RANK)
            if RANK == SIZE - 1:
                logs["last"] = 5.0

    history = fitted(model(), Before(), hvd.callbacks.MetricAverageCallback(), epochs=2)
    assert history["mine"] == [(SIZE - 1) / 2] * 2
    assert history["last"] == [5.0, 5.0]
    assert len(set(hvd.allgather(np.array([history["loss"][1]])).tolist())) == 1


def test_the_learning_rate_is_warmed_up():
    net, rates = model(rate=0.4), Rates()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1)
    history = fitted(net, warmup, rates, epochs=3)
    # It is the rate at the end of the batch: 2 batches an epoch, and 4 until it is reached.
    each = [0.4 / SIZE * ((batch + 1) / 2 * (SIZE - 1) / 2 + 1) for batch in range(4)]
    assert rates.rates == pytest.approx([*each, 0.4, 0.4])
    assert history["lr"] == pytest.approx([each[1], 0.4, 0.4])


def test_the_learning_rate_follows_a_schedule():
    schedule, rates = hvd.callbacks.LearningRateScheduleCallback, Rates()
    fitted(
        model(),
        schedule(0.1, lambda epoch: 2.0, end_epoch=1),
        schedule(0.1, 0.5, start_epoch=1, end_epoch=3),
        schedule(0.1, lambda epoch: epoch, start_epoch=3, staircase=False),
        rates,
        epochs=4,
    )
    assert rates.rates == pytest.approx([0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.3, 0.35])


def test_momentum_is_corrected():
    net = model(keras.Input((3,)))
    fitted(net)
    momentum = net.optimizer.momentums[0]
    before = numbers([momentum])
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 3.0)
    schedule.set_model(net)
    schedule.on_train_batch_begin(0)
    np.testing.assert_allclose(numbers([momentum]), 3 * before, rtol=1e-6)


def test_steps_of_unknown_number_are_asked_for():
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1)
    warmup.set_params({"steps": None})
    with pytest.raises(ValueError, match="pass steps_per_epoch"):
        warmup.on_train_begin()


@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
def test_the_best_model_is_kept_by_one_rank(tmp_path, name):
    path, weights = tmp_path / name, "weights" in name
    best = hvd.callbacks.BestModelCheckpoint("loss", filepath=str(path), save_weights_only=weights)
    fitted(model(), hvd.callbacks.MetricAverageCallback(), best)
    assert path.exists() == (RANK == 0)


def test_values():
    mean = (SIZE - 1) / 2
    assert float(hvd.allreduce(RANK + 0.5)) == mean + 0.5
    assert hvd.allreduce([1, RANK], op=hvd.Sum).tolist() == [SIZE, SIZE * mean]
    with pytest.warns(DeprecationWarning, match="op="):
        total = hvd.allreduce(keras.ops.ones(2), average=False)
    assert isinstance(total, np.ndarray)
    assert (total == SIZE).all()
    half = hvd.allreduce(np.float32(RANK), compression=hvd.Compression.fp16, prescale_factor=2.0)
    assert half == 2 * mean
    assert half.dtype == np.float32
    # Those without dimensions, which NumPy computes numbers of.
    assert int(hvd.allreduce(np.int32(7), prescale_factor=3.0, postscale_factor=2.0)) == 42
    if SIZE in (1, 2, 4):
        exact = hvd.allreduce(np.float16(3), op=hvd.Adasum, prescale_factor=2.0, postscale_factor=2)
        assert (exact, exact.dtype) == (12, np.float16)
    assert hvd.allgather(np.full((RANK, 2), RANK)).shape == (SIZE * (SIZE - 1) // 2, 2)
    assert float(hvd.broadcast(float(RANK), SIZE - 1)) == SIZE - 1
    parts = hvd.reducescatter(np.arange(2 * SIZE), op=hvd.Sum)
    assert parts.tolist() == [SIZE * 2 * RANK, SIZE * (2 * RANK + 1)]


def test_variables_are_sent():
    made = [
        keras.Variable(np.full((2, 2), float(RANK))),
        keras.Variable(RANK, dtype="int32", trainable=False),
    ]
    seed = keras.random.SeedGenerator(RANK).state
    hvd.broadcast_variables([*made, seed], root_rank=SIZE - 1)
    assert (numbers(made) == SIZE - 1).all()
    assert numbers([seed])[0] == RANK
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


@pytest.mark.several
@pytest.mark.parametrize("dtype", ["string", "float8_e4m3fn"])
def test_a_variable_that_cannot_be_sent_is_named_before_others_are_sent(dtype):
    if keras.backend.backend() != {"string": "tensorflow", "float8_e4m3fn": "torch"}[dtype]:
        pytest.skip("the backend has no such variables, or can send them")
    number = keras.Variable(float(RANK))
    if dtype == "string":
        other = keras.Variable(["a"], dtype=dtype, trainable=False, name="other")
    else:
        other = keras.Variable(np.ones(2), dtype=dtype, name="other")
    with pytest.raises(ValueError, match=f"the variable other is of dtype {dtype}, and"):
        hvd.broadcast_variables([number, other], 0)
    hvd.broadcast_variables([number], 0)  # nothing is in flight
    assert float(number) == 0


def test_a_state_is_kept_restored_and_sent():
    net = model(keras.Input((3,)))
    state = hvd.elastic.KerasState(net, epoch=RANK, batch=0)
    before = numbers(net.weights)
    fitted(net)
    state.epoch = 7
    state.restore()
    assert (numbers(net.weights) == before).all()
    assert (state.epoch, numbers(net.optimizer.variables)[0]) == (RANK, 0)
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append((state.epoch, numbers(net.weights)))
        fitted(
            net,
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
            epochs=2,
        )
        if len(calls) == 1:
            raise hvd.HostsUpdatedInterrupt
        return state.epoch

    assert train(state) == 4
    assert [epoch for epoch, _ in calls] == [0, 2]
    assert state.batch == 0
    assert_same_on_all_ranks([*net.weights, *net.optimizer.variables])
    with pytest.raises(ValueError, match="not built"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


@pytest.mark.several
def test_an_error_restores_the_state():
    net = model(keras.Input((3,)))
    state = hvd.elastic.KerasState(net)
    kept = numbers(net.weights)

    @hvd.elastic.run
    def train(state):
        for each in net.weights:
            each.assign(each * 0)
        hvd.allreduce(np.ones(RANK + 1), name="different")

    with pytest.raises(hvd.HorovodInternalError, match="differ"):
        train(state)
    if RANK == 0:
        assert (numbers(net.weights) == kept).all()
    assert numbers(net.weights).any()
