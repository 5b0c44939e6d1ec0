"""A convolutional network for images of 100 kinds, trained on all ranks with a gradient tape.

It is the first program that courses on Horovod show for TensorFlow, with the same idioms: a step is
a `tf.function`; the tape's gradients are those of all ranks; after the first step, all variables
are set to those of rank 0; more ranks take fewer steps at a higher learning rate; rank 0 saves.

The images are made up, in the shape of CIFAR-100: each kind is a random picture, with noise. Run it
on any number of ranks::

    collectives run -n 2 examples/lectures/cifar100_tape.py --steps 200

It needs tensorflow (``pip install tensorflow``).
"""

import argparse
import os
import tempfile

import numpy as np
import tensorflow as tf

import collectives.tensorflow as hvd

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--steps", type=int, default=200, help="of all ranks together")
parser.add_argument("--batch", type=int, default=32, help="images in the batch of one rank")
options = parser.parse_args()


def load_data(images=2000):
    """Return images of 32 x 32 points with three colours, and the numbers of their kinds."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 256, (100, 8, 8, 3)).repeat(4, axis=1).repeat(4, axis=2)
    labels = rng.integers(0, 100, (images, 1))
    noise = rng.normal(0, 32, (images, 32, 32, 3))
    return (kinds[labels[:, 0]] + noise).clip(0, 255).astype(np.uint8), labels


# 1. Initialise.
hvd.init()

# 2. Give each rank a GPU of its own, if there are any.
if gpus := tf.config.list_physical_devices("GPU"):
    mine = gpus[hvd.local_rank()]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)

# 3. Each rank takes another part of the images.
x_train, y_train = load_data()
x_train = x_train.astype("float32") / 255.0
y_train = tf.keras.utils.to_categorical(y_train, 100)
dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(500, seed=hvd.rank())
dataset = dataset.batch(options.batch)

model = tf.keras.Sequential([tf.keras.Input((32, 32, 3))])
for channels in 16, 32:
    model.add(tf.keras.layers.Conv2D(channels, 3, activation="relu"))
    model.add(tf.keras.layers.MaxPooling2D())
model.add(tf.keras.layers.Flatten())
model.add(tf.keras.layers.Dense(64, activation="relu"))
model.add(tf.keras.layers.Dense(100, activation="softmax"))
loss_of = tf.losses.CategoricalCrossentropy()

# 4. The batch of all ranks is larger, and so is the learning rate.
optimizer = tf.optimizers.Adam(0.001 * hvd.size())


@tf.function
def train(images, labels, is_first):
    with tf.GradientTape() as recorded:
        loss = loss_of(labels, model(images, training=True))

    # 5. The gradients are the means of those of all ranks.
    weights = model.trainable_variables
    means = hvd.DistributedGradientTape(recorded).gradient(loss, weights)
    optimizer.apply_gradients(zip(means, weights, strict=True))

    # 6. All ranks begin with the variables of rank 0. The first step makes those of the optimizer.
    if is_first:
        for each in model.variables, optimizer.variables():
            hvd.broadcast_variables(each, root_rank=0)
    return loss


for step, (images, labels) in enumerate(dataset.take(options.steps // hvd.size())):
    loss = train(images, labels, step == 0)
    if step % 20 == 0:
        # 7. Print the mean of all ranks.
        mean = hvd.allreduce(loss, op=hvd.Average)
        if hvd.rank() == 0:
            print(f"step {step}: loss {mean:.4f}")

# 8. One rank saves.
if hvd.rank() == 0:
    with tempfile.TemporaryDirectory() as folder:
        kept = tf.train.Checkpoint(model=model, optimizer=optimizer)
        kept.save(os.path.join(folder, "checkpoint"))

    print("saved")

weights = [each.tobytes() for each in model.get_weights()]
if any(each != weights for each in hvd.allgather_object(weights)):
    raise SystemExit("the ranks have different weights")
