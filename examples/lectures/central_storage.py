"""The work of `CentralStorageStrategy` of `tf.distribute`: the variables are in one place.

TensorFlow's class keeps the variables on one device, and computes on all of them. Here, that place
is rank 0: it alone has an optimizer. All ranks compute gradients, their mean goes to rank 0, and
its variables come back::

    collectives run -n 2 examples/lectures/central_storage.py

It needs tensorflow (``pip install tensorflow``).
"""

import strategies
import tensorflow as tf

import collectives as cc
import collectives.tensorflow as hvd

hvd.init()
CENTRE = 0

model, loss = strategies.network(), strategies.loss()
optimizer = tf.keras.optimizers.SGD(0.3) if hvd.rank() == CENTRE else None
dataset = tf.data.Dataset.from_tensor_slices(strategies.load())
dataset = dataset.repeat(2).batch(strategies.BATCH // hvd.size(), drop_remainder=True)


@tf.function
def gradients(x, y):
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    return tape.gradient(value, model.trainable_variables)


hvd.broadcast_variables(model.variables, root_rank=CENTRE)
for x, y in dataset:
    means = [cc.reduce(each, op=cc.AVG, root=CENTRE) for each in gradients(x, y)]
    if optimizer is not None:
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
    hvd.broadcast_variables(model.trainable_variables, root_rank=CENTRE)
strategies.report("central storage", model, strategies.accuracy(model))
