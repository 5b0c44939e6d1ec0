"""Rank 0, with other ranks that are made up: late messages, and their order."""

import numpy as np
import pytest

from collectives.errors import UnsupportedTypeError
from collectives.federated import FedAvg, Result, Update
from collectives.federated.coordinating import Coordinator
from collectives.federated.parameters import Parameters
from collectives.federated.training import ClientTraining, Wire

NAN = float("nan")


class Scripted:
    """A rank with two clients, whose updates of each round come with those of the round before."""

    rank, clients, lost, has_ended, asked, knows = 1, range(1, 3), "", False, 0, 0

    def __init__(self, wire):
        self.wire, self.is_busy, self.queue, self.calls = wire, False, [], []

    def update(self, round, client, value):
        data = self.wire.packed(Update([np.array([value])], 1), round, client, [])
        return round, client, data

    def ask(self, round, roster, since, body):
        self.calls.append(("ask", round))
        self.asked, self.is_busy = round, True
        late = [self.update(round - 1, client, NAN) for client in self.clients]
        mine = [self.update(round, client, 10.0 * client) for client in reversed(self.clients)]
        self.queue = [late[0], mine[0], late[1], mine[1]]

    def poll(self):
        if self.queue:
            yield self.queue.pop(0)
            self.is_busy = bool(self.queue)

    def close(self, round):
        self.calls.append(("close", round, self.is_busy))

    def end(self, body):
        self.has_ended = True

    def free(self):
        pass


def test_a_late_update_is_in_no_later_round():
    weights = np.zeros(1)
    own = Parameters([weights])
    wire = Wire(own)
    order = []

    def fit(parameters, task):
        order.append(task.client)
        return [np.array([30.0])], 2

    training = ClientTraining(own, fit, FedAvg(), [wire], range(1), 0)
    link = Scripted(wire)
    arrays, rounds = Coordinator(training, [link], 3, 60.0, 60.0, None).run(2)
    assert arrays[0][0] == (2 * 30 + 10 + 20) / 4
    for number, record in enumerate(rounds, start=1):
        assert record.taken == [0, 1, 2]
        assert record.missed == []
        assert record.late == [(1, number - 1), (2, number - 1)]
    assert link.calls == [("ask", 1), ("ask", 2)]


def test_a_rank_that_is_busy_is_not_asked_again():
    own = Parameters([np.zeros(1)])
    link = Scripted(Wire(own))
    link.poll = lambda: iter(())  # nothing ever comes
    training = ClientTraining(own, lambda x, task: (x, 1), FedAvg(), [link.wire], range(1), 0)
    arrays, rounds = Coordinator(training, [link], 3, 0.001, 60.0, None).run(3)
    assert [each.taken for each in rounds] == [[0]] * 3
    assert [each.missed for each in rounds] == [[1, 2]] * 3
    assert link.calls == [("ask", 1), *[("close", number, True) for number in (1, 2, 3)]]
    assert np.array_equal(arrays[0], [0.0])


def test_ranks_that_are_sent_the_same_share_its_bytes():
    """Rank 0 needs no memory of its own for each of many ranks."""
    own = Parameters([np.zeros(1)])
    bodies = []

    class Recorded(Scripted):
        def ask(self, round, roster, since, body):
            bodies.append(body)
            super().ask(round, roster, since, body)

    links = [Recorded(Wire(own)) for _ in range(2)]
    links[1].clients = range(3, 5)
    wires = [links[0].wire]
    training = ClientTraining(own, lambda x, task: (x, 1), FedAvg(), wires, range(1), 0)
    Coordinator(training, links, 5, 60.0, 60.0, None).run(2)
    assert len(bodies) == 4
    assert bodies[0] is bodies[1]
    assert bodies[2] is bodies[3]
    assert bodies[1].tobytes() != bodies[2].tobytes()


def test_an_update_that_is_not_finite_is_refused():
    own = Parameters([np.zeros(2)])
    wire = Wire(own)

    def fit(parameters, task):
        return [np.array([1.0, NAN if task.client == 1 else 3.0])], 1

    training = ClientTraining(own, fit, FedAvg(), [wire], range(3), 0)
    arrays, rounds = Coordinator(training, [], 3, None, 60.0, None).run(2)
    assert arrays[0].tolist() == [1.0, 3.0]
    for each in rounds:
        assert (each.taken, each.missed, each.refused) == ([0, 2], [1], [1])
    result = Result(arrays, rounds, {4: "rank 4 has died"}, {})
    want = "2 rounds; 1 array of 2 numbers; 4 updates taken, 2 missed; rank 4 has died"
    assert str(result) == want


@pytest.mark.parametrize(
    "returned",
    [
        None,
        [np.zeros(1)],
        ([np.zeros(1)], -1),
        ([np.zeros(1)], 0.5),
        ([np.zeros(2)], 1),
        ([], 1),
        [np.zeros(9999)],
    ],
)
def test_what_fit_must_return(returned):
    own = Parameters([np.zeros(1)])
    training = ClientTraining(own, lambda x, task: returned, FedAvg(), [Wire(own)], range(1), 0)
    with pytest.raises(ValueError, match=r"fit returned|what fit returned") as caught:
        training.train(1, 0, [0], own.read())
    assert len(str(caught.value)) < 200  # no arrays
    returned = [np.zeros(1, complex)], 1
    with pytest.raises(UnsupportedTypeError, match=r"returned\[0\] has dtype complex128"):
        training.train(1, 0, [0], own.read())
