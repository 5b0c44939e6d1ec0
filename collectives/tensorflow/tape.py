"""Gradient tapes that reduce the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from collectives.compiled.phases import unconverted
from collectives.compiled.tensorflow import TensorFlow
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.gradients import GradientOptions, Groups, Reducer, derived, label_of
from collectives.horovod.ops import Average, ReduceOp
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.tensorflow.compression import Compression
from collectives.text.words import shown


class _Methods:
    """The methods of a tape whose gradients are reduced. The tape's own class comes next in the
    method resolution order, so ``super()`` refers to it.
    """

    __slots__ = ("_reducer",)

    _reducer: Reducer

    @unconverted
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Compute the gradients, and reduce them. Collective."""
        own: Any = super()
        gradients = own.gradient(target, sources, output_gradients, unconnected_gradients)
        every, labels = tf.nest.flatten(sources), _labels(sources)
        reduced = self._reducer.reduced(
            tf.nest.flatten(gradients), every, labels if len(labels) == len(every) else None
        )
        return tf.nest.pack_sequence_as(gradients, reduced)

    def register_local_source(self, source: Any) -> None:
        """Exclude the gradient of a variable, `source`, from the reduction. Local."""
        self._reducer.local.append(source)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Compute the gradients, and reduce all but the local ones. Collective."""
        every = tf.nest.flatten(sources)
        gradients = tf.nest.flatten(self.gradient(target, sources, output_gradients))
        pairs = list(zip(every, gradients, strict=True))
        key, keys = self._reducer.on.key, self._reducer.local_keys()
        local = [pair for pair in pairs if key(pair[0]) in keys]
        return local, [pair for pair in pairs if key(pair[0]) not in keys]


def _labels(sources: Any) -> list[str]:
    """Return the keys and names of sources, in the order in which `tf.nest.flatten` has them."""
    if isinstance(sources, Mapping):
        pairs = [(f"{key}: ", sources[key]) for key in sorted(sources)]
    elif isinstance(sources, list | tuple):
        pairs = [("", each) for each in sources]
    else:
        return [label_of(sources)]
    return [key + each for key, value in pairs for each in _labels(value)]


def with_reducer(plain: Any, methods: Any, reducer: Reducer) -> Any:
    """Return an object with more methods that shares the state of `plain`. Local."""
    kind = type(plain)
    if not issubclass(kind, methods):
        kind = derived(kind, methods, __slots__=())
    made: Any = object.__new__(kind)
    made.__dict__ = plain.__dict__  # both objects share one state
    made._reducer = reducer  # a slot
    return made


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape with the records of another one that reduces the gradients of all ranks.
    Local; ``gradient()`` is collective.

    Parameters
    ----------
    gradtape : GradientTape
        A tape, before or after its ``with`` statement. It does not change, and its own
        ``gradient()`` returns this rank's gradients.
    device_dense, device_sparse : str
        Ignored; accepted for compatibility with Horovod.
    compression : Compressor, or codec of `collectives.compression`
        The compression of gradients: ``Compression.none``, ``Compression.fp16``, a class of your
        own, or such as ``"int8"``.
    sparse_as_dense : bool
        Whether IndexedSlices are reduced as dense tensors. By default, the slices of all ranks are
        joined.
    op : ReduceOp
        ``Average``, ``Sum``, ``Adasum``, ``Min``, ``Max`` or ``Product``.
    gradient_predivide_factor : float
        With ``Average``: gradients are divided by it before they are added, and the sum is
        multiplied by it and divided by the number of ranks.
    num_groups : int
        Deprecated: pass `groups`.
    groups : int or list of list of Variable, optional
        The groups of gradients that are reduced together, or their number. By default, as many as
        fit into a bucket of ``COLLECTIVES_FUSION_THRESHOLD``.
    process_set : ProcessSet
        The ranks. Others keep their own gradients.
    scale_local_gradients : bool
        Whether gradients of local sources are divided by the number of ranks.

    Returns
    -------
    GradientTape
        It also has ``register_local_source(variable)``, which excludes the gradient of a variable
        from the reduction.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise HorovodArgumentError(
            f"gradtape is a {type(gradtape).__name__}, and must be a tf.GradientTape"
        )
    options = GradientOptions.checked(
        op,
        gradient_predivide_factor,
        compression,
        process_set,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        scales_local=scale_local_gradients,
    )
    return with_reducer(gradtape, _Methods, Reducer(TensorFlow(), options))


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a `DistributedGradientTape` that does not reduce the gradients of some layers.
    Local; ``gradient()`` is collective.

    Parameters
    ----------
    gradtape, device_dense, device_sparse, compression, sparse_as_dense, op
        As for `DistributedGradientTape`.
    gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients
        As for `DistributedGradientTape`.
    local_layers : Layer, or iterable of Layer, optional
        The layers whose trainable variables are local sources.

    Returns
    -------
    GradientTape
    """
    terms = compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups
    made = DistributedGradientTape(
        gradtape, device_dense, device_sparse, *terms, process_set, scale_local_gradients
    )
    made._reducer.local.extend(_layers(local_layers))
    return made


def _layers(given: Any) -> Iterable[Any]:
    if given is None:
        return []
    layers = list(given) if isinstance(given, Iterable) else [given]
    for each in layers:
        if not hasattr(each, "trainable_weights"):
            raise ValueError(f"local_layers has {shown(each)}, and must be layers of tf.keras")
    return layers
