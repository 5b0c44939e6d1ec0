"""Run Horovod's own training programs for torch with this library, nothing in them changed.

::

    python tests/conformance/horovod_examples.py CHECKOUT [--ranks 2] [--only mnist] [--torchrun]

CHECKOUT is a checkout of Horovod. Each program runs on the accelerator of
`frontends/torch_accelerators`, to which torch's names for CUDA are mapped, and those that print
their loss also in host memory: both must print the same. Programs whose modules are missing are
skipped: torchvision, tqdm and tensorboard, and pytorch-lightning 1.6.5 with torchmetrics 0.11.

With ``--torchrun``, those that print their loss run without MPI, on two network namespaces by
torchrun and on one host by ``collectives run --no-mpi``: both must print the same.
"""

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))

import jobs  # noqa: E402
from namespaces import two_hosts  # noqa: E402

MNIST = ("--epochs", "1", "--batch-size", "32", "--lr", "0.2", "--data-dir", "mnist")
SYNTHETIC = ("--batch-size", "2", "--num-warmup-batches", "1", "--num-batches-per-iter", "1")
SYNTHETIC += ("--num-iters", "2")
IMAGENET = ("--train-dir", "imagenet", "--val-dir", "imagenet", "--batch-size", "2")
IMAGENET += ("--val-batch-size", "4", "--batches-per-allreduce", "2", "--base-lr", "1e-6")
# Each program with its arguments, the modules that it needs, and whether its losses are compared.
PROGRAMS = [
    *(
        ("pytorch/pytorch_mnist.py", (*MNIST, *more), ("torchvision",), is_compared)
        for more, is_compared in (
            ((), True),
            (("--fp16-allreduce",), True),
            (("--use-adasum",), True),
            (("--gradient-predivide-factor", "2"), True),
            (("--use-mixed-precision",), False),
        )
    ),
    ("elastic/pytorch/pytorch_mnist_elastic.py", MNIST, ("torchvision",), True),
    ("pytorch/pytorch_synthetic_benchmark.py", SYNTHETIC, ("torchvision",), False),
    (
        "elastic/pytorch/pytorch_synthetic_benchmark_elastic.py",
        (*SYNTHETIC, "--model", "resnet18"),
        ("torchvision",),
        False,
    ),
    *(  # the second time, it goes on from the checkpoint of the first
        (
            "pytorch/pytorch_imagenet_resnet50.py",
            (*IMAGENET, "--epochs", epochs),
            ("torchvision", "tqdm", "tensorboard"),
            False,
        )
        for epochs in "12"
    ),
    (
        "pytorch/pytorch_lightning_mnist.py",
        ("--epochs", "1", "--data-dir", "mnist"),
        ("torchvision", "pytorch_lightning"),
        False,
    ),
]
DEADLINE = 600  # seconds, for a program


def make_data(folder: Path) -> None:
    """Write pictures of noise, in the files that torchvision's data sets read."""
    from PIL import Image

    rng = np.random.default_rng(0)
    raw = folder / "mnist" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 256), ("t10k", 64)):
        for kind, shape, top in (("images", (count, 28, 28), 256), ("labels", (count,), 10)):
            head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
            elements = rng.integers(0, top, shape, dtype=np.uint8)
            path = raw / f"{name}-{kind}-idx{len(shape)}-ubyte"
            path.write_bytes(head + elements.tobytes())
    for kind in ("cat", "dog"):
        (folder / "imagenet" / kind).mkdir(parents=True)
        for number in range(4):
            picture = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
            picture.save(folder / "imagenet" / kind / f"{number}.png")


def run(program: Path, words: tuple[str, ...], ranks: int, folder: Path) -> tuple[int, str]:
    """Run a program on ranks; return the exit status and the output."""
    launcher = Path(sys.executable).with_name("mpiexec")
    as_cuda = TESTS / "frontends" / "torch_accelerators" / "as_cuda.py"
    folders = str(TESTS.parent), str(TESTS / "support"), os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(folders)
    variables = os.environ | {"PYTHONPATH": path, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60"}
    command = [launcher, "-n", str(ranks), sys.executable, as_cuda, program, *words]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=DEADLINE
    )
    return done.returncode, done.stdout + done.stderr


def losses(text: str) -> list[float]:
    return sorted(float(each) for each in re.findall(r"[Ll]oss: ([\d.]+)", text))


def problems(example: tuple, checkout: Path, ranks: int, folder: Path) -> list[str]:
    """Run a program; return its faults."""
    name, words, _, is_compared = example
    status, text = run(checkout / "examples" / name, words, ranks, folder)
    if status or text.count(f"the same on {ranks} ranks") != ranks:
        return [f"ends with status {status} on the accelerator:\n{text[-4000:]}"]
    if not is_compared:
        return []
    status, host = run(checkout / "examples" / name, (*words, "--no-cuda"), ranks, folder)
    if status:
        return [f"ends with status {status} in host memory:\n{host[-4000:]}"]
    found, expected = losses(text), losses(host)
    if len(found) < ranks + 1 or not np.allclose(found, expected, rtol=1e-3):
        return [f"prints the losses {found} on the accelerator, and {expected} in host memory"]
    return []


def problems_of_torchrun(example: tuple, checkout: Path, ranks: int, folder: Path) -> list[str]:
    """Run a program on two hosts and on one, without MPI; return its faults."""
    name, words, *_ = example
    program = str(checkout / "examples" / name)
    words = ("-m", "collectives.as_horovod", program, *words, "--no-cuda")
    path = os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path, "COLLECTIVES_LOG": "info"}
    options = {"env": env, "deadline": DEADLINE}
    with tempfile.TemporaryDirectory() as files, two_hosts(Path(files)) as hosts:
        done = hosts.torchrun(ranks // 2, *words, folder=folder, **options)
    alone = [sys.executable, "-m", "collectives", "run", "--no-mpi", "-n", str(ranks), *words]
    done.append(jobs.run(alone, cwd=folder, **options))
    for each in done:
        if each.status:
            return [f"ends with {each}"]
    log = "".join(each.err for each in done)
    if (
        log.count(f"{ranks} ranks on 2 hosts, shared memory inside of hosts and messages by UCX")
        == 0
    ):
        return [f"does not run on two hosts by UCX:\n{log[-4000:]}"]
    found, expected = losses("".join(each.out for each in done[:2])), losses(done[2].out)
    if len(found) < ranks + 1 or not np.allclose(found, expected, rtol=1e-3):
        return [f"prints the losses {found} on two hosts, and {expected} on one"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="the folder of Horovod's sources")
    parser.add_argument("--ranks", type=int, default=2, help="how many ranks there are")
    parser.add_argument("--only", default="", help="a part of the programs' names")
    parser.add_argument("--torchrun", action="store_true", help="on two hosts, without MPI")
    options = parser.parse_args()
    ran, failed = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for example in PROGRAMS:
            name, words, modules, is_compared = example
            if options.only not in name or (options.torchrun and not is_compared):
                continue
            what = " ".join((name, *words))
            missing = [each for each in modules if find_spec(each) is None]
            if missing:
                print(f"{what}: skipped, for lack of {', '.join(missing)}", flush=True)
                continue
            examine = problems_of_torchrun if options.torchrun else problems
            found = examine(example, options.checkout.resolve(), options.ranks, Path(folder))
            ran, failed = ran + 1, failed + bool(found)
            print(f"{what}: {found[0] if found else 'passed'}", flush=True)
    print(f"{ran} programs ran, {failed} failed")
    return int(failed > 0 or not ran)


if __name__ == "__main__":
    sys.exit(main())
