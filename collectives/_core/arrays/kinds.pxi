# Kinds: the properties of classes of arrays.

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid

from collectives.arrays import frameworks


@cython.final
cdef class Kind:
    cdef DLPackExchangeAPI *api  # or NULL
    cdef str framework  # "torch", "jax", "tensorflow" or None
    cdef bint immutable
    cdef bint exports  # whether its arrays are taken by DLPack
    cdef bint away  # whether its arrays may be on a device, which an attribute shows


cdef dict kinds = {}


cdef Kind kind_of(type cls):
    """Return the kind of a class, which is determined once."""
    kind = kinds.get(cls)
    if kind is None:
        kind = kinds[cls] = new_kind(cls)
    return kind


cdef Kind new_kind(type cls):
    cdef Kind kind = Kind.__new__(Kind)
    if issubclass(cls, buffers.NUMPY):
        return kind  # NumPy's own classes export DLPack too, but fewer dtypes
    kind.framework = frameworks.framework_of(cls)
    kind.immutable = kind.framework in frameworks.IMMUTABLE
    kind.exports = kind.framework is not None or hasattr(cls, "__dlpack__")
    # CuPy's class has the buffer protocol as well, for machines whose devices read host memory.
    kind.away = kind.framework is None and hasattr(cls, "__cuda_array_interface__")
    # A subclass may give the attributes of its tensors another meaning, so its own table counts.
    capsule = cls.__dict__.get("__dlpack_c_exchange_api__")
    if capsule is not None and PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        kind.api = <DLPackExchangeAPI *>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
        while kind.api != NULL and kind.api.version.major != DL_MAJOR:
            kind.api = kind.api.previous
    return kind
