"""The work of `tf.distribute.MultiWorkerMirroredStrategy`: a copy of the model in each process.

TensorFlow's class gets the addresses of all workers from ``TF_CONFIG``, and an option: they reduce
by ``RING``, by ``NCCL``, or by its choice. Here, the launcher starts the ranks, and each has
one device::

    collectives run -n 2 examples/lectures/multi_worker.py

It needs tensorflow (``pip install tensorflow``).
"""

import strategies
import tensorflow as tf

import collectives.tensorflow as hvd

hvd.init()
operations = hvd.CrossDeviceOps(algorithm="ring")
strategy = tf.distribute.MirroredStrategy(["CPU:0"], cross_device_ops=operations)
model, accuracy = strategies.train(strategy)
strategies.report("multi-worker mirrored", model, accuracy)
