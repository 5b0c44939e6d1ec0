"""Keras 3 on TensorFlow, torch or JAX: Horovod's interface (``import collectives.keras as hvd``).

Programs that were written for ``horovod.keras`` run with this import. `optimizer` is
`DistributedOptimizer`; `distribution` swaps the class of an optimizer, and `torch` reduces
gradients on that backend, as `compiled` does on others. `callbacks` has those for ``fit``;
`values` has the calls on arrays and variables; `saving` loads models; `compression` has the
compressors, and `elastic` the states of elastic jobs. `hooks` changes Keras for distributed
optimizers, and `compat` makes it accept the idioms of its older versions. Inputs and outputs are
Keras's objects and arrays in host memory. The only framework that is imported here is Keras's
backend.
"""

try:
    import keras as _keras
except ImportError as error:
    raise ImportError(
        f"collectives.keras needs Keras 3, which cannot be imported ({error}): pip install keras"
    ) from error
if int(_keras.__version__.partition(".")[0]) < 3:
    raise ImportError(
        f"collectives.keras needs Keras 3, and this is Keras {_keras.__version__}: "
        f"pip install 'keras>=3'"
    )

from typing import TYPE_CHECKING as _TYPE_CHECKING

from collectives.horovod import *
from collectives.horovod.handles import barrier as barrier
from collectives.horovod.names import exported as _exported
from collectives.horovod.objects import allgather_object as allgather_object
from collectives.horovod.objects import broadcast_object as broadcast_object
from collectives.horovod.objects import same as same
from collectives.horovod.objects import stop_requested as stop_requested
from collectives.keras import callbacks as callbacks
from collectives.keras import compat, hooks
from collectives.keras import elastic as elastic
from collectives.keras.compression import Compression as Compression
from collectives.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from collectives.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from collectives.keras.saving import load_model as load_model
from collectives.keras.values import *

if not _TYPE_CHECKING:  # type checkers follow the imports
    __all__ = _exported(globals(), "callbacks", "elastic")

hooks.install()
compat.install()
