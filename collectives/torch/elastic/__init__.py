"""Horovod's elastic interface: a state that is kept, restored and sent to all ranks.

Ranks are neither replaced nor added yet. Where a collective fails, the state that was last kept is
restored, and the error goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives.horovod import basics
from collectives.horovod.elastic import run_fn
from collectives.torch.elastic.sampler import ElasticSampler
from collectives.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function: it is called with a state that all ranks have from rank 0.
    Collective.

    Ranks that are lost are not replaced yet: a `HorovodInternalError` restores the state and goes
    on. After a `HostsUpdatedInterrupt`, the function begins again.

    Parameters
    ----------
    func : callable
        Its first argument is the state, such as a `TorchState`.

    Returns
    -------
    callable
        With the same arguments.
    """
    return run_fn(func, _reset)


def _reset() -> None:
    basics.shutdown()
    basics.init()
