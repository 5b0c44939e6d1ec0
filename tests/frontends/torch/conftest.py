"""Tests of the front ends for torch: ``mpiexec -n 2 python -m pytest tests/frontends/torch``,
or ``torchrun --nproc-per-node 2 -m pytest tests/frontends/torch``. All ranks run the same tests.
"""

from __future__ import annotations

from together import *  # noqa: F403  pytest's hooks, and the environment, which comes first

import torch  # isort: skip

torch.set_num_threads(1)
