"""Calls that make something for the ranks together: communicators, topologies, shared arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from collectives.algorithms.bits import checked
from collectives.calls.base import LARGEST, Calls, integer
from collectives.errors import (
    ArgumentError,
    CommunicatorError,
    MismatchError,
    UnsupportedTypeError,
)
from collectives.process.advice import alone
from collectives.process.agreement import announced
from collectives.text.words import error_text, plain, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self, TypeVar

    from collectives.calls.topologies import Cart, Graph
    from collectives.calls.vectors import VectorCalls

    ScalarT = TypeVar("ScalarT", bound=np.generic)

NO_COLOR = -1

ADDRESSES = 1 << 47  # bytes that a process can address
DIMENSIONS = 32  # of an array of NumPy

REFUSALS = ArgumentError, UnsupportedTypeError, MismatchError, CommunicatorError


class MakingCalls(Calls):
    """Calls that make communicators, topologies, and arrays in shared memory.

    The ranks first announce such a call to each other by a collective. So the waits have the
    deadline of collectives, and differences between the calls are detected.
    """

    def split(self, color: int | None, key: int = 0, *, bits: str | None = None) -> Self | None:
        """Split into groups of equal `color`, ordered by `key`, then by rank.
        Collective.

        Parameters
        ----------
        color : int or None
            From 0 to 2**31 - 1; None for a rank that will be in no group.
        key : int, optional
            From -2**31 to 2**31 - 1.
        bits : str, optional
            As for `Communicator`; by default that of this communicator.

        Returns
        -------
        Communicator or None
            This rank's group; None where `color` is None.

        Raises
        ------
        ArgumentError
            If `color` or `key` is no such number, or `bits` no such word; raised on this rank.
        MismatchError
            If another rank makes another call, or its arguments are wrong.
        StallError, PeerLostError, PeerAbortedError
            If another rank does not come before the deadline, has ended, or has given up.
        CommunicatorError
            If the communicator is freed or broken.

        Notes
        -----
        Section 7.4.2 (Communicator Constructors) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import collectives as cc
        >>> comm = cc.world()
        >>> half = comm.split(comm.rank % 2)
        >>> half.size == (comm.size + 1 - comm.rank % 2) // 2
        True
        >>> half.free()
        """

        def check() -> tuple[int, int]:
            _check_bits(bits)
            return _checked_color(color, key)

        with self._together("split", check) as said:
            part = self._meeting.split([(None if c == NO_COLOR else c, k) for c, k in said])
            return None if part is None else self._grown(part, "split()", bits)

    def dup(self, *, bits: str | None = None) -> Self:
        """Return a communicator of the same ranks, with messages separate from those of this one.
        Collective.

        Parameters
        ----------
        bits : str, optional
            As for `Communicator`; by default that of this communicator.

        Raises
        ------
        ArgumentError
            If `bits` is no such word; raised on this rank.
        MismatchError
            If another rank makes another call, or has other `bits`.
        StallError, PeerLostError, PeerAbortedError
            If another rank does not come before the deadline, has ended, or has given up.
        CommunicatorError
            If the communicator is freed or broken.

        Notes
        -----
        Section 7.4.2 (Communicator Constructors) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import collectives as cc
        >>> with cc.world().dup() as comm:
        ...     comm.barrier()
        """

        def check() -> tuple[int, int]:
            _check_bits(bits)
            return 0, 0

        with self._together("dup", check):
            return self._grown(self._meeting.duplicate(), "dup()", bits)

    @contextmanager
    def _together(
        self,
        making: str,
        check: Callable[[], tuple[int, int]] = lambda: (0, 0),
        describe: Callable[[], str] | None = None,
    ) -> Iterator[list[tuple[int, int]]]:
        """Announce a call, and exclude other threads while the ranks run it. Collective.

        Yields the result of `announced`. If this rank fails, the others raise an error.
        """
        with self._engine:
            call = self._meeting.call = f"{making}()"
            self._meeting.timeout = self.timeout
            try:
                yield announced(self._engine, making, check, describe)
            except REFUSALS:  # nothing was made, and the communicator is usable
                raise
            except BaseException as error:
                if self._engine.broken is None:
                    self._engine.broken = (
                        f"the communicator is broken: rank {self.rank} failed in {call}"
                    )
                    self._engine.give_up(f"it failed in {call}: {error_text(error)}", error)
                raise

    @overload
    def empty(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]: ...
    @overload
    def empty(
        self, shape: int | tuple[int, ...], dtype: type[ScalarT] | np.dtype[ScalarT]
    ) -> NDArray[ScalarT]: ...
    @overload
    def empty(self, shape: int | tuple[int, ...], dtype: Any = ..., device: Any = ...) -> Any: ...
    def empty(
        self, shape: int | tuple[int, ...], dtype: Any = np.float64, device: Any = None
    ) -> Any:
        """Return a new array in memory that the ranks of the host share.
        Collective.

        The collectives of this communicator read and write the array in place, without a copy into
        the shared segment. This also holds for views of the array, and for arrays of other
        libraries that share its memory (``torch.from_numpy``).

        Parameters
        ----------
        shape : int or tuple of int
            May differ between ranks.
        dtype : dtype, optional
        device : str or int, optional
            ``"cuda"`` for an array of CuPy on the current device, ``"cuda:1"`` or a number for one
            on another. The other ranks read it in place if calls use the transport ``ipc``
            (`device_transports`), and the array is on the device of the first call; if not, it is
            an ordinary array.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            An uninitialised array. It outlives the communicator: its memory is released when the
            array and all its views are gone. If the ranks share no memory, it is an ordinary array.

        Raises
        ------
        ArgumentError
            If a dimension is negative, or the array larger than a process can address, or there is
            no such device; raised on this rank.
        BufferError
            If `device` is given and this rank cannot use one; raised on this rank.
        UnsupportedTypeError
            If the dtype holds Python objects; raised on this rank.
        MismatchError
            If another rank makes another call, or its arguments are wrong.
        StallError, PeerLostError, PeerAbortedError
            If another rank does not come before the deadline, has ended, or has given up.
        CommunicatorError
            If the communicator is freed or broken, or there is no memory.

        Notes
        -----
        When a call returns, no other rank reads the array any more, so it may be changed at once.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> comm = cc.world()
        >>> x = comm.empty((2, 3), np.float32)
        >>> x[:] = 1
        >>> comm.allreduce(x, out=x).shape
        (2, 3)
        """
        dims: tuple[int, ...] = ()
        place = -1

        def check() -> tuple[int, int]:
            nonlocal dims, place
            dims, nbytes = _checked_shape(shape, dtype)
            if device is not None:
                place = self._engine.devices().number(device)
            return nbytes, int(device is not None)

        with self._together("empty", check) as said:
            _check_alike([where for _, where in said])
            if device is not None:
                return self._engine.devices().empty(
                    self._engine, place, dims, np.dtype(dtype), said[self.rank][0]
                )
            if not self._chooser.lanes:
                return _empty(dims, dtype)
            from collectives.process import segment

            array = segment.window(self._meeting, self._segment, [each for each, _ in said])
            if array is None:
                return _empty(dims, dtype)
        return array.view(dtype).reshape(dims)

    def cart(self, dims: Sequence[int] | int, periods: Sequence[bool] | bool = False) -> Cart:
        """Arrange the ranks as a grid, for collectives between neighbours.
        Collective.

        Parameters
        ----------
        dims : sequence of int, or int
            Number of ranks in each dimension; the product is the number of ranks of the
            communicator. The library replaces each 0, so that these dimensions are nearly equal.
        periods : sequence of bool, or bool
            Whether each dimension is a ring, or all of them.

        Returns
        -------
        Cart
            It runs its collectives on this communicator.

        Raises
        ------
        ArgumentError
            If there is no such grid; raised on this rank.
        MismatchError
            If another rank makes another call, or passes other arguments, or its arguments are
            invalid.
        StallError, PeerLostError, PeerAbortedError
            If another rank does not come before the deadline, has ended, or has given up.
        CommunicatorError
            If the communicator is freed or broken.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> ring = cc.world().cart((0,), periods=True)
        >>> left, right = ring.neighbor_allgather(np.array([ring.comm.rank])).ravel()
        >>> bool((left, right) == ring.shift(0))
        True
        """
        from collectives.calls.topologies import Cart, checked_grid  # few programs need them

        grid: Any = None

        def check() -> tuple[int, int]:
            nonlocal grid
            grid = checked_grid(self.size, dims, periods)
            return 0, 0

        def describe() -> str:
            return f"dims={grid.dims}, periods={grid.periods}"

        with self._together("cart", check, describe):
            return Cart._on(self, grid)

    def graph(self, sources: Iterable[int], destinations: Iterable[int]) -> Graph:
        """Name the neighbours of this rank, for collectives between neighbours.
        Collective.

        Parameters
        ----------
        sources, destinations : sequence of int
            The ranks from which this one receives, and those to which it sends, in the order of the
            blocks of arrays. A rank may be its own neighbour. If it names another several times,
            that one has to name it as often, and blocks arrive in the order in which they are sent.

        Returns
        -------
        Graph
            It runs its collectives on this communicator.

        Raises
        ------
        ArgumentError
            If a neighbour is no rank; raised on this rank.
        MismatchError
            If a rank names a neighbour that does not name it as often: raised on all ranks. If
            another rank makes another call, or its arguments are wrong.
        StallError, PeerLostError, PeerAbortedError
            If another rank does not come before the deadline, has ended, or has given up.
        CommunicatorError
            If the communicator is freed or broken.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> comm = cc.world()
        >>> others = [r for r in range(comm.size) if r != comm.rank]
        >>> everybody = comm.graph(others, others)
        >>> everybody.neighbor_allgather(np.ones(3)).shape == (comm.size - 1, 3)
        True
        """
        from collectives.calls.neighborhood import of_lists
        from collectives.calls.topologies import Graph

        lists: list[list[int]] = []

        def check() -> tuple[int, int]:
            for name, ranks in (("sources", sources), ("destinations", destinations)):
                try:
                    given = list(ranks)
                except TypeError:
                    raise ArgumentError(
                        f"{name} is {shown(ranks)}, and must be a sequence of ranks"
                    ) from None
                lists.append([
                    integer(f"{name}[{k}]", rank, 0, self.size - 1, alone(rank))
                    for k, rank in enumerate(given)
                ])  # fmt: skip
            return len(lists[0]), len(lists[1])

        with self._together("graph", check) as said:
            mine = np.array([*lists[0], *lists[1]], np.int64)
            vectors = cast("VectorCalls", self)
            every = vectors.allgatherv(mine, counts=[sum(each) for each in said]).tolist()
            starts = pairwise(accumulate((n for each in said for n in each), initial=0))
            pieces = [every[start:end] for start, end in starts]
            return Graph._of(self, of_lists(pieces[0::2], pieces[1::2]))


def _check_alike(places: list[int]) -> None:
    """Raise an error on all ranks if only some of them ask for an array on a device."""
    if len(set(places)) > 1:
        mine = [rank for rank, where in enumerate(places) if where]
        raise MismatchError(
            f"empty() was called with a device on ranks {mine}, and without one on the others; "
            f"all ranks must pass one, or none"
        )


def _check_bits(bits: str | None) -> None:
    if bits is not None:
        checked(bits)


def _checked_color(color: int | None, key: int) -> tuple[int, int]:
    """Check the arguments of `Communicator.split`; return them as numbers."""
    number = NO_COLOR if color is None else integer("color", color, 0, LARGEST, ", or None")
    return number, integer("key", key, -LARGEST - 1, LARGEST)


def _checked_shape(shape: Any, dtype: Any) -> tuple[tuple[int, ...], int]:
    """Check the arguments of `Communicator.empty`; return the dimensions and bytes of the array."""
    try:
        dims = tuple(map(index, shape)) if np.iterable(shape) else (index(shape),)
    except TypeError:
        raise ArgumentError(
            f"shape is {shown(shape)}, and must be an integer or a tuple of integers"
        ) from None
    if min(dims, default=0) < 0:
        raise ArgumentError(f"shape is {shown(shape)}, and must have no negative dimension")
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"dtype is {shown(dtype)}, and must be a NumPy dtype: {plain(error)}"
        ) from None
    if kind.hasobject:
        raise UnsupportedTypeError(f"dtype is {kind}, and shared memory cannot hold Python objects")
    if kind.itemsize == 0:
        raise ArgumentError(f"dtype is {kind}, whose elements have no bytes")
    if len(dims) > DIMENSIONS:
        raise ArgumentError(f"shape has {len(dims)} dimensions, and must have {DIMENSIONS} at most")
    nbytes: int = prod(dims) * kind.itemsize
    if max(nbytes, *dims, 0) > ADDRESSES:
        raise ArgumentError(
            f"shape is {shown(shape)}: the array would have {nbytes} bytes, and a process can "
            f"address {ADDRESSES}"
        )
    return dims, nbytes


def _empty(dims: tuple[int, ...], dtype: Any) -> Any:
    """Return an ordinary array."""
    try:
        return np.empty(dims, dtype)
    except MemoryError as error:
        raise CommunicatorError(f"no memory for an array: {error}") from None
