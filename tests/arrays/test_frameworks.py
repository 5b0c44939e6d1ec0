"""Tensors of torch, JAX and TensorFlow that cannot be used, and the errors that they raise."""

import importlib.util
import os
import subprocess
import sys

import pytest

from collectives import _core, errors
from collectives.arrays import frameworks

FRAMEWORKS = ("torch", "tensorflow", "jax", "cupy", "ml_dtypes")


def imported(name):
    """Import a framework, or skip the test."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def torch():
    return imported("torch")


@pytest.fixture(scope="module")
def jax():
    return imported("jax")


@pytest.fixture(scope="module")
def tf():
    return imported("tensorflow")


def refusal(x, name="x", writable=False, moves=False):
    """Return the text of the error for an array."""
    with pytest.raises((errors.BufferError, errors.UnsupportedTypeError)) as caught:
        _core.examine(x, name, writable, moves)
    return str(caught.value)


@pytest.mark.parametrize("program", ["", "x = np.ones(3); cc.allreduce(x); cc.broadcast(x, out=x)"])
def test_no_framework_is_imported(program):
    """Neither by the import nor by calls with NumPy arrays."""
    code = (
        f"import sys, numpy as np, collectives as cc, collectives.cli\n{program}\n"
        f"print([name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]", result.stdout


# -- torch -----------------------------------------------------------------------------------------


def torch_refused(torch):
    """Return for each kind of tensor without plain memory of its values: it, and the remedy."""
    return {
        "gradient": (torch.ones(3, requires_grad=True), "pass x.detach()"),
        "conjugate": (torch.ones(3, dtype=torch.complex64).conj(), "pass x.resolve_conj()"),
        "negative": (torch.ones(1, dtype=torch.complex64).conj().imag, "pass x.resolve_neg()"),
        "sparse": (torch.eye(3).to_sparse(), "pass x.to_dense()"),
        "meta": (torch.ones(3, device="meta"), "meta"),
        "quantized": (
            torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8),
            "pass x.int_repr() or x.dequantize()",
        ),
        "zeros without memory": (torch._efficientzerotensor(3), "it has no memory"),
        "parameter": (torch.nn.Parameter(torch.ones(3)), "pass x.detach()"),
    }


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_torch_tensors_without_memory(torch):
    for kind, (x, remedy) in torch_refused(torch).items():
        text = refusal(x)
        assert text.startswith("x is a torch tensor whose memory cannot be shared ("), kind
        assert remedy in text, kind
        assert "\n" not in text


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_the_remedies_for_torch_work(torch):
    for kind, (x, remedy) in torch_refused(torch).items():
        if remedy.startswith("pass "):
            for call in remedy.removeprefix("pass ").split(" or "):
                mended = eval(call, {"x": x})
                assert _core.examine(mended)[1] == x.numel(), kind


def test_torch_tensors_that_are_read_only_by_sharing(torch):
    x = torch.arange(3.0)
    assert _core.examine(x, "out", True)[0] == x.data_ptr()
    text = refusal(torch.ones(3, requires_grad=True), "out", True)
    assert "pass out.detach()" in text
    assert refusal(torch.ones(4, 4)[:, ::2], "out", True).startswith(
        "out is not C-contiguous (shape (4, 2), strides (16, 8) bytes)"
    )


def test_torch_inside_of_transformations(torch):
    texts = []

    def look(x):
        texts.append(refusal(x))
        return x.sum()

    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    assert len(texts) == 2
    assert all("memory cannot be shared" in text for text in texts)


def test_classes_of_torch_that_are_no_tensors(torch):
    assert refusal(torch.nn.Linear(2, 2)) == "x is a Linear, which has no buffer"
    assert frameworks.framework_of(torch.nn.Linear) is None
    assert frameworks.framework_of(torch.nn.Parameter) == "torch"


def test_torch_subclasses_go_by_their_own_exports(torch):
    class Mine(torch.Tensor):
        def __dlpack__(self, **options):
            raise RuntimeError("its values are elsewhere")

    assert "(its values are elsewhere)" in refusal(torch.ones(3).as_subclass(Mine))

    class Plain(torch.Tensor):
        pass

    x = torch.ones(3)
    assert _core.examine(x.as_subclass(Plain))[0] == x.data_ptr()


def test_torch_dtypes(torch):
    for name in set(_core.DTYPES) - {"float128"}:
        assert _core.examine(torch.ones(2, dtype=getattr(torch, name)))[3] == name
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        x = torch.ones(2).to(getattr(torch, name))
        assert _core.examine(x, moves=True)[3] == name
        assert f"x has dtype {name}, which can be moved" in refusal(x)


# -- JAX -------------------------------------------------------------------------------------------


def test_jax_arrays_are_no_outputs(jax):
    text = "out is a JAX array, which is immutable; omit out and use the result"
    assert refusal(jax.numpy.ones(3), "out", True) == text


def test_jax_arrays_without_memory(jax):
    texts = []
    jax.jit(lambda x: (texts.append(refusal(x)), x)[1])(jax.numpy.ones(3))
    x = jax.numpy.ones(3)
    x.delete()
    texts.append(refusal(x))
    assert texts[0] == (
        "x is a JAX array whose memory cannot be shared (it is being traced); "
        "call the collective outside of jax.jit"
    )
    assert "Array has been deleted" in texts[1]


def test_jax_arrays_of_several_devices():
    """A process of its own: the number of devices is fixed when JAX starts."""
    imported("jax")
    code = (
        "import jax, jax.numpy as jnp, numpy as np\n"
        "from collectives import _core\n"
        "mesh = jax.make_mesh((2,), ('a',))\n"
        "halves = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('a'))\n"
        "try: _core.examine(jax.device_put(jnp.arange(4.0), halves))\n"
        "except BufferError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    assert "x is a JAX array whose memory cannot be shared" in result.stdout, result
    assert "pass one of x.addressable_shards" in result.stdout


# -- TensorFlow ------------------------------------------------------------------------------------


def test_tensorflow_tensors_are_no_outputs(tf):
    text = "out is a TensorFlow tensor, which is immutable; omit out and use the result"
    assert refusal(tf.ones(3), "out", True) == text


def test_tensorflow_tensors_without_memory(tf):
    texts = []
    tf.function(lambda x: (texts.append(refusal(x)), x)[1])(tf.ones(3))
    assert texts == [
        "x is a symbolic TensorFlow tensor, which has no memory yet; "
        "call the collective outside of tf.function"
    ]
    assert refusal(tf.constant("a")) == "x is a TensorFlow tensor of dtype string, not numbers"


def test_tensorflow_variables(tf):
    variable = tf.Variable([1.0, 2.0])
    assert refusal(variable) == "x is a ResourceVariable, which has no buffer; pass x.value()"
    assert _core.examine(variable.value())[1] == 2
    assert "omit out and use" in refusal(variable, "out", True)


def test_tensorflow_before_the_protocol(tf, monkeypatch):
    """Older tensors have no ``__dlpack__``; TensorFlow's own function does the same."""

    class Old:
        def __init__(self, tensor):
            self.tensor = tensor
            self.dtype, self.numpy, self.device = tensor.dtype, tensor.numpy, tensor.device

    to_dlpack = tf.experimental.dlpack.to_dlpack
    monkeypatch.setattr(tf.experimental.dlpack, "to_dlpack", lambda old: to_dlpack(old.tensor))
    monkeypatch.setattr(tf, "Tensor", Old)
    Old.__module__ = "tensorflow.python.framework.ops"
    assert frameworks.framework_of(Old) == "tensorflow"
    x = tf.constant([1.0, 2.0])
    assert _core.examine(Old(x))[:2] == (_core.examine(x)[0], 2)


# -- dtypes that NumPy has only with ml_dtypes -----------------------------------------------------


def test_dtypes_of_results_for_numpy():
    """A process of its own: the names stay when ml_dtypes is imported once."""
    imported("ml_dtypes")
    code = (
        "from collectives.arrays import frameworks\n"
        "print(frameworks.numpy_dtype('float32', 'x'))\n"
        "try: frameworks.numpy_dtype('bfloat16', 'x')\n"
        "except BufferError as error: print(error)\n"
        "import ml_dtypes\n"
        "print(frameworks.numpy_dtype('bfloat16', 'x'))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines() == [
        "float32",
        "x is bfloat16, for which NumPy has no dtype unless ml_dtypes is imported; "
        "import it, or pass out",
        "bfloat16",
    ]
