"""A sampler that continues in the middle of an epoch, even with another number of ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from itertools import cycle, islice
from typing import Any

import torch

from collectives.horovod import basics


class ElasticSampler(torch.utils.data.Sampler[int]):
    """The part of a data set that this rank processes, without items processed in this epoch.

    All ranks process equally many: if the ranks do not divide the number of items, the first ones
    come again.

    Parameters
    ----------
    dataset : sequence
        Of constant length.
    shuffle : bool
        Whether each epoch has a different order.
    seed : int
        The seed of the order; the same on all ranks.
    """

    dataset: Sized
    shuffle: bool
    seed: int
    epoch: int
    processed_num: int
    num_replicas: int
    rank: int

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin a new `epoch`, with no samples processed. Local.

        Call it at the end of an epoch, so that its samples do not count as processed in the next
        one.
        """
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that all ranks have processed a batch. Local.

        Parameters
        ----------
        batch_idx : int
            Its number, which does not matter.
        batch_size : int
            Its length, on each rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and the number of samples processed in it. Local."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`. Local."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the samples that are not processed among the current ranks. Local."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        every = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(every)
        self.remaining_indices: list[int] = every[self.processed_num :]
        self.num_samples: int = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size: int = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        # All ranks have equally many: the first samples come again, as often as it takes.
        filled = islice(
            cycle(self.remaining_indices), self.rank, self.total_size, self.num_replicas
        )
        self.indices = list(filled)
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
