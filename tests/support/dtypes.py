"""Dtypes and operations as the documentation promises them, and as NumPy computes them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "float128")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)

ARITHMETIC = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
LOGICAL = {"LAND": np.logical_and, "LOR": np.logical_or, "LXOR": np.logical_xor}
BITWISE = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
UFUNCS = {**ARITHMETIC, **LOGICAL, **BITWISE}

# The kernels' own list is held against it.
SUPPORTED = {
    "SUM": ("bool", *INTEGERS, *FLOATS, *COMPLEX),
    "PROD": ("bool", *INTEGERS, *FLOATS, *COMPLEX),
    "MIN": ("bool", *INTEGERS, *FLOATS),
    "MAX": ("bool", *INTEGERS, *FLOATS),
    **dict.fromkeys((*LOGICAL, *BITWISE), ("bool", *INTEGERS)),
    "AVG": (*FLOATS, *COMPLEX),
}


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
