"""Horovod's elastic interface: a state that is kept, restored and sent to all ranks.

Where a rank is lost, the state that was last kept is restored, and the ranks that are left go on,
if the job does (``collectives run --elastic``). Ranks are neither replaced nor added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives.horovod.elastic import run_fn
from collectives.torch.elastic.sampler import ElasticSampler
from collectives.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function: it is called with a state that all ranks have from rank 0.
    Collective.

    After a loss, the state is restored, and the function begins again on the ranks that are left;
    where the job does not survive a loss, the `HorovodInternalError` goes on. After a
    `HostsUpdatedInterrupt`, the function begins again.

    Parameters
    ----------
    func : callable
        Its first argument is the state, such as a `TorchState`.

    Returns
    -------
    callable
        With the same arguments.
    """
    return run_fn(func)
