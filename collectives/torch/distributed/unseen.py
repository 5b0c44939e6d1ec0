"""Methods that Dynamo, which compiles programs of torch, leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def unseen(function: Function) -> Function:
    """Keep Dynamo from looking into a function, and into what it calls.
    Local.

    Dynamo takes a process group for an object without attributes. `torch.compiler.disable` keeps it
    out, too. But its wrapper takes half as long as a small allreduce, in programs that compile
    nothing as well, and it imports Dynamo, which takes seconds.
    """
    try:
        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except AttributeError:  # another version of torch
        disabled: Function = torch.compiler.disable(function)
        return disabled
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
