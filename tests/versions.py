"""Try the wheel with other versions of what it works with: ``python tests/versions.py``.

Each environment is made in .venv/versions, and runs a few files of the tests on two ranks with
MPICH. `make test FULL=1` calls it. Standard library only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ENVS = TESTS.parent / ".venv"
sys.path.insert(0, str(TESTS / "support"))

import jobs  # noqa: E402

ALWAYS = ("mpich", "cloudpickle", "pytest", "ml_dtypes")
CORE = ("mpi/test_allreduce.py", "mpi/test_objects.py", "mpi/test_accelerated.py")
JAX = ("frontends/jax/test_jax_calls.py", "frontends/jax/test_jax_training.py")
TENSORFLOW = ("frontends/tensorflow/test_tf_calls.py", "frontends/tensorflow/test_tf_tape.py")
KERAS = ("frontends/keras/test_keras_optimizer.py", "frontends/keras/test_keras_callbacks.py")
TORCH = ("frontends/torch/test_hvd_calls.py", "frontends/torch/test_dist_calls.py")
ABOVE_TORCH = ("accelerate", "transformers", "lightning")
PROGRAMS = ("launch/test_above_torch.py",)  # which starts the ranks itself
# The oldest versions that pyproject.toml promises, and the newest ones that the index has; of torch
# only that one whose CPU build is at hand, as others bring gigabytes of CUDA along.
TRIED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "oldest": (("numpy==1.23.5", "mpi4py==4.1.0"), CORE),
    "newest": (("numpy", "mpi4py"), CORE),
    "jax-oldest": (("jax==0.8.2", "jaxlib==0.8.2", "mpi4py", "optax"), JAX),
    "jax-newest": (("jax", "mpi4py", "optax"), JAX),
    "tensorflow-oldest": (("tensorflow-cpu==2.18.0", "mpi4py"), (*TENSORFLOW, *KERAS)),
    "tensorflow-newest": (("tensorflow-cpu", "mpi4py"), (*TENSORFLOW, *KERAS)),
    "torch": (("torch==2.13.0", "mpi4py", "numpy"), TORCH),
    "above-torch": (("torch==2.13.0", "mpi4py", "numpy", *ABOVE_TORCH), PROGRAMS),
}
NAMED = ("numpy", "mpi4py", "jax", "tensorflow-cpu", "keras", "torch", *ABOVE_TORCH)


def made(name: str, packages: tuple[str, ...], wheel: Path) -> Path:
    """Return the interpreter of an environment with these packages and the wheel."""
    python = ENVS / "versions" / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    pip = (python, "-m", "pip", "install", "-q")
    subprocess.run([*pip, *ALWAYS, *packages], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)
    return python


def versions(python: Path) -> str:
    """Return the versions of an environment in words."""
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "freeze"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = dict(line.split("==") for line in listed.splitlines() if "==" in line)
    found = {name.lower().replace("_", "-"): version for name, version in found.items()}
    return ", ".join(f"{name} {found[name]}" for name in NAMED if name in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--wheel", type=Path, default=ENVS / "wheel", help="the folder of the wheel"
    )
    parser.add_argument("names", nargs="*", help=", ".join(TRIED))
    options = parser.parse_args()
    (wheel,) = options.wheel.glob("*.whl")
    failed = []
    for name in options.names or TRIED:
        packages, tests = TRIED[name]
        try:
            python = made(name, packages, wheel)
        except subprocess.CalledProcessError as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
            continue
        print(f"{name}: {versions(python)}", flush=True)
        words = ("-m", "pytest", "-p", "no:cacheprovider", "-q", *tests)
        if tests is PROGRAMS:
            result = jobs.run([python, *words], cwd=TESTS, echo=True, deadline=600)
        else:
            result = jobs.on_ranks(python, 2, *words, cwd=TESTS, echo=True, deadline=600)
        failed += [name] * bool(result.status)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
