"""The backend ``"collectives"`` of `torch.distributed`.

The inputs are torch's calls of a process group (`group`), with tensors (`tensors`). The outputs are
calls of one communicator for each group, and a `Work` for each asynchronous call (`work`).
`rendezvous` makes the communicators, and replaces the addresses that other backends need. Nothing
here has an algorithm, or a thread that communicates.
"""

from __future__ import annotations

from collectives.torch.distributed.monitoring import monitored_barrier
from collectives.torch.distributed.rendezvous import init_process_group, register

__all__ = ["init_process_group", "monitored_barrier", "register"]
