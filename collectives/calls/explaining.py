"""Calls that explain the choice of algorithms, or reset it."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from collectives import _core
from collectives.calls.base import Calls
from collectives.errors import ArgumentError
from collectives.text.words import article, shown

if TYPE_CHECKING:
    from collectives.choice.select import Decision
    from collectives.devices.transports import DeviceTransports


class ExplainingCalls(Calls):
    """Methods that return the choice of the algorithm or the transport, and the reason."""

    def explain(
        self,
        collective: str,
        nbytes: int = 0,
        *,
        algorithm: str | None = None,
        bits: str | None = None,
    ) -> Decision:
        """Return the algorithm that a call would run, and the reason.
        Local.

        Parameters
        ----------
        collective : str
            One of ``collectives.algorithms.COLLECTIVES``.
        nbytes : int
            Bytes of the whole array, the larger one if input and output differ in size.
        algorithm, bits : str, optional
            The arguments of the call.

        Returns
        -------
        Decision
            Print it to see the algorithm, the reason, the rounds, the bytes per rank, the time that
            the cost formulas predict, and the measured time, if the profile has one. If
            ``COLLECTIVES_TUNE=online`` has chosen, the choice is the one for root 0 and commutative
            operations.

        Raises
        ------
        ArgumentError
            If there is no such collective or algorithm, or `nbytes` is not a number of bytes.

        Examples
        --------
        >>> import collectives as cc
        >>> decision = cc.world().explain("allreduce", 1024, algorithm="ring")
        >>> decision.algorithm.name
        'ring'
        """
        if not isinstance(collective, str):
            raise ArgumentError(
                f"collective is {shown(collective)}, and must be one of "
                f"{', '.join(_core.COLLECTIVES)}"
            )
        try:
            nbytes = index(nbytes)
        except Exception as error:  # also of a user's type
            raise ArgumentError(
                f"nbytes is {article(type(nbytes).__name__)}, and must be a number of bytes: "
                f"x.nbytes"
            ) from error
        if nbytes < 0:
            raise ArgumentError(f"nbytes is {nbytes}, and cannot be below 0")
        return self._chooser.explain(collective, algorithm, bits, nbytes)

    def device_transports(self, x: Any) -> DeviceTransports:
        """Return the transport of arrays in the memory of a GPU, and the reasons against others.
        Collective.

        Parameters
        ----------
        x : array
            Any array on the device, whose contents are not read. The ranks may have different
            devices.

        Returns
        -------
        DeviceTransports
            The transport in use, and for each other one the reason why it is not possible, if any.
            The same on all ranks. Print it to see a table.

        Raises
        ------
        BufferError
            If `x` is in host memory, or CuPy cannot use the device.
        CollectivesError
            As for `allreduce`, if the ranks do not all call it.
        """
        return self._devices().survey(self._engine, x)

    def forget(self) -> None:
        """Discard the choices of algorithms: the next call of each kind chooses again. Local.

        A change of the registry does this by itself. Call it after a change of
        ``COLLECTIVES_SEGMENT``.

        Examples
        --------
        >>> import collectives as cc
        >>> cc.world().forget()
        """
        self._engine.forget_choices()
