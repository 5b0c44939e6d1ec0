"""The work of `tf.distribute.HierarchicalCopyAllReduce`, over the ranks: up a tree and down it.

TensorFlow's class adds the gradients of GPUs along the edges of a hierarchy until one of them has
the sum, and copies it back the same way. Here, the devices of a rank are the lowest level, and the
ranks are a binomial tree above it: the algorithm ``tree``::

    collectives run -n 2 examples/lectures/hierarchical_copy.py

It needs tensorflow (``pip install tensorflow``).
"""

import strategies
import tensorflow as tf

import collectives.tensorflow as hvd

hvd.init()
operations = hvd.CrossDeviceOps(algorithm="tree")
strategy = tf.distribute.MirroredStrategy(strategies.two_devices(), cross_device_ops=operations)
model, accuracy = strategies.train(strategy)
strategies.report("hierarchical copy", model, accuracy)
