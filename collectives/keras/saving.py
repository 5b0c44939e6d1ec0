"""Models from files, with distributed optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from collectives.keras.compression import Compression
from collectives.keras.distribution import is_distributed
from collectives.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model with the state of its optimizer, which becomes distributed.
    Collective.

    Parameters
    ----------
    filepath : str
        The file that ``model.save`` has written, with or without this library.
    custom_optimizers : iterable of type, optional
        Classes of optimizers that Keras does not have.
    custom_objects : mapping of str, optional
        Other classes and functions that Keras does not have, by their names.
    compression : Compressor, or codec of `collectives.compression`
        As for `DistributedOptimizer`.
    legacy_opts : bool
        Ignored: Keras 3 has no older optimizers.

    Returns
    -------
    Model
        The model as it was saved, with an optimizer only if it was saved with one.
    """
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        DistributedOptimizer(optimizer, compression=compression)
        if keras.backend.backend() == "tensorflow":
            model.jit_compile = False  # XLA does not compile calls of Python
    return model
