"""The state of a torch program: models, optimizers, samplers, and other objects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from collectives.horovod import basics
from collectives.horovod.elastic import ObjectState
from collectives.torch.elastic.sampler import ElasticSampler
from collectives.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class StateHandler:
    """The state of one object of a program: its `value`."""

    def __init__(self, value: Any) -> None:
        self.value: Any = value

    def save(self) -> None:
        self.saved: Any = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


class SamplerStateHandler(StateHandler):
    """That of a sampler."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler)
        self.save()


class ModelStateHandler(SamplerStateHandler):
    """That of a model."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(SamplerStateHandler):
    """That of an optimizer."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


Registry = list[tuple[Any, Callable[[Any], StateHandler]]]
_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Return which handler keeps objects of which type; the first one counts. Local."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Set which handler keeps objects of which type. Local."""
    global _registry
    _registry = registry


def _handlers(objects: dict[str, Any]) -> dict[str, StateHandler]:
    """Return the handlers of those objects that have one."""
    made = {}
    for name, value in objects.items():
        kind = next((kind for type_, kind in _registry if isinstance(value, type_)), None)
        if kind is not None:
            made[name] = kind(value)
    return made


class TorchState(ObjectState):
    """A state of models, optimizers, samplers and other objects: its attributes.

    Parameters
    ----------
    model : Module, optional
    optimizer : Optimizer, optional
    **kwargs
        More of them. Objects other than modules, optimizers and `ElasticSampler` have to be
        picklable, or to have a handler of yours (``get_handler_registry``).
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        kwargs |= {"model": model, "optimizer": optimizer}
        self._handlers = _handlers(kwargs)
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        others = {name: each for name, each in kwargs.items() if name not in self._handlers}
        super().__init__(broadcast_object, basics.rank, **others)

    def save(self) -> None:
        """Keep the state as it is now. Local."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Go back to the state that was last kept. Local."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Send the state of rank 0 to all ranks, and keep it.
        Collective.
        """
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Share out samplers among the ranks that there are now. Local."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        super().__setattr__(name, value)
