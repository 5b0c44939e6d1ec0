"""The common part of all codecs: their contract, and their state between calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from collectives import _core
from collectives.algorithms.bits import ANY, SIZE, checked
from collectives.errors import ArgumentError
from collectives.text.words import shown

__all__ = ["POSITIVE", "PROPORTION", "WORD", "Codec", "Compressor", "Floats", "Piece", "Range"]
__all__ += ["State", "parameter"]

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


class Piece(NamedTuple):
    """One array of those that are reduced together.

    Attributes
    ----------
    key : str
        Its name, under which a codec keeps its state for the next call on the array.
    x : ndarray
        In one dimension, contiguous; of float16, bfloat16, float32 or float64. Reduced in place.
    shape : tuple of int
        That of the user's array.
    """

    key: str
    x: NDArray[Any]
    shape: tuple[int, ...]


@runtime_checkable
class Compressor(Protocol):
    """An object for ``compression=``: a codec of the library, or one of your own.

    ``name`` is text, with the parameters of the codec: ranks whose codecs have the same name
    compress alike. If there is an attribute ``needs_name``, and it is true, calls need a name of
    the array.
    """

    name: str

    def allreduce(self, comm: Any, pieces: Sequence[Piece]) -> Iterator[_core.Request]:
        """Replace each piece by its sum over the ranks, approximately.
        Collective.

        Parameters
        ----------
        comm : Communicator
        pieces : sequence of Piece
            All ranks pass the same keys, shapes and dtypes, in the same order.

        Yields
        ------
        Request
            A nonblocking collective that was started. Continue when it is complete.

        Raises
        ------
        CollectivesError
            As for the collectives. All ranks have the same bits in their pieces otherwise.
        """
        ...


class State:
    """The state of a codec for one array.

    Attributes
    ----------
    count : int
        The number of its elements, which does not change.
    calls : int
        Number of calls so far.
    residual : ndarray or None
        The rest that this rank has not sent yet.
    second : ndarray or None
        The loss of the second encoding of this rank's part, or a factor of the last sum.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls = 0
        self.residual: NDArray[Any] | None = None
        self.second: NDArray[Any] | None = None

    def remainder(self, dtype: Any) -> NDArray[Any]:
        """Return the residual, of zeros of `dtype` before the first call. Local."""
        if self.residual is None:
            self.residual = np.zeros(self.count, dtype)
        return self.residual

    @property
    def nbytes(self) -> int:
        """Bytes of the kept arrays."""
        return sum(each.nbytes for each in (self.residual, self.second) if each is not None)


def check_codec(codec: Any, bits: str | None, usual: str) -> None:
    """Raise an error if an element of a codec's result depends on others, and must not. The call
    has `bits`, if any, and its communicator the `usual` ones. Local.
    """
    wanted = usual if bits is None else checked(bits)
    if wanted == SIZE and not getattr(codec, "is_elementwise", False):
        raise ArgumentError(
            f"compression is {codec.name}, with which an element depends on others of its array, "
            f"and bits is {SIZE!r}; pass 'float16' or 'bfloat16', which convert each element by "
            f"itself, or bits={ANY!r}"
        )
    if wanted == SIZE != usual:
        raise ArgumentError(
            f"bits is {SIZE!r}, and a compressed allreduce has calls of its own, which have the "
            f"bits of the communicator, {usual!r}: make the call on comm.dup(bits={SIZE!r})"
        )


class Codec(ABC):
    """Base of the codecs of the library.

    Parameters
    ----------
    name : str
        The codec and its parameters, such as ``"int8(block=512)"``; an attribute, too.
    seed : int
        Of the random numbers, if there are any.

    Attributes
    ----------
    needs_name : bool
        Whether a call on an array depends on the errors of earlier calls. Then each array
        needs a name of its own.
    is_elementwise : bool
        Whether an element of the result depends only on the contributions to it.

    Notes
    -----
    A codec may be used on several communicators, by one thread at a time on each. It keeps an
    entry for each name on each communicator: the number of calls, and if ``needs_name`` is set
    arrays as large as the user's. They are kept until `reset`, or until the communicator or the
    codec is garbage-collected.
    """

    name: str
    needs_name = False
    is_elementwise = False

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self._seed = seed
        self._states: WeakKeyDictionary[Any, dict[str, State]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<collectives.compression {self.name}>"

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the codec holds for all communicators."""
        return sum(each.nbytes for kept in self._states.values() for each in kept.values())

    def reset(self, comm: Any = None) -> None:
        """Forget the kept errors: the next call is like the first one.
        Local, but all ranks must call it between the same calls.

        Parameters
        ----------
        comm : Communicator, optional
            For this communicator only; for all of them by default.
        """
        if comm is None:
            self._states.clear()
        else:
            self._states.pop(comm, None)

    def calls(self, comm: Any, key: str) -> int:
        """Return the number of calls on an array so far, which is equal on all ranks.
        Local.

        Parameters
        ----------
        comm : Communicator
        key : str
            The name of the array.
        """
        state = self._states.get(comm, {}).get(key)
        return 0 if state is None else state.calls

    def allreduce(self, comm: Any, pieces: Sequence[Piece]) -> Iterator[_core.Request]:
        """Replace each piece by its sum over the ranks, approximately; see `Compressor`.
        Collective.

        Parameters
        ----------
        comm : Communicator
        pieces : sequence of Piece

        Yields
        ------
        Request

        Raises
        ------
        ArgumentError
            If two pieces have the same key, or the number of elements of a piece has changed since
            the last call with its key, on all ranks alike. Nothing was sent.
        CollectivesError
            Otherwise, as for the collectives.
        """
        states = self._begin(comm, pieces)
        floats = [_as_floats(each.x, self._keeps_double) for each in pieces]
        yield from self._reduce(comm, pieces, floats, states)
        for each, values in zip(pieces, floats, strict=True):
            if values is not each.x:
                _put_back(each.x, values)
        for state in states:
            state.calls += 1

    # -- messages from one rank to another ---------------------------------------------------

    def message_bytes(self, x: NDArray[Any]) -> int:
        """Return the number of bytes that `pack` writes for an array.
        Local.

        Parameters
        ----------
        x : ndarray
            As that of a `Piece`.

        Raises
        ------
        ArgumentError
            If the codec only supports an allreduce, and not messages.
        """
        return self._message_bytes(x.size, 8 if self._keeps_double and x.itemsize == 8 else 4)

    def pack(self, codes: Codes, x: NDArray[Any], key: str, state: State, rank: int) -> None:
        """Encode an array for a message: the first of the two encodings of an allreduce.
        Local.

        Parameters
        ----------
        codes : ndarray
            ``message_bytes(x)``, which are written.
        x : ndarray
            As that of a `Piece`; not changed.
        key : str
            The name of the array.
        state : State
            The state of the sender for the array; it counts the calls.
        rank : int
            The sender's number, on which random numbers depend.
        """
        self._pack(codes, _as_floats(x, self._keeps_double), key, state, rank)
        state.calls += 1

    def unpack(self, x: NDArray[Any], codes: Codes, key: str, call: int) -> None:
        """Decode the bytes that `pack` has written.
        Local.

        Parameters
        ----------
        x : ndarray
            The destination of the array.
        codes : ndarray
        key : str
            The name of the array.
        call : int
            The number of calls of `pack` that the sender had made for it before.
        """
        is_as_sent = x.dtype == np.float32 or (self._keeps_double and x.dtype == np.float64)
        floats = x if is_as_sent else np.empty(x.size, np.float32)
        self._unpack(floats, codes, key, call)
        if floats is not x:
            _put_back(x, floats)

    def _message_bytes(self, count: int, itemsize: int) -> int:
        raise ArgumentError(
            f"{self.name} compresses an allreduce, and not what one rank sends to another"
        )

    def _pack(self, codes: Codes, x: NDArray[Any], key: str, state: State, rank: int) -> None:
        """Encode an array of float32, or of float64 if the codec keeps it."""
        raise NotImplementedError

    def _unpack(self, x: NDArray[Any], codes: Codes, key: str, call: int) -> None:
        """Decode an array of float32, or of float64 if the codec keeps it."""
        raise NotImplementedError

    _keeps_double = False  # whether float64 is reduced as such

    @abstractmethod
    def _reduce(
        self, comm: Any, pieces: Sequence[Piece], floats: list[NDArray[Any]], states: list[State]
    ) -> Iterator[_core.Request]:
        """Reduce the arrays in place: those of the pieces, or copies of them. Collective."""

    def _begin(self, comm: Any, pieces: Sequence[Piece]) -> list[State]:
        """Return the kept error of each piece."""
        kept = self._states.setdefault(comm, {})
        if len({each.key for each in pieces}) < len(pieces):
            keys = [each.key for each in pieces]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ArgumentError(f"two arrays have the name {twice!r}; each needs one of its own")
        states = []
        for each in pieces:
            state = kept.get(each.key)
            if state is None or not self.needs_name:
                fresh = State(each.x.size)
                fresh.calls = 0 if state is None else state.calls
                state = kept[each.key] = fresh
            elif state.count != each.x.size:
                raise ArgumentError(
                    f"{each.key!r} has {each.x.size} elements and had {state.count} before; give "
                    f"another array another name, or call reset() of the codec"
                )
            states.append(state)
        return states

    def _random(self, key: str, *numbers: int) -> int:
        """Return a seed that depends on the codec's, on a name and on some numbers. Local."""
        word = self._seed
        for number in (crc32(key.encode(errors="replace")), *numbers):
            word = _core.random_word(word, number)
        return word


def _as_floats(x: NDArray[Any], keeps_double: bool) -> NDArray[Any]:
    """Return `x`, or a copy of it as float32."""
    if x.dtype == np.float32 or (keeps_double and x.dtype == np.float64):
        return x
    floats = np.empty(x.size, np.float32)
    if x.dtype == np.float64:
        with np.errstate(over="ignore"):  # to infinity
            floats[:] = x
    else:
        _core.convert(floats, x)
    return floats


def _put_back(x: NDArray[Any], floats: Floats) -> None:
    if x.dtype == np.float64:
        x[:] = floats
    else:
        _core.convert(x, floats)


class Range(NamedTuple):
    """The numbers that a user may pass for a parameter."""

    read: Callable[[Any], Any]  # converts a value to a number, or raises any error
    holds: Callable[[Any], bool]  # returns whether the number may be passed
    text: str  # the allowed numbers, for the error


POSITIVE = Range(index, lambda number: number >= 1, "a positive integer")
PROPORTION = Range(float, lambda number: 0 < number <= 1, "above 0 and at most 1")
DECAY = Range(float, lambda number: 0 <= number < 1, "0 or more and below 1")
WORD = Range(index, lambda number: 0 <= number < 1 << 64, "an integer in 0..2**64 - 1")


def integer_from(least: int) -> Range:
    """Return the range of integers from `least` on."""
    return Range(index, lambda number: number >= least, f"an integer from {least} on")


def parameter(value: Any, name: str, range: Range) -> Any:
    """Check a number that a user has passed, for instance of a codec, and return it."""
    try:
        number = range.read(value)
    except Exception:  # also of a user's type
        number = None
    if number is None or not range.holds(number):
        raise ArgumentError(f"{name} is {shown(value)}, and must be {range.text}")
    return number
