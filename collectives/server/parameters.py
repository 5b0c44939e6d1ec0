"""Parameters of a program as flat NumPy arrays, and their pieces on the servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.arrays.frameworks import framework_of
from collectives.arrays.parameters import assign, changeable, like
from collectives.errors import ArgumentError, UnsupportedTypeError
from collectives.text.words import article, known, shown

DTYPES = ("float16", "float32", "float64")

# An array of this many bytes or more is cut for all servers; a smaller one is on one server.
SPLIT = 64 << 10


class Parameter:
    """A parameter of the program, and its values as a flat array: its own memory, or a copy."""

    name: str
    value: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        label = f"parameter {name}"
        array = changeable(value, label)
        if array.dtype.name not in DTYPES or not array.dtype.isnative:
            raise UnsupportedTypeError(
                f"{label} has dtype {array.dtype}, and must have one of {', '.join(DTYPES)}"
            )
        self.shape, self.dtype = array.shape, array.dtype
        is_on_host = framework_of(type(value)) == "torch" and value.device.type == "cpu"
        self.in_place: Any | bool = array.flags.c_contiguous and (array is value or is_on_host)
        self.flat: NDArray[Any] = (
            array.reshape(-1) if self.in_place else np.array(array, order="C").reshape(-1)
        )

    def commit(self) -> None:
        """Set the program's parameter to the values of `flat`. Local."""
        if not self.in_place:
            assign(self.value, self.flat.reshape(self.shape))


def read(parameters: Any) -> list[Parameter]:
    """Return the parameters of a program. Local."""
    found = [Parameter(name, value) for name, value in _pairs(parameters)]
    if not found:
        raise ArgumentError("parameters is empty")
    if len({each.name for each in found}) < len(found):
        raise ArgumentError("two parameters have the same name")
    return found


def _pairs(parameters: Any) -> list[tuple[str, Any]]:
    if hasattr(parameters, "trainable_variables"):  # a model of Keras, on torch a module as well
        parameters = parameters.trainable_variables
        return [(f"{number} {each.name}", each) for number, each in enumerate(parameters)]
    if hasattr(parameters, "named_parameters"):  # a module of torch
        return [(name, each) for name, each in parameters.named_parameters() if each.requires_grad]
    if isinstance(parameters, Mapping):
        return [(str(name), each) for name, each in parameters.items()]
    is_array = isinstance(parameters, str) or hasattr(parameters, "__array__")
    if isinstance(parameters, Iterable) and not is_array:
        return [(str(number), each) for number, each in enumerate(parameters)]
    raise ArgumentError(
        f"parameters is {article(type(parameters).__name__)}, and must be a dict or a list of "
        f"arrays, a module of torch, or a model of Keras"
    )


def gradients(given: Any, parameters: Sequence[Parameter]) -> list[NDArray[Any]]:
    """Return gradients as flat arrays, in the order of the parameters. Local."""
    if given is None:
        listed = [getattr(each.value, "grad", None) for each in parameters]
        without = [each.name for each, grad in zip(parameters, listed, strict=True) if grad is None]
        if without:
            raise ArgumentError(
                f"push() without gradients takes the grad of each parameter, and parameter "
                f"{without[0]} has none; pass the gradients, or call backward() before"
            )
    elif isinstance(given, Mapping):
        listed = _by_name(given, parameters)
    elif isinstance(given, Iterable) and not hasattr(given, "__array__"):
        listed = list(given)
    else:
        raise ArgumentError(
            f"push() was given {article(type(given).__name__)}, and must be given a dict or a list "
            f"with a gradient for each of {len(parameters)} parameters"
        )
    if len(listed) != len(parameters):
        raise ArgumentError(
            f"there are {len(listed)} gradients for {len(parameters)} parameters; pass one for each"
        )
    return [_flat(value, each) for value, each in zip(listed, parameters, strict=True)]


def _by_name(given: Mapping[Any, Any], parameters: Sequence[Parameter]) -> list[Any]:
    """Return gradients in the order of the parameters; names are texts, as those are."""
    named = {str(name): value for name, value in given.items()}
    names = [each.name for each in parameters]
    unknown = sorted(named.keys() - set(names))
    if unknown:
        raise ArgumentError(
            f"push() was given a gradient of {shown(unknown[0])}; "
            f"{known(unknown[0], names, 'the parameters are')}"
        )
    return [named.get(name) for name in names]


def _flat(value: Any, parameter: Parameter) -> NDArray[Any]:
    if value is None:
        raise ArgumentError(f"there is no gradient of parameter {parameter.name}")
    array = like(value, f"the gradient of parameter {parameter.name}", parameter.shape)
    return np.ascontiguousarray(array, parameter.dtype).reshape(-1)


class Piece(NamedTuple):
    """A part of a parameter on one server."""

    parameter: int  # its number
    start: int
    stop: int
    offset: int  # the first byte among those of the server's pieces
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return (self.stop - self.start) * self.dtype.itemsize

    def of(self, memory: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the elements in the bytes of all pieces of a server. Local."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype)


def cut(parameters: Sequence[Parameter], servers: int, order: Sequence[int]) -> list[list[Piece]]:
    """Return the pieces of each server, the most urgent first. Local."""
    filled = [0] * servers
    found: list[list[Piece]] = [[] for _ in range(servers)]

    def add(server: int, number: int, start: int, stop: int) -> None:
        piece = Piece(number, start, stop, filled[server], parameters[number].dtype)
        if piece.nbytes:
            found[server].append(piece)
            filled[server] += piece.nbytes + 15 & -16

    for number in order:
        size = parameters[number].flat.size
        if parameters[number].flat.nbytes < SPLIT:
            add(filled.index(min(filled)), number, 0, size)
            continue
        for server in range(servers):
            add(server, number, size * server // servers, size * (server + 1) // servers)
    return found


def memory_bytes(pieces: Sequence[Piece]) -> int:
    """Return the bytes of memory that some `pieces` of one server take. Local."""
    return max((each.offset + each.nbytes + 15 & -16 for each in pieces), default=16)
