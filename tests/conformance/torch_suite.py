"""Run torch's own tests of a process group with ours.

``python tests/conformance/torch_suite.py 3`` does so on three ranks.

The tests (`DistributedTest`) are in torch's wheel and need ``expecttest``. They choose by the name
of the backend what they run: it is gloo, and the groups are ours. Each test forks the ranks. The
arguments are the number of ranks and names of tests, all by default. The exit status is 1 if a test
fails that is not in `KNOWN`, or with another error than there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import unittest

os.environ["BACKEND"] = "gloo"
os.environ["WORLD_SIZE"] = sys.argv[1]
os.environ["INIT_METHOD"] = "file://"
os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = "120"

import torch
from torch import distributed as dist
from torch.testing._internal.distributed import distributed_test as theirs

import collectives.torch

# The tests that fail, the text in the error, and the reason.
WORDS = "it looks for gloo's words in the error"
MONITORED = "StallError: monitored_barrier timed out after", WORDS
KNOWN = {
    "test_get_backend": ("'collectives'", "it compares the name of the backend with gloo"),
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": (
        "Could not retrieve or create the backend",
        "it calls a method of the group, which only gloo has",
    ),
    "test_monitored_barrier_gloo_subgroup": MONITORED,
}


class TorchTests(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def with_ours(make):
    """Return a function of torch that makes groups, with our backend in place of gloo."""

    def function(*args, backend=None, **options):
        return make(*args, backend="collectives" if backend == "gloo" else backend, **options)

    return function


def main():
    torch.set_num_threads(1)
    dist.init_process_group = with_ours(dist.init_process_group)
    dist.new_group = with_ours(dist.new_group)
    dist.monitored_barrier = collectives.torch.monitored_barrier
    names = sys.argv[2:] or unittest.defaultTestLoader.getTestCaseNames(TorchTests)
    with tempfile.TemporaryDirectory() as folder:
        theirs.INIT_METHOD = f"file://{folder}/store"
        result = unittest.TextTestRunner(buffer=True).run(
            unittest.TestSuite(map(TorchTests, names))
        )
    failed = {test._testMethodName: text for test, text in result.failures + result.errors}
    passed, skipped = result.testsRun - len(result.skipped) - len(failed), len(result.skipped)
    print(f"{sys.argv[1]} ranks: {passed} passed, {skipped} skipped, {len(failed)} failed")
    new = False
    for name, text in sorted(failed.items()):
        wanted, reason = KNOWN.get(name, ("", ""))
        is_known = bool(wanted) and wanted in text
        print(f"{name}: {reason if is_known else 'this is new'}")
        new |= not is_known
    return int(new)


if __name__ == "__main__":
    sys.exit(main())
