"""`tf.distribute.MirroredStrategy` on two devices of each rank, and on all ranks.

Each device has a copy of the variables. `CrossDeviceOps` reduces their gradients: they
are added over the devices of a rank, and then averaged over the ranks, by an algorithm of choice::

    collectives run -n 2 examples/lectures/mirrored.py ring

It needs tensorflow (``pip install tensorflow``).
"""

import sys

import strategies
import tensorflow as tf

import collectives.tensorflow as hvd

hvd.init()
devices = strategies.two_devices()
algorithm = sys.argv[1] if len(sys.argv) > 1 else None
operations = hvd.CrossDeviceOps(algorithm)
strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)
model, accuracy = strategies.train(strategy)
strategies.report(f"mirrored, {algorithm or 'the fastest algorithm'}", model, accuracy)
