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
    """The state of a sampler."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler)
        self.save()


class ModelStateHandler(SamplerStateHandler):
    """The state of a model."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(SamplerStateHandler):
    """The state of an optimizer."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


Registry = list[tuple[Any, Callable[[Any], StateHandler]]]
_registry: Registry = [
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.nn.Module, ModelStateHandler),
]


def get_handler_registry() -> Registry:
    """Return the pairs of a type and its handler; the first match counts. Local."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Set the pairs of a type and its handler. Local."""
    global _registry
    _registry = registry


def _handlers(objects: dict[str, Any]) -> dict[str, StateHandler]:
    """Return the handlers of the objects that have one."""
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
        Further attributes. Objects other than modules, optimizers and `ElasticSampler` have to be
        picklable, or need a handler of your own (``get_handler_registry``).
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
        """Restore the state that was last kept. Local."""
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
        """Divide the samples of each sampler among the current ranks. Local."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        super().__setattr__(name, value)
