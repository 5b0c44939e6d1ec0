"""Run Horovod's own tests with this library, and compare the failures with the known ones.

::

    python tests/conformance/horovod_suite.py CHECKOUT [--ranks 2,3] [--files test_torch.py,...]

CHECKOUT is a checkout of Horovod 0.28.1. The files whose framework is installed are run under the
launcher of the interpreter's environment. Another failure than those of `KNOWN`, and one of these
that passes, end it with status 1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import types
import unittest.mock
from importlib.util import find_spec
from pathlib import Path

import pytest

FILES = {
    "parallel/test_torch.py": "torch",
    "parallel/test_adasum_pytorch.py": "torch",
    "parallel/test_process_sets_static.py": "tensorflow",
    "parallel/test_process_sets_multi_comm.py": "tensorflow",
    "single/test_torch_elastic.py": "torch",
    "parallel/test_tensorflow.py": "tensorflow",
    "parallel/test_adasum_tensorflow.py": "tensorflow",
    "parallel/test_tensorflow_process_sets.py": "tensorflow",
    "parallel/test_tensorflow_process_sets_dynamic.py": "tensorflow",
    "parallel/test_tensorflow2_keras_process_sets.py": "tensorflow",
}
DEADLINE = 1800  # seconds, for a file
OUTCOMES = "HOROVOD_SUITE_OUTCOMES"  # the variable that names the file of a rank

MUON = "it takes all of torch.optim, where Muon refuses vectors as parameters"
KERAS = "it is written for Keras 2"
SCATTERED = "it wants the gradient times the number of ranks"
ROUNDED = "it compares without a tolerance, and a sum of three numbers is rounded"
KNOWN = {  # tests by name: from how many ranks on they fail, and why
    "test_broadcast_state": (1, MUON),
    "test_broadcast_state_options": (1, MUON),
    "test_force_allreduce": (1, MUON),
    "test_horovod_syncbn_cpu": (1, KERAS),
    "test_partial_distributed_gradient_tape": (1, KERAS),
    "test_process_set_optimizer": (1, KERAS),
    "test_horovod_allreduce_indexed_slices_prescale_postscale_error": (
        1,
        "it wants an error where IndexedSlices are scaled",
    ),
    "test_horovod_reducescatter_grad_cpu_process_sets": (
        1,
        "it compares a float16 with 1e-8, which NumPy 2 makes a zero",
    ),
    "test_horovod_grouped_reducescatter_grad": (2, SCATTERED),
    "test_horovod_grouped_reducescatter_grad_cpu": (2, SCATTERED),
    "test_horovod_reducescatter_grad": (2, SCATTERED),
    "test_horovod_reducescatter_grad_average": (2, SCATTERED),
    "test_horovod_reducescatter_grad_cpu": (2, SCATTERED),
    "test_multi_comm": (3, "wrong process sets of one rank are an error on all ranks"),
    "test_synchronize_step_warning": (1, "it wants Horovod's words of a warning"),
    "test_stability": (3, "Adasum needs a power of two"),
    "test_stability_2": (3, "Adasum needs a power of two"),
    "test_horovod_allreduce_prescale": (3, ROUNDED),
    "test_horovod_allreduce_cpu_postscale": (3, ROUNDED),
    "test_horovod_allreduce_cpu_prescale": (3, ROUNDED),
    "test_horovod_allreduce_product_cpu": (3, ROUNDED),
    "test_horovod_grouped_allreduce_average_cpu": (3, ROUNDED),
    "test_horovod_grouped_allreduce_mixed_indexed_slices_average_cpu": (3, ROUNDED),
    "test_horovod_grouped_allreduce_product_cpu": (3, ROUNDED),
    "test_horovod_grouped_reducescatter_cpu_prescale": (3, ROUNDED),
    "test_horovod_reducescatter_cpu_prescale": (3, ROUNDED),
}
# Those that fail on some ranks only on three, by rounding or SCATTERED: the others would wait for
# these.
LEFT_OUT = (
    "test_horovod_reducescatter_prescale",
    "test_horovod_grouped_reducescatter_prescale",
    "test_horovod_reducescatter_grad_process_sets",
)


def pytest_configure(config: pytest.Config) -> None:
    """Provide what Horovod's tests import beside Horovod. Called in each rank."""
    sys.modules.setdefault("mock", unittest.mock)
    threads = types.ModuleType("horovod.runner.util.threads")
    environment = types.ModuleType("horovod.runner.common.util.env")
    vars(threads)["in_thread"] = lambda target: threading.Thread(target=target, daemon=True).start()
    vars(environment)["get_env_rank_and_size"] = place
    for module in (threads, environment):
        parents = module.__name__.split(".")
        for depth in range(2, len(parents)):
            name = ".".join(parents[:depth])
            sys.modules.setdefault(name, types.ModuleType(name))
        sys.modules[module.__name__] = module


def place() -> tuple[int, int]:
    """Return the rank and their number, as the launcher says."""
    for names in (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        if names[0] in os.environ:
            return int(os.environ[names[0]]), int(os.environ[names[1]])
    return 0, 1


def note(word: str) -> None:
    with open(f"{os.environ[OUTCOMES]}.{place()[0]}", "a") as file:
        file.write(f"{word}\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        note(report.nodeid.rpartition("::")[2])


def pytest_sessionfinish(session: pytest.Session) -> None:
    note("::end" if session.testscollected else "::nothing")


def failures(path: Path, ranks: int) -> set[str]:
    """Run a file; return the tests that fail on any rank, and other faults."""
    launcher = Path(sys.executable).with_name("mpiexec")
    here = Path(__file__).resolve().parent
    command = [launcher, "-n", ranks, sys.executable, "-m", "collectives.as_horovod", "-m"]
    command += ["pytest", "-p", Path(__file__).stem, "-p", "no:cacheprovider", "-q", "--tb=short"]
    if ranks > 2:
        command += ["-k", " and ".join(f"not {name}" for name in LEFT_OUT)]
    with tempfile.TemporaryDirectory() as folder:
        variables = os.environ | {
            OUTCOMES: f"{folder}/rank",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
            "PYTHONPATH": f"{here.parents[1]}{os.pathsep}{here}",
        }
        words = [str(each) for each in (*command, path.name)]
        try:
            subprocess.run(words, cwd=path.parent, env=variables, timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            return {"::deadline"}
        found: set[str] = set()
        for rank in range(ranks):
            file = Path(f"{folder}/rank.{rank}")
            said = file.read_text().split("\n")[:-1] if file.exists() else []
            found.update(said)
            if "::end" not in said:
                found.add(f"::no end on rank {rank}")
    return found - {"::end"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="the folder of Horovod's sources")
    parser.add_argument("--ranks", default="2,3", help="numbers of ranks")
    parser.add_argument("--files", default="", help="names of files, with commas; all by default")
    options = parser.parse_args()
    problems: list[str] = []
    ran = 0
    wished = options.files.split(",") if options.files else [Path(name).name for name in FILES]
    for name, framework in FILES.items():
        path = options.checkout.resolve() / "test" / name
        if path.name not in wished or find_spec(framework) is None:
            continue
        counts = "1" if name.startswith("single") else options.ranks
        for ranks in map(int, counts.split(",")):
            ran += 1
            found = failures(path, ranks)
            text = path.read_text()
            listed = {
                each
                for each, (least, _) in KNOWN.items()
                if ranks >= least and f"def {each}(" in text
            }
            what = f"{path.name} on {ranks} ranks"
            problems += [f"{what}: {each} fails" for each in sorted(found - listed)]
            problems += [f"{what}: {each} passes, and is listed" for each in listed - found]
    if not ran:
        problems.append("no file was run: no such file, or its framework is not installed")
    print(*problems or ["only what is known fails"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
