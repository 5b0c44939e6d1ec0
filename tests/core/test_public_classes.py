"""The classes that programs meet: what a prompt lists."""

from __future__ import annotations

from typing import get_args

import pytest

import collectives as cc
from collectives import _core
from collectives.algorithms import spec
from collectives.arrays.types import OpName
from collectives.background.handle import Handle


@pytest.mark.parametrize("each", [cc.Request, cc.PlannedCall, cc.Reduction, cc.GroupedRequest])
def test_a_prompt_lists_no_helpers(each: type) -> None:
    noise = [name for name in dir(each) if "cython" in name or name in ("of", "__setstate__")]
    assert noise == []


def test_the_core_has_the_same_collectives_in_the_same_order() -> None:
    assert tuple(spec.COLLECTIVES) == _core.COLLECTIVES
    numbers = [getattr(_core, name.upper()) for name in spec.COLLECTIVES]
    assert numbers == list(range(len(spec.COLLECTIVES)))


def test_type_checkers_take_the_name_of_each_operation() -> None:
    names = [op.name for op in (*cc.reductions.ALL, cc.MINLOC, cc.MAXLOC)]
    assert sorted(get_args(OpName)) == sorted(names + [name.lower() for name in names])


def test_an_unfinished_result_of_a_handle_is_private() -> None:
    assert not hasattr(Handle, "result")
