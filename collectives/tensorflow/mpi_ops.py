"""The calls on tensors under the name of the module that Horovod has them in."""

from collectives.horovod import *
from collectives.horovod import basics as _basics  # noqa: F401 - programs ask it for process sets
from collectives.tensorflow.moving import *
from collectives.tensorflow.places import *
from collectives.tensorflow.reducing import *
