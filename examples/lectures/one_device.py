"""The work of `tf.distribute.ReductionToOneDevice`, over the ranks: one rank adds for all.

TensorFlow's class copies the gradients of all devices to one device, adds them there, and copies
the sum back. Here, the workers send their gradients to a master, rank 0, which adds and returns
them: the algorithm ``master_worker``::

    collectives run -n 2 examples/lectures/one_device.py

It needs tensorflow (``pip install tensorflow``).
"""

import strategies
import tensorflow as tf

import collectives.tensorflow as hvd

hvd.init()
operations = hvd.CrossDeviceOps(algorithm="master_worker")
strategy = tf.distribute.MirroredStrategy(strategies.two_devices(), cross_device_ops=operations)
model, accuracy = strategies.train(strategy)
strategies.report("reduction to one device", model, accuracy)
