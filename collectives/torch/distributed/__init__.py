"""The backend ``"collectives"`` of `torch.distributed`.

Torch calls a process group (`group`) with tensors (`tensors`). The group calls its communicator,
and returns a `Work` for each asynchronous call (`work`). `rendezvous` makes the communicators, and
replaces the addresses that other backends need. This package has no algorithms, and no thread that
communicates.
"""

from __future__ import annotations

from collectives.torch.distributed.comparing import same
from collectives.torch.distributed.monitoring import monitored_barrier
from collectives.torch.distributed.rendezvous import init_process_group, register

__all__ = ["init_process_group", "monitored_barrier", "register", "same"]
