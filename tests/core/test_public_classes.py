"""The classes that programs meet: what a prompt lists."""

from __future__ import annotations

import pytest

import collectives as cc


@pytest.mark.parametrize("each", [cc.Request, cc.PlannedCall, cc.Reduction, cc.GroupedRequest])
def test_a_prompt_lists_no_helpers(each: type) -> None:
    noise = [name for name in dir(each) if "cython" in name or name in ("of", "__setstate__")]
    assert noise == []
