"""The members that every communicator has beside its calls: its settings, its text, its end."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from collectives import _core
from collectives.calls.moving import MovingCalls
from collectives.errors import CommunicatorError
from collectives.text.words import count, error_text

if TYPE_CHECKING:
    from typing_extensions import Self


class Members(MovingCalls):
    """The members of a communicator beside its calls."""

    if TYPE_CHECKING:

        @property
        def transport(self) -> str:
            """The transport of the ranks."""

        def free(self) -> None:
            """Free the communicator."""

    @property
    def bits(self) -> str:
        """The mode of the bits of results, unless a call has its own: ``"any"`` or ``"size"``."""
        return self._engine.bits

    @property
    def timeout(self) -> float:
        """Seconds after which a wait raises `StallError`, unless the call has its own."""
        return self._engine.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._engine.timeout = _core.seconds(seconds)

    def __repr__(self) -> str:
        if self._mpi is None:
            return "<collectives.Communicator, freed>"
        ranks = f"rank {self.rank} of {self.size} on {count(self.nodes, 'host')}"
        broken = (self._engine.broken or "").removeprefix("the communicator is ")
        return f"<collectives.Communicator, {ranks} by {self.transport}{broken and ', ' + broken}>"

    def __reduce__(self) -> NoReturn:
        raise CommunicatorError(
            "a communicator cannot be pickled or copied, because it belongs to its process; "
            "comm.dup() makes another one of the same ranks, and collectives.world() has all ranks "
            "of the job. Leave it out of objects that you pickle (__getstate__)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error the other ranks may be anywhere: freeing, which is collective, could hang.
        if error is None:
            self.free()
        else:
            self._give_up(error_text(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._engine.broken is None:  # nor freed
            try:
                await self.ibarrier()  # nothing waits for other ranks in free() then
            except BaseException as reason:  # among others, that it is cancelled
                self._give_up(error_text(reason))
                raise
        self.__exit__(kind, error, trace)

    def _give_up(self, text: str) -> None:
        """Break the communicator, and tell the other ranks that can be told. Local."""
        if self.size > 1 and self._engine.broken is None:  # nor freed
            self._engine.broken = f"the communicator is broken: rank {self.rank} gave up: {text}"
            self._engine.give_up(text)
