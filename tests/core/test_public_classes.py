"""The classes that programs meet: what a prompt lists."""

from __future__ import annotations

import pytest

import collectives as cc
from collectives import _core
from collectives.algorithms import spec


@pytest.mark.parametrize("each", [cc.Request, cc.PlannedCall, cc.Reduction, cc.GroupedRequest])
def test_a_prompt_lists_no_helpers(each: type) -> None:
    noise = [name for name in dir(each) if "cython" in name or name in ("of", "__setstate__")]
    assert noise == []


def test_the_numbers_of_the_collectives_are_in_the_order_of_their_contracts() -> None:
    numbers = [getattr(_core, name.upper()) for name in spec.COLLECTIVES]
    assert numbers == list(range(len(spec.COLLECTIVES)))
