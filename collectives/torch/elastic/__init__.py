"""Horovod's elastic interface: a state that is kept, restored and sent to all ranks.

After the loss of a rank, the last kept state is restored, and the remaining ranks continue, if the
job does (``collectives run --elastic``). Ranks are neither replaced nor added.
"""

from collectives.horovod.elastic import run
from collectives.torch.elastic.sampler import ElasticSampler
from collectives.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
