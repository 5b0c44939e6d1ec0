"""Tensors that export DLPack as the test says, made by hand with ctypes."""

from __future__ import annotations

import ctypes
import gc
from ctypes import POINTER, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import numpy as np

INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOL = range(7)
READ_ONLY, IS_COPIED = 1, 2
CPU, CUDA, CUDA_HOST, ROCM_HOST = 1, 2, 3, 11

CODES = {"i": INT, "u": UINT, "f": FLOAT, "c": COMPLEX, "b": BOOL}


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class Unversioned(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", Tensor), ("context", c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", DELETER),
        ("flags", c_uint64),
        ("tensor", Tensor),
    )


FROM_OBJECT = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, POINTER(c_void_p))
REPORT = ctypes.CFUNCTYPE(None, c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ALLOCATE = ctypes.PYFUNCTYPE(c_int, POINTER(Tensor), POINTER(c_void_p), c_void_p, REPORT)
TO_OBJECT = ctypes.PYFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))


class ExchangeAPI(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("previous", c_void_p),
        ("allocate", ALLOCATE),
        ("from_object", FROM_OBJECT),
        ("to_object", TO_OBJECT),
        ("borrow", c_void_p),
        ("current_stream", c_void_p),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]


DESTRUCTOR = ctypes.PYFUNCTYPE(None, c_void_p)


def capsule_of(address: int, name: bytes, destructor: object = None) -> object:
    return _new(address, name, ctypes.cast(destructor, c_void_p) if destructor else None)


def name_of(capsule: object) -> str:
    return _name(capsule).decode()


# The tensors that are exported, by address: (exporter, managed tensor).
_held = {}


def _delete(address):
    exporter, _ = _held.pop(address)  # KeyError, which ctypes prints, where it is called twice
    exporter.deleted += 1


_deleter = DELETER(_delete)


class Exporter:
    """Exports an array, with whatever a test changes about it.

    Parameters
    ----------
    array : ndarray
        Whose memory, shape and strides are exported.
    versioned : bool
        Which kind of capsule.
    flags : int
    **changes
        Fields of `Tensor`, ``major`` or ``shape`` and ``strides`` (tuples, or None) to export in
        place of the array's.

    Attributes
    ----------
    deleted : int
        How often the deleter was called.
    capsules : list
        Those that were given out.
    """

    def __init__(self, array, versioned=True, flags=0, **changes):
        self.array = array
        self.versioned = versioned
        self.flags = flags
        self.changes = changes
        self.deleted = 0
        self.given = 0
        self.capsules = []

    def managed(self):
        """Return a new managed tensor: it lives, and with it the array, until it is deleted."""
        changes = dict(self.changes)
        managed = Versioned() if self.versioned else Unversioned()
        if self.versioned:
            managed.major, managed.minor = changes.pop("major", 1), 3
            managed.flags = self.flags
        managed.deleter = changes.pop("deleter", _deleter)
        array, tensor = self.array, managed.tensor
        shape = changes.pop("shape", array.shape)
        strides = changes.pop("strides", tuple(s // array.itemsize for s in array.strides))
        tensor.data, tensor.device_type, tensor.ndim = array.ctypes.data, CPU, len(shape)
        tensor.code, tensor.lanes = CODES.get(array.dtype.kind, 0), 1
        tensor.bits = array.itemsize * 8
        tensor.shape = (c_int64 * len(shape))(*shape)
        if strides is not None:
            tensor.strides = (c_int64 * len(shape))(*strides)
        for name, value in changes.items():
            setattr(tensor, name, value)
        self.given += 1
        _held[ctypes.addressof(managed)] = self, managed
        return managed

    def __dlpack__(self, *, max_version=None):
        versioned = self.versioned and max_version is not None
        assert versioned == self.versioned
        name = b"dltensor_versioned" if versioned else b"dltensor"
        self.capsules.append(capsule_of(ctypes.addressof(self.managed()), name))
        return self.capsules[-1]

    def __dlpack_device__(self):
        return CPU, 0

    def settled(self):
        """Return whether everything that was given out has come back, once."""
        gc.collect()
        return self.deleted == self.given


class OldExporter(Exporter):
    """From before versions: `max_version` is unknown."""

    def __init__(self, array, **changes):
        super().__init__(array, versioned=False, **changes)

    def __dlpack__(self, stream=None):
        return super().__dlpack__()


class TableExporter(Exporter):
    """Offers the C functions, and counts who asks in another way."""

    def __dlpack__(self, **options):
        raise AssertionError("the C functions were not used")


class Table:
    """C functions for a class, and the requests that they got.

    With an `error` they fail; an `allocation_error` is that of the allocator alone.

    Parameters
    ----------
    major : int
        The version that the table says it has.
    previous : Table, optional
        A table of an older version.
    """

    def __init__(self, major=1, previous=None):
        self.exported = 0
        self.error = self.allocation_error = self.reported = None
        self.made = []
        self.api = ExchangeAPI(
            major=major,
            minor=3,
            previous=ctypes.addressof(previous.api) if previous else None,
            allocate=ALLOCATE(self.allocate),
            from_object=FROM_OBJECT(self.from_object),
            to_object=TO_OBJECT(self.to_object),
        )
        self.previous = previous

    def from_object(self, exporter, out):
        self.exported += 1
        if self.error is not None:
            return -1
        out[0] = ctypes.addressof(exporter.managed())
        return 0

    def allocate(self, prototype, out, context, report):
        if self.allocation_error is not None:
            try:
                report(context, b"MemoryError", self.allocation_error)
            except SystemError as error:  # ctypes finds the exception that was set
                self.reported = error.__cause__
            return -1
        tensor = prototype[0]
        shape = tensor.shape[: tensor.ndim]
        kind = {code: kind for kind, code in CODES.items()}[tensor.code]
        made = self.kind(np.full(shape, 7, f"{kind}{tensor.bits // 8}"))
        self.made.append(made)
        out[0] = ctypes.addressof(made.managed())
        return 0

    def to_object(self, managed, out):
        made = self.made[-1]
        _delete(managed)  # the object takes the managed tensor over
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        out[0] = id(made)
        return 0

    def new_class(self):
        """Return a class of exporters that offers this table."""
        capsule = capsule_of(ctypes.addressof(self.api), b"dlpack_exchange_api")
        members = {"__dlpack_c_exchange_api__": capsule, "table": self}
        self.kind = type("Tabled", (TableExporter,), members)
        return self.kind
