"""A convolutional network for images of 100 kinds, trained on all ranks with a gradient tape.

It is the first program that courses on Horovod show for TensorFlow, with the same idioms: a step is
a `tf.function`; the tape's gradients are those of all ranks; after the first step, all variables
are set to those of rank 0; more ranks take fewer steps at a higher learning rate; rank 0 saves.

The images are made up, in the shape of CIFAR-100: each kind is a random picture, with noise. Run it
on any number of ranks::

    collectives run -n 2 examples/lectures/cifar100_tape.py --steps 200
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
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

# 3. Each rank takes another part of the images.
x_train, y_train = load_data()
x_train = x_train.astype("float32") / 255.0
y_train = tf.keras.utils.to_categorical(y_train, 100)
dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(500, seed=hvd.rank())
dataset = dataset.batch(options.batch)

model = tf.keras.Sequential(
    [
        tf.keras.Input((32, 32, 3)),
        tf.keras.layers.Conv2D(16, (3, 3), activation="relu"),
        tf.keras.layers.MaxPooling2D((2, 2)),
        tf.keras.layers.Conv2D(32, (3, 3), activation="relu"),
        tf.keras.layers.MaxPooling2D((2, 2)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(100, activation="softmax"),
    ]
)
loss = tf.losses.CategoricalCrossentropy()

# 4. The batch of all ranks is larger, and so is the learning rate.
opt = tf.optimizers.Adam(0.001 * hvd.size())
checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)

    # 5. The gradients are the means of those of all ranks.
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    # 6. All ranks begin with the variables of rank 0. The first step makes those of the optimizer.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss_value


for batch, (images, labels) in enumerate(dataset.take(options.steps // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)
    if batch % 20 == 0:
        # 7. Print the mean of all ranks.
        mean = hvd.allreduce(loss_value, op=hvd.Average)
        if hvd.rank() == 0:
            print(f"step {batch}: loss {mean:.4f}")

# 8. One rank saves.
if hvd.rank() == 0:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(os.path.join(folder, "checkpoint"))

mine = [weights.tobytes() for weights in model.get_weights()]
if hvd.rank() == 0:
    print("saved")
if any(each != mine for each in hvd.allgather_object(mine)):
    raise SystemExit("the ranks have different weights")
