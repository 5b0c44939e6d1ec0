"""Run a training program for Horovod on ranks that share the GPUs of a host.

::

    mpiexec -n 4 python benchmarks/on_shared_gpus.py pytorch_synthetic_benchmark.py --batch-size 32

Programs give each rank the GPU with its local rank as number. Here, the ranks go round the GPUs
that there are, and nothing in the program changes. `horovod` means this library.
"""

from __future__ import annotations

import runpy
import sys

import torch

import collectives.as_horovod  # noqa: F401


def main() -> None:
    """Run the program that the arguments name."""
    set_device = torch.cuda.set_device

    def shared(device: int) -> None:
        set_device(device % torch.cuda.device_count())

    torch.cuda.set_device = shared
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
