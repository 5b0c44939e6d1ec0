"""Run a program for CUDA on the fake accelerator, unchanged: ``python as_cuda.py program.py ...``.

Torch's names for CUDA mean the accelerator, and `horovod` means this library. At the end, each
model that was moved to the accelerator must be there, with the same parameters on all ranks. A
program that has moved none is not checked.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from fake_accelerator import NAME, Accelerator

import collectives.as_horovod
import collectives.torch as hvd


class AsCuda:
    """Calls of CUDA run on the accelerator, as long as its ``with`` statement lasts.

    Attributes
    ----------
    models : list of (torch.nn.Module, list of torch.Tensor)
        What was moved there, with a copy of the parameters as they were.
    devices : list of int
        The devices that the program has chosen.
    """

    def __init__(self, mode: str = "fast") -> None:
        self.accelerator = Accelerator(mode)
        self.models: list[tuple[torch.nn.Module, list[torch.Tensor]]] = []
        self.devices: list[int] = []
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> AsCuda:
        self._closing.enter_context(self.accelerator)
        for owner, name, meaning in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "device_count", lambda: hvd.local_size()),
            (torch.cuda, "set_device", lambda device: self.devices.append(_index(device))),
            (torch.cuda, "manual_seed", torch.manual_seed),
            (torch.cuda, "synchronize", torch.accelerator.synchronize),
            (torch.nn.Module, "cuda", lambda model, device=None: model.to("cuda")),
            (torch.nn.Module, "to", _to(torch.nn.Module.to, self._keep)),
            (torch.Tensor, "cuda", lambda tensor, *args, **kwargs: tensor.to("cuda")),
            (torch.Tensor, "to", _to(torch.Tensor.to)),
            (torch.Tensor, "pin_memory", _pinned),
        ):
            self._closing.enter_context(mock.patch.object(owner, name, meaning))
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)

    def _keep(self, model: torch.nn.Module) -> None:
        """Keep the parameters of a model that is moved there for the first time."""
        if not any(each is model for each, _ in self.models):
            before = [each.detach().cpu().clone() for each in model.parameters()]
            self.models.append((model, before))

    def check(self) -> str:
        """Describe the trained models; raise an AssertionError if ranks differ."""
        assert set(self.devices) <= {hvd.local_rank()}, f"devices {self.devices}"
        for model, before in self.models:
            changed = False
            for each, old in zip(model.parameters(), before, strict=True):
                assert each.device.type == NAME, f"a parameter is on {each.device}"
                now = each.detach().cpu()
                every = hvd.allgather(now.flatten().unsqueeze(0))
                assert (every == every[0]).all(), "ranks have different parameters"
                assert now.isfinite().all()
                changed |= not torch.equal(now, old)
            assert changed, "no parameter has changed"
        ways = {each[:2] for each in self.accelerator.copies}
        assert {(NAME, "cpu"), ("cpu", NAME)} <= ways, f"copies {ways}"
        return f"{len(self.models)} model on {NAME}, the same on {hvd.size()} ranks"


def _to(
    method: Callable[..., Any], first: Callable[[Any], object] = lambda _: None
) -> Callable[..., Any]:
    """Return the method `to` of a class, for which CUDA is the accelerator."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        def meant(value: Any) -> Any:
            if not isinstance(value, (str, torch.device)) or not str(value).startswith("cuda"):
                return value
            first(self)
            return NAME

        return method(self, *map(meant, args), **{k: meant(each) for k, each in kwargs.items()})

    return to


def _index(device: Any) -> int | None:
    return device.index if isinstance(device, torch.device) else int(device)


def _pinned(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


@contextlib.contextmanager
def arguments(words: list[str]) -> Iterator[None]:
    """Have a program see words as its arguments."""
    with mock.patch.object(sys, "argv", words):
        yield


def help_modules() -> None:
    """Have programs find modules that were made for other versions than those that are here."""
    np.Inf = np.inf  # type: ignore[attr-defined]  # Lightning 1.6 asks for it
    with contextlib.suppress(ImportError):
        try:
            import torchvision  # noqa: F401
        except RuntimeError:  # it describes operations of a library that is for another torch
            for name in [each for each in sys.modules if each.startswith("torchvision")]:
                del sys.modules[name]
            sys.modules["torchvision._meta_registrations"] = ModuleType("without operations")


def main() -> None:
    help_modules()
    collectives.as_horovod.install()
    with AsCuda() as cuda, arguments(sys.argv[1:]):
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.stdout.write(f"{cuda.check()}\n" if cuda.models else "")


if __name__ == "__main__":
    main()
