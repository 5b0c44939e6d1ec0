"""How tensors are reduced."""

from __future__ import annotations

from typing import Any, NamedTuple

from collectives.horovod.ops import ReduceOp
from collectives.horovod.process_sets import ProcessSet, global_process_set


class Terms(NamedTuple):
    """How the tensors of all ranks are reduced.

    Attributes
    ----------
    op : ReduceOp
    prescale, postscale : float
        Factors of the tensors, and of the result.
    compression : class, codec of `collectives.compression`, or None
        How tensors are sent: a class with Horovod's static methods ``compress`` and ``decompress``,
        or a codec, or its name.
    process_set : ProcessSet
        The ranks.
    name : str or None
        What the tensors are called, on all ranks: what is submitted for them has names that begin
        with it. What has none is matched by its place.
    """

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    compression: Any = None
    process_set: ProcessSet = global_process_set
    name: str | None = "gradients"

    @property
    def codec(self) -> Any:
        """The codec, if it is one of the library."""
        return None if isinstance(self.compression, type) else self.compression

    @property
    def is_alone(self) -> bool:
        """Whether there is but one rank."""
        return self.process_set.comm().size == 1
