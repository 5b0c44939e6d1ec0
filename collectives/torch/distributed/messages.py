"""Messages from any rank: received when one has come, from the rank that has sent it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from collectives.communicator import Communicator
from collectives.errors import StallError
from collectives.process.waiting import MESSAGES, Wait, until
from collectives.torch.distributed.tensors import writable


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
        limit = timeout.total_seconds() if timeout else self._comm.timeout

        def look(waited: float) -> None:
            self._comm._engine.check_host()

        if not until(self._try, Wait(MESSAGES, look, limit)):
            raise StallError(
                f"recv from any rank timed out: no message with the tag {self._tag} has come in "
                f"{limit:g} s"
            )
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
