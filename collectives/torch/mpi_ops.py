"""The calls on tensors under the name of the module that Horovod has them in."""

from collectives.horovod import *
from collectives.horovod import basics as _basics  # noqa: F401 - programs ask it for process sets
from collectives.horovod.handles import barrier as barrier
from collectives.horovod.handles import join as join
from collectives.torch.asynchronous import *
from collectives.torch.blocking import *
