"""Keras on torch with variables on an accelerator, which is a fake one."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from places import RANK, SIZE

import collectives.keras as hvd

if keras.backend.backend() != "torch":
    pytest.skip("of torch", allow_module_level=True)

sys.path.append(str(Path(__file__).resolve().parents[1] / "torch_accelerators"))

import torch
from fake_accelerator import Accelerator, register


@pytest.fixture
def device():
    register()
    with Accelerator(), keras.device("fake:0"):
        yield "fake"


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": hvd.Compression.fp16}, {"compression": "int8"}, {"groups": 2}],
    ids=str,
)
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_are_reduced_and_stay_there(device, options, passes):
    made = [keras.Variable([[1.0, 2.0]]), keras.Variable([3.0], dtype="bfloat16")]
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=passes, **options
    )
    optimizer.build(made)
    hvd.broadcast_variables(made, root_rank=0)
    for _ in range(passes):
        optimizer.apply([torch.full_like(each.value, RANK + 1.0) for each in made], made)
    step = passes * (SIZE + 1) / 2
    for each, before in zip(made, ([[1.0, 2.0]], [3.0]), strict=True):
        assert each.value.device.type == device
        values = each.value.detach().cpu().to(torch.float64).numpy()
        np.testing.assert_allclose(values, np.array(before) - step, rtol=1e-2)
    assert hvd.allreduce(made[0], op=hvd.Sum).shape == (1, 2)
