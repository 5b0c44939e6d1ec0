"""Optimizers: functions by which a server applies a gradient."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.compression.codec import DECAY, Range, parameter

Update = Callable[[NDArray[Any], NDArray[Any], dict[str, Any], int], object]
"""A function for ``optimizer=``. It is called with a part of a parameter, its gradient, a dict that
is kept for this part, and the number of the update, from 1 on. It changes the part in place, and
may use the memory of the gradient."""


class SGD:
    """Stochastic gradient descent, with momentum if wanted.

    Parameters
    ----------
    rate : float or callable
        The learning rate, or a function that returns it for the number of an update, from 1 on.
    momentum : float
        From 0 to 1: the part of the last step that the next one keeps.
    nesterov : bool
        Whether the step looks ahead by the momentum.

    Raises
    ------
    ArgumentError
        If a parameter is not such a number.

    Notes
    -----
    As in PyTorch: ``v = momentum * v + g`` and ``w -= rate * v``; with `nesterov`,
    ``w -= rate * (g + momentum * v)``.
    """

    def __init__(
        self,
        rate: float | Callable[[int], float],
        momentum: float = 0.0,
        *,
        nesterov: bool = False,
    ) -> None:
        self.rate: Callable[[int], float] = _rate(rate)
        self.momentum: float = parameter(momentum, "momentum", DECAY)
        self.nesterov: bool = bool(nesterov)

    def __call__(
        self, values: NDArray[Any], gradient: NDArray[Any], state: dict[str, Any], number: int
    ) -> None:
        """Change `values` by a `gradient`, which may be overwritten; `state` is kept, and `number`
        counts from 1 on. Local.
        """
        # Allocating new arrays of this size would take longer than the arithmetic.
        if self.momentum:
            if "velocity" not in state:
                state["velocity"] = np.zeros_like(values)
            velocity = state["velocity"]
            velocity *= self.momentum
            velocity += gradient
            if self.nesterov:
                gradient += self.momentum * velocity
            else:
                gradient[:] = velocity
        gradient *= self.rate(number)
        values -= gradient


class Adam:
    """Adam: steps that are scaled by the moments of the gradient.

    Parameters
    ----------
    rate : float or callable
        As for `SGD`.
    beta1, beta2 : float
        From 0 to 1: the decay factors of the mean of the gradient and of that of its square.
    epsilon : float
        The term that is added to the root of the square.

    Raises
    ------
    ArgumentError
        If a parameter is not such a number.

    Notes
    -----
    Source: D. P. Kingma, J. Ba: "Adam: a method for stochastic optimization", ICLR 2015,
    arXiv:1412.6980.
    """

    beta1: Any
    beta2: Any

    def __init__(
        self,
        rate: float | Callable[[int], float] = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        self.rate: Callable[[int], float] = _rate(rate)
        self.beta1, self.beta2 = parameter(beta1, "beta1", DECAY), parameter(beta2, "beta2", DECAY)
        self.epsilon: float = float(epsilon)

    def __call__(
        self, values: NDArray[Any], gradient: NDArray[Any], state: dict[str, Any], number: int
    ) -> None:
        """Change `values` by a `gradient`, which may be overwritten; `state` is kept, and `number`
        counts from 1 on. Local.
        """
        if "mean" not in state:
            state["mean"], state["square"] = np.zeros_like(values), np.zeros_like(values)
            state["step"] = np.empty_like(values)
        mean, square, step = state["mean"], state["square"], state["step"]
        np.multiply(gradient, 1 - self.beta1, out=step)
        mean *= self.beta1
        mean += step
        gradient *= gradient
        gradient *= 1 - self.beta2
        square *= self.beta2
        square += gradient
        np.divide(square, 1 - self.beta2**number, out=step)
        np.sqrt(step, out=step)
        step += self.epsilon
        np.divide(mean, step, out=step)
        step *= self.rate(number) / (1 - self.beta1**number)
        values -= step


def _rate(value: Any) -> Callable[[int], float]:
    if callable(value):
        schedule: Callable[[int], float] = value
        return schedule
    rate: float = parameter(value, "rate", Range(float, isfinite, "a number or a function"))
    return lambda number: rate
