"""PyTorch on this library: importing it registers the backend of `torch.distributed`.

What comes in are tensors, and what torch asks of a process group; what goes out are calls of
communicators. Nothing below this package imports torch, and only programs import it.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "collectives.torch needs PyTorch, which is not installed: pip install torch"
    ) from error

from collectives.torch.distributed import init_process_group, register

__all__ = ["init_process_group"]

register()
