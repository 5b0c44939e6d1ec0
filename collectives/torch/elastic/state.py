"""The state of a torch program: models, optimizers, samplers, and other objects."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch

from collectives.horovod import basics
from collectives.horovod.elastic import ObjectState
from collectives.torch.elastic.sampler import ElasticSampler
from collectives.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = ["TorchState"]


class _Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


class _Handler:
    """What keeps the state of one object."""

    def __init__(self, value: _Stateful) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        value: Any = self.value
        if isinstance(value, torch.nn.Module):
            broadcast_parameters(value.state_dict(), root_rank=0)
        elif isinstance(value, torch.optim.Optimizer):
            broadcast_optimizer_state(value, root_rank=0)
        else:
            value.load_state_dict(broadcast_object(value.state_dict()))
        self.save()


HANDLED = torch.nn.Module, torch.optim.Optimizer, ElasticSampler


class TorchState(ObjectState):
    """A state of models, optimizers, samplers and other objects: its attributes.

    Parameters
    ----------
    model : Module, optional
    optimizer : Optimizer, optional
    **kwargs
        More of them; what is no module, optimizer or `ElasticSampler` has to be picklable.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        kwargs |= {"model": model, "optimizer": optimizer}
        self._handlers = {
            name: _Handler(each) for name, each in kwargs.items() if isinstance(each, HANDLED)
        }
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
            handlers[name].value = value
            handlers[name].save()
        super().__setattr__(name, value)
