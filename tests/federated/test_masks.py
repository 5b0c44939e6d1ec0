"""Secure sums: masks cancel exactly, and a single update says nothing."""

import sys

import numpy as np
import pytest

from collectives.errors import ArgumentError
from collectives.federated import FedAvg, SecureAggregation, Update
from collectives.federated.coordinating import Coordinator
from collectives.federated.parameters import Parameters
from collectives.federated.training import ClientTraining


@pytest.fixture
def wires():
    """Return what packs the updates of each client, with keys that are the same in every run."""
    masks = pytest.importorskip("collectives.federated.masks")
    x25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.x25519")

    def make(shapes, clients, bits=24):
        own = Parameters([np.zeros(shape) for shape in shapes])
        keys = {k: x25519.X25519PrivateKey.from_private_bytes(bytes([k + 1] * 32)) for k in clients}
        public = masks.public_of(keys)
        return [masks.Masked(own, bits, {k: keys[k]}, public) for k in clients]

    return make


def test_masks_cancel_exactly(wires):
    rng = np.random.default_rng(0)
    roster = [0, 2, 3, 4]
    each = wires([(300, 2), (), (7,)], range(5))
    updates = {
        k: Update([rng.normal(size=(300, 2)), np.array(rng.normal()), rng.normal(size=7)], 10 + k)
        for k in roster
    }
    received = [each[k].packed(updates[k], 9, k, roster) for k in roster]
    assert {data.nbytes for data in received} == {each[0].nbytes} == {8 * 609}
    (mean,) = each[1].unpacked(received)
    assert mean.count == 10 + 12 + 13 + 14
    for k, got in enumerate(mean.arrays):
        whole = sum(
            np.trunc(update.arrays[k] * 2**24).astype(np.int64) * update.count
            for update in updates.values()
        )
        assert np.array_equal(got, whole / 2.0**24 / mean.count)
        exact = sum(update.arrays[k] * update.count for update in updates.values()) / mean.count
        assert np.abs(got - exact).max() < 2.0**-24


def looks_uniform(data):
    """Return whether all bytes are about equally frequent: chi squared is 255, plus or minus 23."""
    found = np.bincount(data, minlength=256)
    expected = data.size / 256
    return ((found - expected) ** 2 / expected).sum() < 255 + 5 * 23


def test_single_updates_and_sums_of_some_look_uniform(wires):
    each = wires([(20_000,)], range(3))
    update = Update([np.full(20_000, 0.5)], 3)
    roster = [0, 1, 2]
    first = [each[k].packed(update, 1, k, roster) for k in roster]
    second = [each[k].packed(update, 2, k, roster) for k in roster]
    masked = [data.view(np.uint64) for data in (*first, *second)]
    some = [masked[0] + masked[1], masked[0] - masked[1], masked[0] - masked[3]]
    assert all(looks_uniform(numbers.view(np.uint8)) for numbers in (*masked, *some))
    whole = masked[0] + masked[1] + masked[2]
    assert not looks_uniform(whole.view(np.uint8))
    assert (whole[:-1] == 3 * 3 << 23).all()


def test_values_that_do_not_fit(wires):
    each = wires([(2,)], range(4), bits=40)
    fits = Update([np.array([2.0**18, -1.0])], 7)
    each[0].packed(fits, 1, 0, [0, 1, 2, 3])
    for value, count in ((2.0**18, 8), (np.inf, 1), (np.nan, 1), (2.0**21, 1)):
        with pytest.raises(ArgumentError, match="pass fewer bits to SecureAggregation"):
            each[0].packed(Update([np.array([value, 0.0])], count), 1, 0, [0, 1, 2, 3])


def test_a_round_with_a_missing_update_has_no_result(wires):
    class Silent:
        """Rank 1, with client 1, from which nothing comes."""

        rank, clients, lost, has_ended, is_busy, asked = 1, range(1, 2), "", False, False, 0
        knows = 0

        def ask(self, round, roster, since, body):
            self.asked, self.is_busy = round, True

        def poll(self):
            return iter(())

        def close(self, round):
            pass

        def end(self, body):
            self.has_ended = True

        free = poll

    wire = wires([(1,)], range(2))[0]
    own = Parameters([np.zeros(1)])
    training = ClientTraining(own, lambda x, task: ([x[0] + 1], 1), FedAvg(), [wire], range(1), 0)
    arrays, rounds = Coordinator(training, [Silent()], 2, 0.001, 60.0, None).run(2)
    assert [(each.taken, each.missed) for each in rounds] == [([], [0, 1])] * 2
    assert arrays[0][0] == 0


def test_arguments(monkeypatch):
    with pytest.raises(ArgumentError, match="bits is 41, and must be an integer from 1 to 40"):
        SecureAggregation(bits=41)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ArgumentError, match=r"needs the package cryptography .*: pip install"):
        SecureAggregation()
