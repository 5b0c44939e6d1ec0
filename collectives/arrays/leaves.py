"""The leaves of a value of a program, each with its path, so that ranks can compare them.

A value is an array of any framework, a number, a text, or a container of values. Modules and
optimizers of torch give their ``state_dict()``, models of Keras their weights.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import numbers
import pathlib
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.arrays.frameworks import framework_of
from collectives.errors import ArgumentError
from collectives.text.words import article, count, error_text, shown

# Values that are equal if their texts are.
TEXTS = (
    bool,
    int,
    str,
    type(None),
    enum.Enum,
    pathlib.PurePath,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    slice,
    range,
    type(Ellipsis),
    np.dtype,
)
BYTES = bytes, bytearray, memoryview


class Leaf(NamedTuple):
    """A part of a value: an array, a number or a text, or the keys of a container."""

    path: str
    kind: str  # such as "an array of float32 with shape (3, 4)"
    text: str  # "" for arrays
    data: Any  # the elements of an array as bytes, in rows of one element; otherwise None
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]

    def digest(self) -> bytes:
        """Return a hash of all that ranks compare."""
        hashed = hashlib.sha256(f"{self.path}\0{self.kind}\0{self.text}\0".encode(*ENCODING))
        if self.data is not None:
            hashed.update(self.data.reshape(-1))
        return hashed.digest()

    def element(self, k: int) -> str:
        """Write one element of an array."""
        row = self.data[k]
        if self.dtype is None:
            return f"0x{bytes(row[::-1]).hex()}"
        return str(row.view(self.dtype)[0])


ENCODING = "utf-8", "surrogatepass"


class Options(NamedTuple):
    """The properties that count."""

    dtypes: bool
    shapes: bool
    order: bool


def leaves(value: Any, path: str, options: Options, above: tuple[int, ...] = ()) -> Iterator[Leaf]:
    """Yield the leaves of a value in their order; refuse a part that cannot be compared. Local.

    `above` has the identities of the containers that the value is in.
    """
    array = _array(value, path)
    if array is not None:
        yield _array_leaf(path, *array, options)
        return
    number = _number(value, options)
    if number is not None:
        yield number._replace(path=path)
        return
    if isinstance(value, BYTES):
        data = np.frombuffer(value, np.uint8)
        yield Leaf(path, count(data.size, "byte"), "", data.reshape(-1, 1), data.dtype, data.shape)
        return
    if id(value) in above:
        raise ArgumentError(f"{path} contains itself, and cannot be compared")
    kind, keys, parts = _parts(value, path, options)
    yield Leaf(path, kind, ", ".join(map(shown, keys)), None, None, ())
    for place, part in parts:
        yield from leaves(part, place, options, (*above, id(value)))


def _number(value: Any, options: Options) -> Leaf | None:
    """Return the leaf of a number or of a text, or None."""
    name = type(value).__name__
    if isinstance(value, float | complex):  # by bits: NaN is equal to itself
        data = np.asarray(value).reshape(1, 1).view(np.uint8)
        dtype = np.dtype(float if isinstance(value, float) else complex)
        return Leaf("", article(name), "", data, dtype, ())
    of_torch = type(value).__module__ == "torch" and name in ("device", "dtype")
    if of_torch or isinstance(value, TEXTS):
        if not options.dtypes and isinstance(value, numbers.Integral):
            return Leaf("", "an integer", str(int(value)), None, None, ())
        return Leaf("", article(name), shown(value), None, None, ())
    return None


def _array_leaf(
    path: str,
    data: NDArray[Any],
    dtype: np.dtype[Any] | None,
    name: str,
    shape: tuple[int, ...],
    options: Options,
) -> Leaf:
    """Return the leaf of an array, whose elements are the rows of `data`."""
    if not options.dtypes and dtype is not None and dtype.kind in "biufc":
        common = {"f": np.float64, "c": np.complex128}.get(dtype.kind, np.int64)
        data = np.ascontiguousarray(data).view(dtype).astype(common).view(np.uint8)
        dtype, name = np.dtype(common), "numbers"
        data = data.reshape(-1, dtype.itemsize)
    if not options.shapes:
        kind = f"an array of {name} with {count(len(data), 'element')}"
        return Leaf(path, kind, "", data, dtype, (len(data),))
    return Leaf(path, f"an array of {name} with shape {shape}", "", data, dtype, shape)


def _array(
    value: Any, path: str
) -> tuple[NDArray[Any], np.dtype[Any] | None, str, tuple[int, ...]] | None:
    """Return the elements of an array as rows of bytes in host memory, NumPy's dtype if it has one,
    the name of the dtype, and the shape; or None.
    """
    try:
        if framework_of(type(value)) == "torch":
            return _torch_array(value)
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
        elif hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
            array = value.get()  # CuPy
        elif hasattr(value, "__array__") and not isinstance(value, type):
            array = np.asarray(value)  # JAX, TensorFlow, and variables of TensorFlow and Keras
        else:
            return None
    except Exception as error:
        raise ArgumentError(
            f"{path} is {article(type(value).__name__)} that cannot be compared: "
            f"{error_text(error)}"
        ) from error
    if array.dtype.hasobject:
        raise ArgumentError(f"{path} is an array of objects, which cannot be compared")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    shape, dtype = array.shape, array.dtype
    data = np.ascontiguousarray(array).reshape(-1)
    return _rows(data.view(np.uint8), dtype.itemsize), dtype, str(dtype), shape


def _torch_array(
    tensor: Any,
) -> tuple[NDArray[Any], np.dtype[Any] | None, str, tuple[int, ...]]:
    torch = sys.modules["torch"]
    shape = tuple(tensor.shape)
    name = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = plain.view(torch.uint8).numpy()
    try:
        dtype = np.dtype(name)
    except TypeError:  # such as bfloat16, unless ml_dtypes is imported
        dtype = None
    return _rows(data, tensor.element_size()), dtype, name, shape


def _rows(data: NDArray[Any], itemsize: int) -> NDArray[Any]:
    return data.reshape(-1, itemsize) if itemsize else data.reshape(0, 1)


def _parts(
    value: Any, path: str, options: Options
) -> tuple[str, list[Any], Iterable[tuple[str, Any]]]:
    """Return the kind of a container, its keys, and its parts with their paths."""
    name = type(value).__name__
    if isinstance(value, Mapping):
        keys = list(value)
        if not options.order:
            keys.sort(key=shown)
        kind = f"a dict with {count(len(keys), 'key')}"
        return kind, keys, [(_key_path(path, key), value[key]) for key in keys]
    if isinstance(value, Set):
        members = sorted(value, key=lambda each: (type(each).__name__, shown(each)))
        parts = [(f"{path}<{k}>", each) for k, each in enumerate(members)]
        return f"a set with {count(len(members), 'member')}", [], parts
    if isinstance(value, list | tuple):
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return article(name), list(fields), [(f"{path}.{f}", getattr(value, f)) for f in fields]
        kind = f"a {'list' if isinstance(value, list) else 'tuple'} of {len(value)}"
        return kind, [], [(f"{path}[{k}]", each) for k, each in enumerate(value)]
    if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
        return _parts(value.state_dict(), path, options)
    if callable(getattr(value, "get_weights", None)) and isinstance(
        getattr(value, "weights", None), list
    ):
        return _parts(value.weights, f"{path}.weights", options)
    if isinstance(getattr(value, "variables", None), list):  # optimizers of Keras
        return _parts(value.variables, f"{path}.variables", options)
    nodes = _jax_parts(value, path)
    if nodes is not None:
        return article(name), [place for place, _ in nodes], nodes
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return article(name), names, [(f"{path}.{n}", getattr(value, n)) for n in names]
    raise ArgumentError(
        f"{path} is {article(name)}, which cannot be compared; pass arrays, numbers, texts, lists, "
        f"dicts, or an object with state_dict()"
    )


def _key_path(path: str, key: Any) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}"
    return f"{path}[{shown(key)}]"


def _jax_parts(value: Any, path: str) -> list[tuple[str, Any]] | None:
    """Return the leaves of a node that JAX knows, with their paths, or None."""
    jax = sys.modules.get("jax")
    tree = None if jax is None else getattr(jax, "tree_util", None)
    if tree is None or tree.all_leaves([value]):
        return None
    found, _ = tree.tree_flatten_with_path(value)
    return [(path + tree.keystr(keys), leaf) for keys, leaf in found]
