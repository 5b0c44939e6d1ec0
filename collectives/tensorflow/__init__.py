"""TensorFlow: Horovod's interface (``import collectives.tensorflow as hvd``), and `tf.distribute`.

Programs that were written for ``horovod.tensorflow`` run with this import, eagerly and in a
`tf.function`. `reducing` and `moving` have the calls on tensors, and `places` those that return
ranks; `tape` has the gradient tapes, and `optimizer` the optimizers; `functions` sends variables
and objects; `distribute` is for strategies of `tf.distribute`; `compression`, `sync_batch_norm`,
`elastic` and `mpi_ops` are Horovod's modules of these names. Inputs and outputs are tensors in
host memory. No package that a program without TensorFlow needs imports TensorFlow.
"""

try:
    import tensorflow as _tensorflow
except ImportError as error:
    raise ImportError(
        f"collectives.tensorflow needs TensorFlow, which cannot be imported ({error}): "
        f"pip install tensorflow"
    ) from error

from typing import TYPE_CHECKING as _TYPE_CHECKING

from tensorflow import executing_eagerly as _executing_eagerly  # noqa: F401 - programs call it

from collectives.horovod.names import exported as _exported
from collectives.horovod.util import gpu_available as gpu_available
from collectives.keras import compat as _compat
from collectives.tensorflow import elastic as elastic
from collectives.tensorflow import mpi_ops as mpi_ops
from collectives.tensorflow.compression import Compression as Compression
from collectives.tensorflow.distribute import CrossDeviceOps as CrossDeviceOps
from collectives.tensorflow.functions import *
from collectives.tensorflow.mpi_ops import *
from collectives.tensorflow.optimizer import DistributedOptimizer as DistributedOptimizer
from collectives.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from collectives.tensorflow.tape import DistributedGradientTape as DistributedGradientTape
from collectives.tensorflow.tape import (
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)

if not _TYPE_CHECKING:  # type checkers follow the imports
    __all__ = _exported(globals(), "elastic", "mpi_ops")

_compat.install()

del _tensorflow
