"""Tapes whose gradients are those of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import tensorflow as tf

from collectives.graphs.tensorflow import unconverted
from collectives.graphs.terms import Terms
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.ops import Average, ReduceOp, check_compression, chosen
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.tensorflow.compression import Compression
from collectives.tensorflow.reducing import reduce_all

Groups = int | Sequence[Sequence[Any]] | None


class Reducer:
    """How the gradients of some variables are reduced, and of which they are not."""

    def __init__(
        self, terms: Terms, sparse_as_dense: bool, groups: Groups, scale_local_gradients: bool
    ) -> None:
        self.terms, self.sparse_as_dense = terms, sparse_as_dense
        self.groups, self.scale_local_gradients = groups, scale_local_gradients
        self.local: dict[int, Any] = {}  # variables that are kept alive, by their identities

    def add_local(self, variable: Any) -> None:
        """Leave the gradient of a `variable` as it is on this rank. Local."""
        self.local[id(_plain(variable))] = variable

    def is_local(self, variable: Any) -> bool:
        """Return whether the gradient of a `variable` is not reduced. Local."""
        return id(_plain(variable)) in self.local

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients of all ranks; on a rank outside of the process set, its own.
        Collective.
        """
        results = list(gradients)
        if self.terms.process_set.included() is False:
            return results
        places = []
        for k, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if self.is_local(variable):
                results[k] = self._scaled(gradient)
                continue
            if isinstance(gradient, tf.IndexedSlices) and self.sparse_as_dense:
                gradient = tf.convert_to_tensor(gradient)
            elif not isinstance(gradient, tf.IndexedSlices | tf.Tensor):
                raise HorovodArgumentError(
                    f"the gradient of source {k + 1} is a {type(gradient).__name__}, and only "
                    f"tensors and IndexedSlices are reduced"
                )
            results[k] = gradient
            places.append(k)
        groups = self._groups([variables[k] for k in places])
        reduced = reduce_all([results[k] for k in places], self.terms, groups)
        for k, each in zip(places, reduced, strict=True):
            results[k] = each
        return results

    def _scaled(self, gradient: Any) -> Any:
        size = self.terms.process_set.comm().size
        if not self.scale_local_gradients or size == 1:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / size
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / size

    def _groups(self, variables: Sequence[Any]) -> list[list[int]] | None:
        """Return which of the variables are together, all of them in some group."""
        every = list(range(len(variables)))
        if self.groups is None or not every:
            return None
        if isinstance(self.groups, int):
            share, more = divmod(len(every), self.groups)
            ends = [k * share + min(k, more) for k in range(self.groups + 1)]
            return [every[a:b] for a, b in pairwise(ends) if a < b]
        where = {id(_plain(each)): k for k, each in enumerate(variables)}
        listed = [
            [where.pop(key) for key in map(id, map(_plain, group)) if key in where]
            for group in self.groups
        ]
        return [each for each in listed if each] + [[k] for k in where.values()]


def _plain(variable: Any) -> Any:
    """Return the variable of TensorFlow that one of Keras has."""
    inner = getattr(variable, "value", variable)
    return variable if callable(inner) else inner


class _Methods:
    """The methods of a tape whose gradients are reduced. The tape's own class follows in the order
    of resolution, so ``super()`` is that.
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
        reduced = self._reducer.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, reduced)

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a variable, `source`, as it is on this rank. Local."""
        self._reducer.add_local(source)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Compute the gradients, and reduce those that are not local. Collective."""
        every = tf.nest.flatten(sources)
        gradients = tf.nest.flatten(self.gradient(target, sources, output_gradients))
        pairs = list(zip(every, gradients, strict=True))
        local = [pair for pair in pairs if self._reducer.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reducer.is_local(pair[0])]


@cache
def _distributed(base: Any) -> Any:
    """Return a class of the same name as `base`, which it derives from."""
    made: Any = type(base.__name__, (_Methods, base), {"__slots__": ()})
    made.__module__, made.__qualname__ = base.__module__, base.__qualname__
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
    """Return a tape with what another one has recorded, whose gradients are those of all ranks.
    Local; ``gradient()`` is collective.

    Parameters
    ----------
    gradtape : GradientTape
        Before or after its ``with`` statement. It stays as it is, and its own ``gradient()`` is
        this rank's.
    device_dense, device_sparse : str
        Ignored; they are there for programs that pass them.
    compression : Compressor, or codec of `collectives.compression`
        How gradients are sent: ``Compression.none``, ``Compression.fp16``, a class of your own, or
        such as ``"int8"``.
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
        Which gradients are reduced together: so many groups, or these. By default, as many as fit
        into a bucket of ``COLLECTIVES_FUSION_THRESHOLD``.
    process_set : ProcessSet
        The ranks. Others keep their own gradients.
    scale_local_gradients : bool
        Whether gradients of local sources are divided by the number of ranks.

    Returns
    -------
    GradientTape
        It also has ``register_local_source(variable)``: the gradient of that is not reduced.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise HorovodArgumentError(
            f"gradtape is a {type(gradtape).__name__}, and must be a tf.GradientTape"
        )
    terms = predivided(op, gradient_predivide_factor, compression, process_set)
    groups = checked_groups(num_groups, groups)
    kind: Any = type(gradtape)
    made: Any = object.__new__(kind if issubclass(kind, _Methods) else _distributed(kind))
    made.__dict__ = gradtape.__dict__  # one state, whichever of the two is used
    made._reducer = Reducer(terms, sparse_as_dense, groups, scale_local_gradients)
    return made


def predivided(op: Any, factor: float, compression: Any, process_set: ProcessSet) -> Terms:
    """Return how gradients are reduced. Local."""
    op = chosen(op, None)
    check_compression(op, compression)
    if factor == 1.0:
        return Terms(op, 1.0, 1.0, compression, process_set)
    if op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    return Terms(op, 1.0 / factor, factor, compression, process_set)


def checked_groups(num_groups: int, groups: Groups) -> Groups:
    """Return which gradients are reduced together. Local."""
    if num_groups:
        warnings.warn("num_groups= is deprecated: pass groups=", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or isinstance(groups, list) or (isinstance(groups, int) and groups > 0):
        return groups
    raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")


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
    """Return a tape as `DistributedGradientTape` does, which leaves out the gradients of layers.
    Local; ``gradient()`` is collective.

    Parameters
    ----------
    gradtape, device_dense, device_sparse, compression, sparse_as_dense, op
        As for `DistributedGradientTape`.
    gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients
        As for `DistributedGradientTape`.
    local_layers : Layer, or iterable of Layer, optional
        Their trainable variables are local sources.

    Returns
    -------
    GradientTape
    """
    terms = compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups
    made = DistributedGradientTape(
        gradtape, device_dense, device_sparse, *terms, process_set, scale_local_gradients
    )
    for layer in _layers(local_layers):
        for variable in layer.trainable_weights:
            made.register_local_source(variable)
    return made


def _layers(given: Any) -> Iterable[Any]:
    if given is None:
        return []
    layers = list(given) if isinstance(given, Iterable) else [given]
    if not all(hasattr(each, "trainable_weights") for each in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return layers
