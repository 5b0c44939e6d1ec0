"""With ``init(bits="size")``, an element has the same bits alone and with others.

On two ranks it always has. On three, these tests fail without.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from any_size import FEW, contribution, folded, same
from places import RANK, SIZE

import collectives.tensorflow as hvd

X = tf.constant(contribution(RANK))
TOTAL = folded(SIZE)


@pytest.fixture(scope="module", autouse=True)
def begun():
    hvd.shutdown()
    hvd.init(bits="size")
    yield
    hvd.shutdown()


def hold(results, total=TOTAL):
    for got, part in zip(results, FEW, strict=True):
        same(got.numpy(), total[part])


def test_calls(way):
    parts = [X[part] for part in FEW]
    hold(way(lambda: [hvd.allreduce(each, op=hvd.Sum) for each in parts])())
    hold(way(lambda: hvd.grouped_allreduce(parts, op=hvd.Sum))())


def test_tape(way):
    weights = [tf.Variable(tf.zeros(part.stop - part.start)) for part in FEW]

    @way
    def gradients(groups):
        with tf.GradientTape() as tape:
            parts = zip(weights, FEW, strict=True)
            loss = tf.add_n([tf.reduce_sum(w * X[part]) for w, part in parts])
        return hvd.DistributedGradientTape(tape, groups=groups).gradient(loss, weights)

    averages = hvd.allreduce(X).numpy()
    for groups in (None, 2):
        hold(gradients(groups), averages)


def test_strategy():
    ops = hvd.CrossDeviceOps(op=hvd.Sum)
    assert ops._comm.bits == "size"
    hold(ops._reduced([X[part] for part in FEW], hvd.Sum))
    named = hvd.CrossDeviceOps("ring", op=hvd.Sum)
    if SIZE > 2:
        with pytest.raises(Exception, match="bits is 'size', but allreduce 'ring' on"):
            named._reduced([X], hvd.Sum)
