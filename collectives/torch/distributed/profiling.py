"""Calls as events of torch's profiler."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _autograd

TITLES = {
    "allreduce": "all_reduce",
    "allreduce_many": "all_reduce",
    "reduce_scatterv": "reduce_scatter",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "alltoallv": "all_to_all",
}


class Event:
    """A call, from now on until its end."""

    def __init__(self, name: str, arrays: Sequence[Any]) -> None:
        inputs = arrays[0] if arrays else ()
        inputs = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        title = f"collectives:{TITLES.get(name, name)}"
        self._lock = threading.Lock()
        self._future: torch.futures.Future[None] = torch.futures.Future()
        event = _autograd._record_function_with_args_enter(title, *tensors)
        # The end may come in a thread that the profiler does not know.
        torch.ops.profiler._call_end_callbacks_on_jit_fut(event, self._future)

    def end(self) -> None:
        """End the event, once. Local."""
        with self._lock:
            if not self._future.done():
                self._future.set_result(None)
