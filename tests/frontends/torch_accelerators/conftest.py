"""Tests of the front ends for torch on an accelerator that is a fake one:
``mpiexec -n 2 python -m pytest tests/frontends/torch_accelerators``. All ranks run the same tests.

They have processes of their own: once torch knows a device, it is there until the process ends.
"""

from __future__ import annotations

from together import *  # noqa: F403  pytest's hooks, and the environment, which comes first

import torch  # isort: skip
import fake_accelerator
import pytest
from torch import distributed as dist

import collectives.torch

torch.set_num_threads(1)
fake_accelerator.register()


@pytest.fixture(scope="module")
def group():
    collectives.torch.init_process_group()
    yield dist.group.WORLD
    dist.destroy_process_group()
