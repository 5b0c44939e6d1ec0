"""Horovod's elastic interface: a state that is kept, restored and sent to all ranks.

Where a rank is lost, the state that was last kept is restored, and the ranks that are left go on,
if the job does (``collectives run --elastic``). Ranks are neither replaced nor added.
"""

from collectives.horovod.elastic import run
from collectives.torch.elastic.sampler import ElasticSampler
from collectives.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
