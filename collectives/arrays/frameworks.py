"""Tensors of torch, JAX and TensorFlow, where the core needs more than DLPack provides.

No framework is imported here: if a program passes a tensor, its framework is in `sys.modules`.
"""

from __future__ import annotations

import importlib
import math
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np

from collectives.errors import BufferError, UnsupportedTypeError
from collectives.text.words import article, plain

LABELS = {"torch": "torch tensor", "jax": "JAX array", "tensorflow": "TensorFlow tensor"}
# The framework, by the first part of the name of the module that defines a class.
PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "tensorflow": "tensorflow"}

# Those whose tensors cannot be written: a result becomes one of them when it is complete.
IMMUTABLE = ("jax", "tensorflow")

MAX_VERSION = (1, 3)  # the newest version of DLPack that the core reads

# TensorFlow ends the process if it is asked for the memory of a tensor of these dtypes.
TENSORFLOW_HANDLES = ("string", "resource", "variant")


def framework_of(kind: type) -> str | None:
    """Return the framework of a class of arrays, or None. Local."""
    for base in kind.__mro__:
        framework = PACKAGES.get(str(base.__module__).partition(".")[0])
        if framework == "tensorflow":
            # The variables and modules of TensorFlow are defined in the same package.
            tensor = getattr(sys.modules.get(framework), "Tensor", None)
            return framework if isinstance(tensor, type) and issubclass(kind, tensor) else None
        if framework is not None:
            return framework if hasattr(kind, "__dlpack__") else None
    return None


def exported(value: Any, name: str, framework: str | None) -> Any:
    """Return a tensor as a DLPack capsule, versioned where it can be. Local."""
    if framework == "tensorflow":
        return _exported_by_tensorflow(value, name)
    try:
        try:
            return value.__dlpack__(max_version=MAX_VERSION)
        except TypeError:
            return value.__dlpack__()  # from before DLPack had versions
    except MemoryError:
        raise
    except Exception as error:
        raise unexported(value, name, framework, error) from error


def _exported_by_tensorflow(value: Any, name: str) -> Any:
    tensorflow = sys.modules["tensorflow"]
    label = LABELS["tensorflow"]
    if not hasattr(value, "numpy"):
        raise BufferError(
            f"{name} is a symbolic {label}, which has no memory yet; "
            f"call the collective outside of tf.function"
        )
    if value.dtype.name in TENSORFLOW_HANDLES:
        raise UnsupportedTypeError(f"{name} is a {label} of dtype {value.dtype.name}, not numbers")
    try:
        if hasattr(value, "__dlpack__"):
            return value.__dlpack__()
        return tensorflow.experimental.dlpack.to_dlpack(value)
    except MemoryError:
        raise
    except Exception as error:
        if value.device.endswith("CPU:0"):
            return value.numpy()
        raise unexported(value, name, "tensorflow", error) from error


def unexported(value: Any, name: str, framework: str | None, error: object) -> BufferError:
    """Return the error for a tensor whose library does not give access to its memory. Local."""
    said = plain(error).strip().partition("\n")[0] or type(error).__name__
    label = LABELS.get(framework or "", type(value).__name__)
    advice = ""
    if framework == "torch":
        advice = torch_remedy(value, name)
    elif framework == "jax" and "tracer" in type(value).__name__.lower():
        said, advice = "it is being traced", "call the collective outside of jax.jit"
    elif framework == "jax" and len(value.sharding.device_set) > 1:
        advice = f"pass one of {name}.addressable_shards"
    return BufferError(
        f"{name} is {article(label)} whose memory cannot be shared ({said})"
        + (f"; {advice}" if advice else "")
    )


def torch_remedy(value: Any, name: str) -> str:
    """Return the method calls that make a plain tensor of a torch tensor."""
    if value.requires_grad:
        return f"pass {name}.detach()"
    if value.is_quantized:
        return f"pass {name}.int_repr() or {name}.dequantize()"
    if str(value.layout) != "torch.strided":
        return f"pass {name}.to_dense()"
    if value.is_conj():
        return f"pass {name}.resolve_conj()"
    if value.is_neg():
        return f"pass {name}.resolve_neg()"
    return ""


def remedy(value: Any, name: str) -> str:
    """Return the advice for `value`, the argument `name`, which has no memory. Local."""
    if isinstance(value, list | tuple) and any(_is_of_mpi4py(each) for each in value):
        return "pass the array alone; its dtype and size are those of the array"
    if isinstance(value, int | float | list):
        return "pass np.asarray(...) of it"
    if type(value).__module__ == "collectives._core" or _is_of_mpi4py(value):
        return "an operation is passed by name, as op="
    if isinstance(value, dict | str | tuple | set):
        return "calls for objects end in _object, such as broadcast_object"
    variable = getattr(sys.modules.get("tensorflow"), "Variable", None)
    if isinstance(variable, type) and isinstance(value, variable):
        if name == "out":
            return "omit out and use the result"
        return f"pass {name}.value()"
    return ""


def _is_of_mpi4py(value: Any) -> bool:
    return type(value).__module__ == "mpi4py.MPI"


def empty(x: Any, shape: tuple[int, ...], is_shared: bool) -> Any:
    """Return a new torch tensor of `shape` with the dtype of `x`, in host memory. If it
    `is_shared`, NumPy allocates its memory, as for its own arrays. Local.
    """
    torch = sys.modules["torch"]
    if not is_shared:
        return torch.empty(shape, dtype=x.dtype)
    memory = np.empty(math.prod(shape) * x.element_size(), np.uint8)
    return torch.from_numpy(memory).view(x.dtype).reshape(shape)


def finished(result: Any, x: Any, framework: str) -> Any:
    """Return the result as an array of a framework whose arrays are immutable. Local."""
    if framework == "tensorflow":
        tensorflow = sys.modules["tensorflow"]
        if isinstance(result, np.ndarray):
            return tensorflow.convert_to_tensor(result)
        return tensorflow.experimental.dlpack.from_dlpack(result.__dlpack__())
    jax = sys.modules["jax"]
    # Unless 64-bit types are enabled, JAX would convert the result to 32 bits.
    wide = x.dtype.name in ("float64", "int64", "uint64", "complex128")
    with _x64(jax) if wide and not jax.config.jax_enable_x64 else nullcontext():
        made = jax.dlpack.from_dlpack(result)
        return made if made.sharding == x.sharding else jax.device_put(made, x.sharding)


def _x64(jax: Any) -> Any:
    """Return a context manager that enables 64-bit types in JAX."""
    enable = getattr(jax, "enable_x64", None)
    if enable is None:  # older versions have it elsewhere
        enable = importlib.import_module("jax.experimental").enable_x64
    return enable(True)


def numpy_dtype(name: str, argument: str) -> np.dtype[Any]:
    """Return NumPy's dtype of that name, if it has one now. Local."""
    try:
        return np.dtype(name)  # ml_dtypes adds its names when it is imported
    except TypeError:
        raise BufferError(
            f"{argument} is {name}, for which NumPy has no dtype unless ml_dtypes is imported; "
            f"import it, or pass out"
        ) from None
