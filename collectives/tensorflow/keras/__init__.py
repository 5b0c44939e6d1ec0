"""Keras of TensorFlow: Horovod's interface (``import collectives.tensorflow.keras as hvd``).

Programs that were written for ``horovod.tensorflow.keras`` run with this import. It has the names
of `collectives.keras`. But `DistributedOptimizer` also takes an optimizer of ``tf_keras``, the
older Keras that TensorFlow uses with ``TF_USE_LEGACY_KERAS=1``, and `load_model` also loads its
models (`legacy`).
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from collectives.horovod import *
from collectives.horovod.handles import barrier as barrier
from collectives.horovod.names import exported as _exported
from collectives.horovod.objects import allgather_object as allgather_object
from collectives.horovod.objects import broadcast_object as broadcast_object
from collectives.horovod.objects import same as same
from collectives.horovod.objects import stop_requested as stop_requested
from collectives.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from collectives.keras.values import allgather as allgather
from collectives.keras.values import allreduce as allreduce
from collectives.keras.values import broadcast as broadcast
from collectives.keras.values import reducescatter as reducescatter
from collectives.tensorflow.compression import Compression as Compression
from collectives.tensorflow.functions import (
    broadcast_global_variables as broadcast_global_variables,
)
from collectives.tensorflow.functions import broadcast_variables as broadcast_variables
from collectives.tensorflow.keras import callbacks as callbacks
from collectives.tensorflow.keras import elastic as elastic
from collectives.tensorflow.keras.legacy import DistributedOptimizer as DistributedOptimizer
from collectives.tensorflow.keras.legacy import load_model as load_model

if not _TYPE_CHECKING:  # type checkers follow the imports
    __all__ = _exported(globals(), "callbacks", "elastic")
