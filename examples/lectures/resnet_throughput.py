"""Images per second that ranks process together: a ResNet-34 of Keras on random images.

Each rank makes steps on a batch of its own, with gradients that are averaged over the ranks. Rank 0
prints the mean and the standard deviation over the steps, and appends them to a file. With
``--table``, the program prints such a file as a table, with the efficiency: the images per second
of a rank, divided by those of a rank in the first row. ``--plot`` draws it.
`run_throughput.sh` does all of this for 1, 2, 4 and 8 ranks. ``HOROVOD_TIMELINE=timeline.json``
records a timeline of the ranks::

    collectives run -n 2 examples/lectures/resnet_throughput.py --num_steps 10
"""

import argparse
import csv
import os
import sys
import time
from statistics import mean, stdev

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # ranks share the cores of a host

FIELDS = "ranks", "mean", "deviation"
BLOCKS = 3, 4, 6, 3  # of two convolutions; each group is twice as wide as that before


def block(keras, x, filters, stride):
    """Return a block of two convolutions and the shortcut around them."""
    around = x
    for k in range(2):
        x = keras.layers.Conv2D(filters, 3, stride if k == 0 else 1, "same", use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        if k == 0:
            x = keras.layers.ReLU()(x)
    if stride > 1:
        around = keras.layers.Conv2D(filters, 1, stride, use_bias=False)(around)
        around = keras.layers.BatchNormalization()(around)
    return keras.layers.ReLU()(x + around)


def resnet(keras, size, width, blocks, classes=10):
    """Return the network, whose first convolutions have `width` filters: 64 in the paper.

    K. He, X. Zhang, S. Ren, J. Sun, Deep residual learning for image recognition, CVPR 2016.
    """
    inputs = x = keras.Input((size, size, 3))
    x = keras.layers.Conv2D(width, 7, 2, "same", use_bias=False)(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.MaxPooling2D(3, 2, "same")(x)
    for group, count in enumerate(blocks):
        for k in range(count):
            x = block(keras, x, 2**group * width, 2 if k == 0 and group else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


def measure(arguments):
    """Return the images per second of all ranks in each step, and the number of ranks."""
    import tensorflow as tf

    import collectives.tensorflow as hvd

    hvd.init()
    tf.keras.utils.set_random_seed(hvd.rank())
    images = tf.random.normal((arguments.batch_size, arguments.size, arguments.size, 3))
    labels = tf.random.uniform((arguments.batch_size,), 0, 10, tf.int64)
    model = resnet(tf.keras, arguments.size, arguments.width, arguments.blocks)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size())
    compression = hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    hvd.broadcast_variables(model.variables, root_rank=0)
    rates = []
    for k in range(arguments.num_steps + arguments.warmup_steps):
        began = time.perf_counter()
        step().numpy()
        if k >= arguments.warmup_steps:
            rates.append(arguments.batch_size / (time.perf_counter() - began))
    every = hvd.allgather_object(rates)
    return [sum(each) for each in zip(*every, strict=True)], hvd.rank(), hvd.size()


def rows_of(path):
    """Return the rows of a file of results."""
    with open(path, newline="") as file:
        return [
            (int(row["ranks"]), float(row["mean"]), float(row["deviation"]))
            for row in csv.DictReader(file)
        ]


def show(rows):
    """Print the table."""
    print("ranks  images/s  deviation  efficiency")
    for ranks, rate, deviation in rows:
        efficiency = rate / ranks / (rows[0][1] / rows[0][0])
        print(f"{ranks:5}  {rate:8.1f}  {deviation:9.1f}  {efficiency:10.0%}")


def draw(rows, path):
    """Draw the images per second over the ranks, and the ideal line."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "collectives"  # names in an SVG file do not change
    import matplotlib.pyplot as plt

    ranks, rates, deviations = zip(*rows, strict=True)
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    axes.plot(ranks, [n * rates[0] / ranks[0] for n in ranks], ":", color="grey", label="ideal")
    axes.errorbar(ranks, rates, deviations, fmt="o-", capsize=3, label="ResNet-34")
    # On these axes, a slope is a speed-up, and small rates are seen beside the ideal ones.
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("ranks")
    axes.set_ylabel("images a second")
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    print(f"drawn: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_steps", type=int, default=10)
    parser.add_argument("--warmup-steps", type=int, default=2, help="not counted")
    parser.add_argument("--batch-size", type=int, default=8, help="on each rank")
    parser.add_argument("--size", type=int, default=32, help="of an image; 224 in the paper")
    parser.add_argument("--width", type=int, default=16, help="of the network; 64 in the paper")
    parser.add_argument("--blocks", type=int, nargs="+", default=BLOCKS, help="of a ResNet-34")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--append", metavar="FILE", help="where rank 0 writes a row: .csv")
    parser.add_argument("--table", metavar="FILE", help="print such a file, and do nothing else")
    parser.add_argument("--plot", metavar="FILE", help="with --table: draw it, too")
    arguments = parser.parse_args()
    if arguments.num_steps < 2:
        sys.exit("--num_steps has to be 2 or more: one step has no deviation")
    if arguments.table:
        rows = rows_of(arguments.table)
        show(rows)
        if arguments.plot:
            draw(rows, arguments.plot)
        return

    rates, rank, size = measure(arguments)
    if rank:
        return
    print(f"{size} ranks: {mean(rates):.1f} images/s, deviation {stdev(rates):.1f}", flush=True)
    if arguments.append:
        is_new = not os.path.exists(arguments.append)
        with open(arguments.append, "a", newline="") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(FIELDS)
            writer.writerow((size, f"{mean(rates):.2f}", f"{stdev(rates):.2f}"))


if __name__ == "__main__":
    main()
