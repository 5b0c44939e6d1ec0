"""Messages from any rank: received when one has come, from the rank that has sent it."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from collectives import _core
from collectives.communicator import Communicator
from collectives.errors import StallError
from collectives.torch.distributed.tensors import writable

POLLS = 100  # before a waiting thread yields the CPU
BRIEF = 0.1  # seconds of a wait without naps
NAP = 5e-4  # seconds
SLICE = 0.05  # seconds between two looks at the deadline and the other ranks


class AnySourceWork(dist._Work):
    """A message that any rank may send."""

    _receiving = threading.Lock()  # between the look at a message and its receipt

    def __init__(self, comm: Communicator, tensor: Any, tag: int) -> None:
        super().__init__()
        self._comm, self._tensor, self._tag = comm, tensor, tag
        self._source = -1

    def _try(self) -> bool:
        """Receive a message if one has come; return whether it has."""
        with self._receiving:
            if self._source >= 0:
                return True
            source = self._comm._sender(self._tag)
            if source is None:
                return False
            x, after = writable(self._tensor)
            self._comm.recv(x, source, tag=self._tag)
            if after is not None:
                after()
            self._source = source
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for a message, and receive it. Local."""
        began = looked = time.monotonic()
        limit = timeout.total_seconds() if timeout else self._comm.timeout
        polls = 0
        while not self._try():
            _core.guard()
            _core.advance_all()  # the sender may wait for an operation in flight before it comes
            now = time.monotonic()
            if now - looked > SLICE:
                began += _core.stopped(looked)
                looked = now
                self._comm._engine.check_host()
                if now - began > limit:
                    raise StallError(
                        f"recv from any rank timed out: no message with the tag {self._tag} "
                        f"has come in {limit:g} s"
                    )
            polls += 1
            if polls > POLLS:
                time.sleep(0 if now - began < BRIEF else NAP)
        return True

    def is_completed(self) -> bool:
        """Receive a message if one has come; return whether it has. Local."""
        return self._try()

    def is_success(self) -> bool:
        """Return whether a message was received. Local."""
        return self._try()

    def result(self) -> list[Any]:
        """Return the tensor in a list, when a message has come. Local."""
        self.wait()
        return [self._tensor]

    def source_rank(self) -> int:
        """Return the rank that has sent the message, or -1 if none has come. Local."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future, which is complete when a message has come. Local."""
        parent: torch.futures.Future[None] = torch.futures.Future()

        def take(_: Any) -> list[Any]:
            return self.result()

        child: Any = parent.then(take)
        threading.Thread(target=parent.set_result, args=(None,), daemon=True).start()
        return child
