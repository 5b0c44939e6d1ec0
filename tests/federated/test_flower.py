"""The strategies under Flower: its own server app, and client apps, in this process."""

import numpy as np
import pytest

from collectives.federated import DifferentialPrivacy, DiLoCo, FedAdam, FedAvg, FedProx

flwr = pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402

from collectives.errors import ArgumentError, StallError  # noqa: E402
from collectives.federated.flower import FlowerStrategy, answer  # noqa: E402

NODES = [70, 30, 50, 90]  # Flower's numbers; the clients are numbered by their order
COUNTS = {30: 1, 50: 2, 70: 3, 90: 4}


def target(node):
    return np.array([[node, -node]], np.float32), np.array(node / 10)


def fit_of(node, seen):
    def fit(parameters, task):
        seen.append((task, node))
        moved = [(x + y) / 2 for x, y in zip(parameters, target(node), strict=True)]
        return moved, COUNTS[node]

    return fit


class Sites(Grid):
    """A grid whose nodes are client apps in this process."""

    def __init__(self, strategy, failing=()):
        self.seen, self.apps, self.failing = [], {}, failing
        for node in NODES:
            self.apps[node] = app = ClientApp()

            @app.train()
            def train(message, context, node=node):
                own = [np.zeros((1, 2), np.float32), np.zeros(())]
                return answer(message, own, fit_of(node, self.seen), strategy)

    def get_node_ids(self):
        return NODES

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.failing:
                replies.append(Message(Error(code=0, reason="not here"), reply_to=message))
                continue
            context = Context(1, node, {}, RecordDict(), {})
            replies.append(self.apps[node](message, context))
        return replies[::-1]

    run = None

    def set_run(self, run):
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Say who makes messages, as Flower's own processes do before they call an app."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity, name, 1)


def by_hand(strategy, rounds, failing=()):
    """Return what the strategy makes of the same clients, without Flower."""
    arrays = [np.zeros((1, 2), np.float32), np.zeros(())]
    state = strategy.start(arrays, 4)
    order = sorted(NODES)
    for number in range(1, rounds + 1):
        updates = []
        for client in strategy.sample(4, number, 5):
            node = order[client]
            if node in failing:
                continue
            new = [np.asarray((x + y) / 2, x.dtype) for x, y in zip(arrays, target(node))]  # noqa: B905
            updates.append(strategy.prepare(arrays, new, COUNTS[node]))
        arrays, state = strategy.aggregate(arrays, updates, state)
    return arrays


def make(name):
    if name == "private":
        inner = FedAvg(fraction=0.5)
        return DifferentialPrivacy(inner, 0.5, 1.0, np.random.default_rng(0))
    classes = {"avg": FedAvg, "prox": FedProx, "adam": FedAdam, "diloco": DiLoCo}
    return classes[name](fraction=0.5, epochs=3)


@pytest.mark.parametrize("name", ["avg", "prox", "adam", "diloco", "private"])
@pytest.mark.parametrize("failing", [(), (50,)])
def test_the_rounds_are_those_of_the_strategy(name, failing):
    sites = Sites(make(name), failing)
    adapted = FlowerStrategy(make(name), clients=4, seed=5)
    begin = ArrayRecord([np.zeros((1, 2), np.float32), np.zeros(())])
    named = ArrayRecord({key: begin[old] for key, old in zip("wb", begin.keys(), strict=True)})
    result = adapted.start(sites, named, num_rounds=4, timeout=10)
    assert list(result.arrays.keys()) == ["w", "b"]
    want = by_hand(make(name), 4, failing)
    for mine, other in zip(result.arrays.to_numpy_ndarrays(), want, strict=True):
        assert np.array_equal(mine, other)
        assert mine.dtype == other.dtype
    tasks = [task for task, _ in sites.seen]
    assert {task.epochs for task in tasks} == {make(name).epochs}
    assert {task.proximal for task in tasks} == {make(name).proximal}
    assert len({task.seed for task in tasks}) == len(tasks)
    assert all(sorted(NODES)[task.client] == node for task, node in sites.seen)
    for number in range(1, 5):
        drawn = make(name).sample(4, number, 5)
        came = [each for each in drawn if sorted(NODES)[each] not in failing]
        metrics = result.train_metrics_clientapp[number]
        assert metrics["clients"] == len(came)


def test_an_update_that_is_not_finite_is_left_out(monkeypatch):
    monkeypatch.setitem(globals(), "fit_of", lambda node, seen: nan_of(node))

    def nan_of(node):
        value = np.nan if node == 50 else 2.0
        return lambda parameters, task: ([np.full((1, 2), value), np.array(1.0)], COUNTS[node])

    strategy = FedAvg()
    begin = ArrayRecord([np.zeros((1, 2), np.float32), np.zeros(())])
    result = FlowerStrategy(strategy, 4).start(Sites(strategy), begin, num_rounds=1, timeout=10)
    assert [each.tolist() for each in result.arrays.to_numpy_ndarrays()] == [[[2.0, 2.0]], 1.0]
    assert result.train_metrics_clientapp[1]["clients"] == 3


def test_arguments():
    with pytest.raises(ArgumentError, match="clients is 0, and must be a positive integer"):
        FlowerStrategy(FedAvg(), clients=0)
    with pytest.raises(ArgumentError, match="timeout is 0, and must be a positive number of sec"):
        FlowerStrategy(FedAvg(), clients=1, timeout=0)


def test_clients_that_do_not_connect_are_missed():
    strategy = FlowerStrategy(FedAvg(), clients=len(NODES) + 1, timeout=0.1)
    with pytest.raises(StallError, match=r"4 of 5 clients have connected in 0\.1 s"):
        strategy.configure_train(1, ArrayRecord(), {}, Sites(strategy))
