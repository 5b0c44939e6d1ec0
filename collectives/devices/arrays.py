"""Arrays of devices: their address, shape, dtype and stream, for all classes of arrays.

An array is read by the first of these that it has: the attributes of a torch tensor,
``__cuda_array_interface__``, DLPack. No library of arrays is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from collectives import _core
from collectives.arrays import buffers, frameworks
from collectives.devices.driver import Driver
from collectives.errors import BufferError, CommunicatorError, UnsupportedTypeError
from collectives.text.words import article, error_text, plain

CUDA = 2  # DLPack's number
LEGACY = 0  # the default stream
MOST = 2**48  # elements, beyond the memory of any device

StreamOf = Callable[[int], int]


class DeviceArray:
    """An array in the memory of a device, contiguous and checked."""

    name: str
    value: Any
    address: int
    device: int
    shape: tuple[int, ...]
    count: int
    dtype: str
    itemsize: int

    def __init__(
        self,
        name: str,
        value: Any,
        address: int,
        device: int,
        shape: tuple[int, ...],
        dtype: tuple[str, int],
        stream: int | None,
        owner: Any = None,
        is_read_only: bool = False,
    ) -> None:
        self.name, self.value, self.address, self.device = name, value, address, device
        self.shape, self.count = shape, prod(shape)
        self.dtype, self.itemsize = dtype
        # The stream on which its library works. If that is not known, results are complete when a
        # call ends.
        self.stream = stream
        self.owner = owner  # keeps the memory alive
        self.is_read_only = is_read_only

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.count * self.itemsize

    def overlaps(self, other: DeviceArray) -> bool:
        """Return whether both have a byte in common."""
        begin = max(self.address, other.address)
        return begin < min(self.address + self.nbytes, other.address + other.nbytes)

    def span(self, count: int | None = None) -> _core.Span:
        """Return the array as a span, which the core checks for overlap with others. Local."""
        if count is None:
            return _core.Span(self.address, self.shape, self.dtype, self.itemsize, None, True)
        return _core.Span(0, (count,), self.dtype, self.itemsize, None, True)

    def like(self, shape: tuple[int, ...], driver: Driver) -> Any:
        """Return a new array of the same library, dtype and device; for one of JAX, whose arrays
        cannot be written, one of CuPy, of which `finished` makes one of JAX. Local.
        """
        framework = frameworks.framework_of(type(self.value))
        if framework == "tensorflow":
            raise BufferError(
                f"x is a {frameworks.LABELS[framework]} on cuda:{self.device}, and so its result "
                f"would be, which is immutable; pass out, an array of CuPy for instance"
            )
        try:
            with driver.on(self.device):
                return self._made(shape, framework)
        except BufferError:
            raise
        except Exception as error:
            nbytes = prod(shape) * self.itemsize
            raise CommunicatorError(
                f"cuda:{self.device} has no array of {nbytes} bytes for the result: {plain(error)}"
            ) from error

    def _made(self, shape: tuple[int, ...], framework: str | None) -> Any:
        x = self.value
        if framework == "torch":
            return sys.modules["torch"].empty(shape, dtype=x.dtype, device=x.device)
        cupy = sys.modules.get("cupy")
        is_made_by_cupy = framework == "jax" or (cupy and isinstance(x, cupy.ndarray))
        if hasattr(x, "__array_namespace__") and not is_made_by_cupy:
            return x.__array_namespace__().empty(shape, dtype=x.dtype, device=x.device)
        if cupy is None:
            raise BufferError(
                f"x is {article(type(x).__name__)}, and how its library makes arrays is not known; "
                f"pass out"
            )
        try:
            return cupy.empty(shape, frameworks.numpy_dtype(self.dtype, "x"))
        except TypeError as error:
            raise BufferError(f"CuPy makes no array of {self.dtype}; pass out") from error

    @property
    def finish(self) -> Callable[[Any], Any] | None:
        """The function that turns a complete result of `like` into an array of the library, or None
        if it is one.
        """
        if frameworks.framework_of(type(self.value)) != "jax":
            return None
        return partial(frameworks.finished, x=self.value, framework="jax")


def read(
    value: Any, name: str, driver: Driver, stream_of: StreamOf, writable: bool = False
) -> DeviceArray | None:
    """Return the properties of an array of a device, or None for one in host memory. Local."""
    kind = type(value)
    framework = frameworks.framework_of(kind)
    if writable and framework in frameworks.IMMUTABLE:
        raise BufferError(
            f"{name} is a {frameworks.LABELS[framework]}, which is immutable; pass an array of "
            f"CuPy or torch"
        )
    if framework == "torch":
        found = _of_torch(value, name) if value.is_cuda else None
    elif isinstance(value, buffers.NUMPY):
        found = None
    elif framework is None and (interface := _interface(value, name)) is not None:
        found = _by_interface(value, name, driver, writable, interface)
    elif hasattr(kind, "__dlpack_device__"):
        found = _by_dlpack(value, name, stream_of, writable)
    else:
        found = None
    if found is not None and found.count:
        found.device = _device_of(found.address, name, driver)
    return found


def _device_of(address: int, name: str, driver: Driver) -> int:
    """Return the device whose memory has an address; raise an error for other memory."""
    place = driver.place(address)
    if place.kind != "device":
        raise BufferError(
            f"{name} is in {place.kind} memory, which this library does not read or write on a "
            f"device; pass an array in the memory of a device"
        )
    return place.device


def _of_torch(value: Any, name: str) -> DeviceArray:
    """Read a torch tensor on a device."""
    reason = ""
    if value.requires_grad:
        reason = "it requires a gradient"
    elif value.is_quantized or str(value.layout) != "torch.strided":
        reason = "its memory is not that of a plain tensor"
    elif value.is_conj():
        reason = "its values are the conjugates of those in its memory"
    elif value.is_neg():
        reason = "its values are the negatives of those in its memory"
    if reason:
        raise frameworks.unexported(value, name, "torch", reason)
    shape = tuple(value.shape)
    if not value.is_contiguous():
        raise _gaps(name, shape)
    stream = sys.modules["torch"].cuda.current_stream(value.device).cuda_stream
    dtype = str(value.dtype).removeprefix("torch.")
    device = value.device.index
    return DeviceArray(
        name, value, value.data_ptr(), device, shape, (dtype, value.element_size()), stream
    )


class _Interface(NamedTuple):
    """The fields of ``__cuda_array_interface__``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in bytes
    typestr: str
    address: int
    is_read_only: bool
    is_masked: bool
    version: int
    stream: int | None


def _interface(value: Any, name: str) -> _Interface | None:
    """Read ``__cuda_array_interface__``; return None if an array has none.

    Some classes have the attribute, but their arrays in host memory do not.
    """
    try:
        said = getattr(value, "__cuda_array_interface__", None)
        if said is None:
            return None
        shape, strides = tuple(map(index, said["shape"])), said.get("strides")
        address, is_read_only = said["data"]
        version = index(said.get("version", 0))
        # Before version 3, it could not name a stream: it is the default stream then.
        stream = said.get("stream", LEGACY if version < 3 else None)
        found = _Interface(
            shape,
            None if strides is None else tuple(map(index, strides)),
            said["typestr"],
            index(address or 0),
            bool(is_read_only),
            said.get("mask") is not None,
            version,
            LEGACY if stream == 1 else stream if stream is None else index(stream),
        )
    except Exception as error:
        told = error_text(error)
        raise BufferError(
            f"{name} has a __cuda_array_interface__ that cannot be read: {told}"
        ) from error
    if min(shape, default=0) < 0 or found.address < 0 or (found.stream or 0) < 0:
        raise BufferError(
            f"{name} has a __cuda_array_interface__ with a negative size, address or stream: {said}"
        )
    if prod(shape) >= MOST or len(found.strides or shape) != len(shape):
        raise BufferError(f"{name} has a __cuda_array_interface__ that no array can have: {said}")
    return found


def _by_interface(
    value: Any, name: str, driver: Driver, writable: bool, interface: _Interface
) -> DeviceArray:
    """Read an array by its ``__cuda_array_interface__``."""
    if interface.version < 2:
        raise BufferError(
            f"{name} has version {interface.version} of __cuda_array_interface__, and must have "
            f"version 2 or 3"
        )
    if interface.is_masked:
        raise BufferError(f"{name} is a masked array; pass its data without the mask")
    shape = interface.shape
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype):
        try:
            dtype = np.dtype(interface.typestr)
        except TypeError as error:
            raise UnsupportedTypeError(f"{name} has typestr {interface.typestr!r}") from error
    named = _movable(dtype, name), dtype.itemsize
    if writable and interface.is_read_only:
        raise BufferError(f"{name} is a read-only {type(value).__name__}, and would be written")
    if interface.strides is not None and _has_gaps(shape, interface.strides, dtype.itemsize):
        raise _gaps(name, shape)
    device = 0
    if prod(shape):
        if driver.devices() > 1:  # the current stream is that of the current device
            with driver.on(_device_of(interface.address, name, driver)):
                interface = _interface(value, name) or interface
    elif hasattr(value, "__dlpack_device__"):
        device = int(value.__dlpack_device__()[1])
    return DeviceArray(
        name,
        value,
        interface.address,
        device,
        shape,
        named,
        interface.stream,
        is_read_only=interface.is_read_only,
    )


@lru_cache
def _movable(dtype: np.dtype[Any], name: str) -> str:
    """Return the name of a dtype, or raise an error if no collective moves it."""
    return buffers.dtype_name(np.empty(0, dtype), name, True)


def _by_dlpack(value: Any, name: str, stream_of: StreamOf, writable: bool) -> DeviceArray | None:
    """Read an array by DLPack, or return None if it is in host memory."""
    framework = frameworks.framework_of(type(value))
    try:
        kind, device = value.__dlpack_device__()
        if kind != CUDA:
            return None  # the core checks it
        stream = stream_of(device)
        try:
            capsule = value.__dlpack__(stream=stream, max_version=frameworks.MAX_VERSION)
        except TypeError:
            capsule = value.__dlpack__(stream=stream)  # from before DLPack had versions
    except Exception as error:
        raise frameworks.unexported(value, name, framework, error) from error
    address, _, device, shape, strides, dtype, itemsize, read_only, held = _core.tensor(
        capsule, name
    )
    if writable and read_only:
        raise BufferError(f"{name} is a read-only {type(value).__name__}, and would be written")
    if strides is not None and _has_gaps(shape, strides, 1):
        raise _gaps(name, shape)
    return DeviceArray(name, value, address, device, shape, (dtype, itemsize), None, held)


def _has_gaps(shape: tuple[int, ...], strides: tuple[int, ...], unit: int) -> bool:
    """Return whether elements are not contiguous in C order."""
    step = unit
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != step:
            return prod(shape) > 0
        step *= n
    return False


def _gaps(name: str, shape: tuple[int, ...]) -> BufferError:
    copy = "pass a contiguous array and copy the result"
    if name != "out":
        copy = "pass a contiguous copy"
    return BufferError(f"{name} is not C-contiguous (shape {shape}); {copy}")
