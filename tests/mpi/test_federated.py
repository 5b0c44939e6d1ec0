"""Federated averaging on the ranks of the job."""

import numpy as np
import pytest

from collectives import federated
from collectives.errors import ArgumentError, MismatchError, PeerAbortedError


def data_of(client):
    """Return the samples of a client, more of them for each next one."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(10 + 7 * client, 4))
    return x, x @ np.array([1.0, -2.0, 3.0, 0.5]) + rng.normal(size=len(x))


@pytest.fixture
def comm(world):
    return world.comm


def gradient(weights, x, y):
    return x.T @ (x @ weights - y) / len(x)


def test_one_step_is_one_of_gradient_descent(comm):
    """With one step on all samples, the mean of the clients is the step on all data."""
    clients = 2 if comm.rank % 2 == 0 else 1
    first = sum(2 if rank % 2 == 0 else 1 for rank in range(comm.rank))
    total = sum(2 if rank % 2 == 0 else 1 for rank in range(comm.size))
    seen = []

    def fit(parameters, task):
        assert task.client == first + task.index
        seen.append((task.round, task.client))
        x, y = data_of(task.client)
        parameters[0] -= 0.1 * gradient(parameters[0], x, y)
        return parameters, len(x)

    weights = np.full(4, float(comm.rank))  # those of rank 0 count
    result = federated.run(
        comm,
        [weights],
        fit,
        rounds=6,
        clients=clients,
        evaluate=lambda parameters, round: (round, parameters[0][0]),
    )
    x, y = (np.concatenate(each) for each in zip(*map(data_of, range(total)), strict=True))
    want = np.zeros(4)
    for _ in range(6):
        want -= 0.1 * gradient(want, x, y)
    assert np.allclose(weights, want, rtol=1e-12, atol=0)
    assert seen == [(n, first + k) for n in range(1, 7) for k in range(clients)]
    # All clients on one rank have the same bits.
    with comm.split(comm.rank) as alone:
        first = 0
        same = federated.run(alone, [np.zeros(4)], fit, rounds=6, clients=total)
    assert np.array_equal(same.parameters[0], weights)
    assert np.array_equal(weights, result.parameters[0])
    assert result.lost == {}
    assert len(result.rounds) == (6 if comm.rank == 0 else 0)
    for number, record in enumerate(result.rounds, start=1):
        assert record.number == record.metric[0] == number
        assert record.sampled == record.taken == list(range(total))
        assert (record.missed, record.late) == ([], [])
    if result.rounds:
        assert result.rounds[-1].metric[1] == weights[0]


def test_who_is_drawn_is_trained_and_all_that_is_sent_is_in_the_trace(comm):
    """The bytes that leave a rank are those of headers and updates."""
    strategy = federated.FedAvg(fraction=0.5)
    drawn = [strategy.sample(comm.size, number, 5) for number in range(1, 9)]
    trained = []

    def fit(parameters, task):
        trained.append(task.round)
        return parameters, 1

    weights = np.zeros(1000, np.float32)
    result = federated.run(comm, [weights], fit, strategy=strategy, rounds=8, seed=5)
    mine = [number for number, clients in enumerate(drawn, start=1) if comm.rank in clients]
    assert trained == mine
    assert [each.sampled for each in result.rounds] == (drawn if comm.rank == 0 else [])
    if comm.rank == 0:
        assert list(result.traces) == list(range(1, comm.size))
        return
    sent = [call.nbytes for call in result.traces[0] if call.collective == "send"]
    assert list(result.traces) == [0]
    assert sum(sent) == len(mine) * (32 + 8 + 4000) + 8 * 32 + 32
    received = [call.nbytes for call in result.traces[0] if call.collective == "recv"]
    assert sum(received) == 8 * 32 + len(mine) * 4008 + 32 + 4000


@pytest.mark.parametrize("strategy", [federated.FedAvg(), federated.DiLoCo(0.5, 0.8)], ids=repr)
def test_parts_in_turn(comm, strategy):
    """Clients go on with their own values of a part until its turn comes, as DiLoCo's ranks do."""
    counts, rounds, shapes = comm.size, 7, [(3,), (2, 2), (4,), ()]
    places = [[0], [1], [2, 3]]  # of 3, 4 and 5 elements

    def moved(values, client, seed):
        """Return values after a training that depends on all of them."""
        rng = np.random.default_rng([client, seed])
        mean = np.mean([each.mean() for each in values])
        return [0.7 * each + 0.1 * mean + rng.normal(size=each.shape) for each in values]

    def fit(parameters, task):
        begins.append([each.copy() for each in task.initial])
        return moved(parameters, task.client, task.round), 1 + task.client

    begins = []
    initial = [np.full(each, float(comm.rank == 0)) for each in shapes]
    result = federated.run(comm, initial, fit, strategy=strategy, rounds=rounds, parts=3)

    shared = [np.ones(each) for each in shapes]
    own = [[each.copy() for each in shared] for _ in range(counts)]
    states = [strategy.start([shared[k] for k in part], counts) for part in places]
    for number in range(1, rounds + 1):
        assert all(map(np.array_equal, begins[number - 1], own[comm.rank]))
        own = [moved(values, client, number) for client, values in enumerate(own)]
        due = (number - 1) % 3
        updates = [
            federated.Update([values[k] for k in places[due]], 1 + client)
            for client, values in enumerate(own)
        ]
        old = [shared[k] for k in places[due]]
        new, states[due] = strategy.aggregate(old, updates, states[due])
        for k, each in zip(places[due], new, strict=True):
            shared[k] = each
            for values in own:
                values[k] = each.copy()
    assert all(map(np.array_equal, result.parameters, shared))
    if comm.rank > 0:
        sent = sum(call.nbytes for call in result.traces[0] if call.collective == "send")
        got = sum(call.nbytes for call in result.traces[0] if call.collective == "recv")
        sizes = [3, 4, 5]
        turns = [sizes[(number - 1) % 3] for number in range(1, rounds + 1)]
        assert sent == rounds * (32 + 8 + 32) + 8 * sum(turns) + 32
        whole = 8 * sum(sizes)
        assert got == rounds * (32 + 8) + whole + 8 * sum(turns[:-1]) + 32 + whole


def test_a_part_of_clients_in_parts_with_secure_sums(comm):
    pytest.importorskip("cryptography")

    def fit(parameters, task):
        return [each + task.client for each in parameters], 1

    result = federated.run(
        comm,
        [np.zeros(2), np.zeros(3)],
        fit,
        rounds=4,
        parts=2,
        clients=2,
        secure=federated.SecureAggregation(),
    )
    # Two trainings of each part: the mean number of a client is added in each.
    mean = np.mean(range(2 * comm.size))
    assert np.allclose(result.parameters[0], 3 * mean)
    assert np.allclose(result.parameters[1], 4 * mean)


def test_ranks_that_differ(comm):
    def fit(parameters, task):
        return parameters, 1

    if comm.size > 1:
        with pytest.raises(MismatchError, match=r"rounds is \d on rank \d, and 3 on rank 0"):
            federated.run(comm, [np.zeros(3)], fit, rounds=3 + comm.rank)
        with pytest.raises(MismatchError, match="shapes is"):
            federated.run(comm, [np.zeros(3 + comm.rank)], fit)
    with pytest.raises(MismatchError, match="no rank has a client"):
        federated.run(comm, [np.zeros(3)], fit, clients=0)
    with pytest.raises(ArgumentError, match="rounds is 0, and must be an integer from 1 on"):
        federated.run(comm, [np.zeros(3)], fit, rounds=0)
    text = "parts is 3, and must be at most 2, the number of arrays"
    with pytest.raises(ArgumentError, match=text):
        federated.run(comm, [np.zeros(3)] * 2, fit, parts=3)
    with pytest.raises(ArgumentError, match="fit is None, and must be a function"):
        federated.run(comm, [np.zeros(3)], None)
    with pytest.raises(ArgumentError, match="secure is True, and must be a SecureAggregation"):
        federated.run(comm, [np.zeros(3)], fit, secure=True)
    with pytest.raises(ArgumentError, match="deadline is -1"):
        federated.run(comm, [np.zeros(3)], fit, deadline=-1)
    for wrong in (federated.FedAvg, "fedavg"):
        with pytest.raises(ArgumentError, match=r"strategy is .* must be an object such as FedAvg"):
            federated.run(comm, [np.zeros(3)], fit, strategy=wrong)
    with pytest.raises(ArgumentError, match=r"a dict, .* pass list\(parameters.values\(\)\)"):
        federated.run(comm, {"w": np.zeros(3)}, fit)
    with pytest.raises(ArgumentError, match=r"a ndarray, .* pass \[parameters\]"):
        federated.run(comm, np.zeros(3), fit)
    last = comm.size - 1
    text = "" if comm.rank == last else f"rank {last}: ArgumentError: "
    with pytest.raises(ArgumentError, match=f"{text}clients is -1"):  # nobody waits
        federated.run(comm, [np.zeros(3)], fit, clients=-1 if comm.rank == last else 1)


def test_secure_sums(comm):
    """The mean is that of plain updates, up to the rounding; messages are longer."""
    pytest.importorskip("cryptography")
    count = 3 + comm.rank

    def fit(parameters, task):
        return [parameters[0] + np.float32(0.3 * count), parameters[1] - count], count

    start = [np.zeros(5, np.float32), np.zeros((2, 2))]
    plain = federated.run(comm, start, fit, rounds=2, clients=2)
    start = [np.zeros(5, np.float32), np.zeros((2, 2))]
    secure = federated.SecureAggregation()
    hidden = federated.run(comm, start, fit, rounds=2, clients=2, secure=secure)
    for a, b in zip(plain.parameters, hidden.parameters, strict=True):
        assert np.allclose(a, b, rtol=1e-6, atol=1e-6)
        assert a.dtype == b.dtype
    assert all(each.missed == [] for each in hidden.rounds)
    if comm.rank:
        sent = [call.nbytes for call in hidden.traces[0] if call.collective == "send"]
        assert sent == 2 * [32, 80, 32, 80, 32] + [32]


def test_clients_read_no_objects(comm, monkeypatch):
    """An object is a pickle, which runs the code of its sender."""
    pytest.importorskip("cryptography")

    def refused(*arguments, **options):
        raise AssertionError("an object was sent")

    for name in ("allgather_object", "broadcast_object", "gather_object", "scatter_object"):
        monkeypatch.setattr(type(comm), name, refused)
    secure = federated.SecureAggregation()
    result = federated.run(
        comm, [np.zeros(3)], lambda own, task: ([own[0] + task.client], 1), rounds=1, secure=secure
    )
    assert np.allclose(result.parameters[0], (comm.size - 1) / 2 if comm.size > 1 else 0)


@pytest.mark.parametrize("parts", [1, 3])
def test_statistics_are_averaged_and_not_stepped(comm, parts):
    strategy = federated.FedAdam(rate=0.5, averaged=[1])

    def fit(parameters, task):
        return [parameters[0] - 1, np.array([1.0, 3.0]), parameters[2] - 1], 1

    start = [np.zeros(4), np.ones(2), np.zeros(3)]
    result = federated.run(comm, start, fit, strategy=strategy, rounds=2 * parts, parts=parts)
    assert np.array_equal(result.parameters[1], [1.0, 3.0])
    assert (result.parameters[0] < 0).all()
    assert (result.parameters[2] < 0).all()
    with pytest.raises(ArgumentError, match="averaged has 3, and there are 3 parameters, from 0"):
        federated.run(comm, start, fit, strategy=federated.DiLoCo(averaged=[3]), rounds=1)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_step_to_infinity_names_the_parameter(comm):
    if comm.transport != "shm":  # the others wait for their deadline
        return

    def fit(parameters, task):
        return [parameters[0], parameters[1] + np.float32(1e38)], 1

    start = [np.zeros(2, np.float32), np.zeros(2, np.float32)]
    text = r"round 1: the step of DiLoCo\(.* makes parameters\[1\] infinite or NaN"
    with pytest.raises(PeerAbortedError if comm.rank else ArgumentError, match=text):
        federated.run(comm, start, fit, strategy=federated.DiLoCo(rate=100.0), rounds=1)


def test_a_private_round_without_clients_has_noise(comm):
    """Parameters that stay as they are would say that nobody was drawn."""
    pytest.importorskip("cryptography")
    strategy = federated.DifferentialPrivacy(federated.FedAvg(fraction=1e-6), 1.0, 1.0)
    start = [np.zeros(100)]
    secure = federated.SecureAggregation()
    result = federated.run(
        comm, start, lambda task: 1, rounds=1, clients=8, strategy=strategy, secure=secure
    )
    assert comm.rank or result.rounds[0].taken == []
    assert np.count_nonzero(result.parameters[0]) == 100


def test_secure_sums_without_a_rank(comm):
    """The round in which it leaves has no result, and the next ones are without it."""
    pytest.importorskip("cryptography")
    if comm.size < 3 or comm.transport != "shm":
        return

    def fit(parameters, task):
        if (comm.rank, task.round) == (1, 2):
            raise KeyError("not here")
        return [parameters[0] + 1.0 + comm.rank], 1

    secure = federated.SecureAggregation()
    if comm.rank == 1:
        with pytest.raises(KeyError):
            federated.run(comm, [np.zeros(2)], fit, rounds=3, secure=secure)
        return
    result = federated.run(comm, [np.zeros(2)], fit, rounds=3, secure=secure)
    p = comm.size
    others = [rank for rank in range(p) if rank != 1]
    gained = (p + 1) / 2 + sum(1 + rank for rank in others) / (p - 1)
    assert np.allclose(result.parameters[0], gained, atol=1e-6)
    if comm.rank == 0:
        assert [each.taken for each in result.rounds] == [list(range(p)), [], others]
        assert list(result.lost) == [1]


def test_rank_0_fails(comm):
    """The others hear of it."""
    if comm.transport != "shm":
        return

    def evaluate(parameters, round):
        raise KeyError("no such image")

    expected = KeyError if comm.rank == 0 else PeerAbortedError
    with pytest.raises(expected, match="no such image"):
        federated.run(comm, [np.zeros(2)], lambda x, task: (x, 1), evaluate=evaluate)
