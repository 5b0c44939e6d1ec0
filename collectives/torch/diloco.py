"""`DiLoCo`: train on each rank alone, and rarely average the changes of the parameters.

The method is from Douillard and others, "DiLoCo: Distributed Low-Communication Training of Language
Models", 2023, arXiv:2311.08105. The parts and the overlap are from "Streaming DiLoCo with
overlapping communication", 2025, arXiv:2501.18512.
"""

from __future__ import annotations

from typing import Any

import torch

from collectives import background
from collectives.arrays.parameters import divided
from collectives.errors import ArgumentError
from collectives.reductions import AVG
from collectives.text.words import shown
from collectives.torch.asynchronous import check_shapes
from collectives.torch.hooks import communicator


class Part:
    """Parameters of one dtype on one device, whose differences are averaged as one tensor."""

    parameters: list[torch.Tensor]
    phase: int
    name: str

    def __init__(self, parameters: list[torch.Tensor], phase: int, name: str) -> None:
        self.parameters, self.phase, self.name = parameters, phase, name
        self.shared: torch.Tensor = self.local()
        self.momentum: torch.Tensor = torch.zeros_like(self.shared)
        self.handle: background.Handle | None = None

    def local(self) -> torch.Tensor:
        """Return this rank's parameters as one tensor."""
        return torch.cat([each.detach().flatten() for each in self.parameters])

    def store(self, values: torch.Tensor, keeps: float) -> None:
        """Mix `values` into the parameters, which keep the fraction `keeps` of their own."""
        sizes = [each.numel() for each in self.parameters]
        parts = zip(values.split(sizes), self.parameters, strict=True)
        views = [part.view(each.shape) for part, each in parts]
        mine = [each.detach() for each in self.parameters]
        if keeps:
            torch._foreach_lerp_(mine, views, 1 - keeps)
        else:
            torch._foreach_copy_(mine, views)


class DiLoCo:
    """Train on each rank alone for many steps, and then average the changes of the parameters.
    Collective.

    Each rank makes `inner_steps` steps with its own optimizer on its own data. Then the ranks
    average the differences between their old and new parameters. An outer optimizer, SGD with
    Nesterov momentum, uses this average as its gradient. So only one step in `inner_steps`
    communicates, and it sends as much as the gradients of a step.

    It works through a hook of ``optimizer.step()``: nothing else in a training loop changes, and
    schedulers of the learning rate, scalers and closures work as before. Parameters may be on an
    accelerator.

    Parameters
    ----------
    optimizer : Optimizer
        Any optimizer of torch. Its own state is not communicated. All ranks must have parameters
        of the same shapes in the same order; their values become those of rank 0.
    inner_steps : int
        Number of steps between two averages.
    outer_lr, outer_momentum : float
        Learning rate and momentum of the outer optimizer.
    parts : int
        Number of parts of the parameters. Each part is averaged every `inner_steps` steps, and
        different parts at different steps. So the same bytes are sent in smaller messages.
    overlap : int
        Number of further steps during which a part is communicated in the background.
    keeps : float
        With an `overlap`, the fraction of the current parameters in the new ones, from 0 to 1. The
        rest is the average.
    compression : Compressor or str, optional
        A codec of `collectives.compression`, or its name, such as ``"int4"``.
    group : Communicator or ProcessGroup, optional
        The ranks, as for `hooks.State`.

    Attributes
    ----------
    steps : int
        Number of steps of the optimizer so far.

    Raises
    ------
    ArgumentError
        If an argument is wrong.
    MismatchError
        If the ranks have other parameters or arguments; on all of them.

    Examples
    --------
    >>> import torch, collectives.torch as hvd
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> outer = hvd.DiLoCo(optimizer, inner_steps=4)
    >>> for _ in range(8):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(3, 2)).sum().backward()
    ...     _ = optimizer.step()
    >>> outer.finish()
    >>> outer.steps
    8
    """

    inner_steps: int
    overlap: int
    outer_lr: float
    outer_momentum: float

    _number = 0  # instances so far, the same on all ranks

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        inner_steps: int = 100,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        parts: int = 1,
        overlap: int = 0,
        keeps: float = 0.5,
        compression: Any = None,
        group: Any = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"optimizer is {shown(optimizer)}, and must be a torch Optimizer")
        _check_number("inner_steps", inner_steps, 1, None)
        _check_number("parts", parts, 1, inner_steps)
        _check_number("overlap", overlap, 0, inner_steps - 1)
        if not 0 <= keeps <= 1:
            raise ArgumentError(f"keeps is {shown(keeps)}, and must be from 0 to 1")
        DiLoCo._number += 1
        self.comm = communicator(group)
        self.inner_steps, self.overlap = inner_steps, overlap
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        self.keeps: float = keeps if overlap else 0.0
        self.compression = compression
        self.steps: int = 0
        self._terms = (
            f"inner_steps {inner_steps}, parts {parts}, overlap {overlap}, outer_lr {outer_lr}, "
            f"outer_momentum {outer_momentum}, keeps {keeps}"
        )
        given = [each for group in optimizer.param_groups for each in group["params"]]
        check_shapes((f"number {k} of the optimizer", each) for k, each in enumerate(given))
        self._parts = [
            Part(some, k * inner_steps // parts, f"DiLoCo {DiLoCo._number}, part {k}.{j}")
            for k, places in enumerate(divided([each.numel() for each in given], parts))
            for j, some in enumerate(_alike([given[place] for place in places]))
        ]
        for part in self._parts:
            self._submit("broadcast", part, part.shared).wait()
            part.store(part.shared, 0.0)
        self._hook = optimizer.register_step_post_hook(self._stepped)

    def _submit(self, kind: str, part: Part, x: torch.Tensor, **options: Any) -> background.Handle:
        more: dict[str, Any] = {"name": f"{part.name}, {kind}", "terms": self._terms}
        return background.submit(kind, x, x, group=self.comm, **more, **options)

    def _stepped(self, *_: Any) -> None:
        """Send the part that is due, and take the one that was sent before."""
        self.steps += 1
        for part in self._parts:
            if (self.steps + part.phase) % self.inner_steps == 0:
                self._send(part)
            due = (self.steps - self.overlap + part.phase) % self.inner_steps == 0
            if due and part.handle is not None:
                self._take(part)

    def _send(self, part: Part) -> None:
        """Submit the change of this rank's parameters."""
        with torch.no_grad():
            difference = part.shared - part.local()
        part.handle = self._submit(
            "allreduce", part, difference, op=AVG, compression=self.compression
        )

    def _take(self, part: Part) -> None:
        """Wait for the average, and make the outer step."""
        assert part.handle is not None
        average = part.handle.wait()
        part.handle = None
        with torch.no_grad():
            part.momentum.mul_(self.outer_momentum).add_(average)
            step = average.add_(part.momentum, alpha=self.outer_momentum)
            part.shared.sub_(step, alpha=self.outer_lr)
            part.store(part.shared, self.keeps)

    def finish(self) -> None:
        """Average all parts now, and wait. Then all ranks have the same parameters.
        Collective.
        """
        for part in self._parts:
            if part.handle is not None:
                self._take(part)
        for part in self._parts:
            self._send(part)
        for part in self._parts:
            self._take(part)
            part.store(part.shared, 0.0)

    def detach(self) -> None:
        """Stop communicating in the optimizer's steps. Local, and the same on all ranks."""
        self._hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return the state to continue from: after `finish`, the same on all ranks. Local.

        Raises
        ------
        ArgumentError
            If a part is in flight.
        """
        if any(part.handle is not None for part in self._parts):
            raise ArgumentError("a part is in flight; call finish() before state_dict()")
        pairs = [{"shared": each.shared, "momentum": each.momentum} for each in self._parts]
        return {"steps": self.steps, "parts": pairs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a result of `state_dict`; the parameters become the shared ones.
        Local, and the same on all ranks.

        Parameters
        ----------
        state : dict

        Raises
        ------
        ArgumentError
            If the state has other parameters, or another number of parts.
        """
        mine = [each.shared.numel() for each in self._parts]
        theirs = [each["shared"].numel() for each in state["parts"]]
        if mine != theirs:
            raise ArgumentError(f"state has parts of {theirs} elements, and these are of {mine}")
        self.steps = state["steps"]
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.shared.copy_(saved["shared"])
            part.momentum.copy_(saved["momentum"])
            part.store(part.shared, 0.0)


def _check_number(name: str, value: Any, least: int, most: int | None) -> None:
    if type(value) is not int or value < least or (most is not None and value > most):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ArgumentError(f"{name} is {shown(value)}, and must be an integer, {wanted}")


def _alike(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group parameters by dtype and device."""
    found: dict[Any, list[torch.Tensor]] = {}
    for each in parameters:
        found.setdefault((each.dtype, each.device), []).append(each)
    return list(found.values())
