"""Reductions for strategies of `tf.distribute`, over devices and over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from collectives.communicator import Communicator
from collectives.compiled.tensorflow import reduce_all
from collectives.horovod.errors import HorovodArgumentError, translated
from collectives.horovod.gradients import GradientOptions
from collectives.horovod.ops import Average, ReduceOp, Sum, chosen
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.tensorflow.moving import allgather

Tensor = Any


class CrossDeviceOps(tf.distribute.CrossDeviceOps):
    """The reductions of a `tf.distribute.MirroredStrategy` that runs on several ranks.

    Its construction and each reduction are collective: the values of this rank's devices are added
    on one of them, the sums are reduced over the ranks, and the results are copied to the devices.

    Parameters
    ----------
    algorithm : str, optional
        The algorithm of the ranks, as for `Communicator.allreduce`; by default, the fastest.
    op : ReduceOp
        The operation on the ranks' sums: ``Average``, the default, or ``Sum``. ``Average`` is right
        if a strategy divides by the number of its own replicas, as in ``model.fit``. Means become
        the mean of all values.
    process_set : ProcessSet
        The ranks.

    Raises
    ------
    ArgumentError
        If there is no such algorithm for this number of ranks.
    """

    algorithm: str | None
    op: ReduceOp
    process_set: ProcessSet

    def __init__(
        self,
        algorithm: str | None = None,
        op: ReduceOp = Average,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self.algorithm, self.op, self.process_set = algorithm, chosen(op, None), process_set
        if self.op not in (Average, Sum):
            raise HorovodArgumentError(f"op is {self.op!r}, and must be Average or Sum")
        self._comm = process_set.comm().dup()

    @property
    def _num_between_graph_workers(self) -> int:
        """The number of processes: if it is 1, TensorFlow does not reduce the value of a single
        device.
        """
        return self._comm.size

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """Reduce one value. Collective.

        Parameters
        ----------
        reduce_op, per_replica_value, destinations, options
            As for ``tf.distribute.CrossDeviceOps.reduce``.
        """
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        """Reduce several values. Collective.

        Parameters
        ----------
        reduce_op, value_destination_pairs, options
            As for ``tf.distribute.CrossDeviceOps.batch_reduce``.
        """
        means = reduce_op == tf.distribute.ReduceOp.MEAN
        local = [_added(value.values, means) for value, _ in value_destination_pairs]
        results = self._reduced(local, Average if means else self.op)
        return [
            self.broadcast(result, destinations)
            for result, (_, destinations) in zip(results, value_destination_pairs, strict=True)
        ]

    def _reduced(self, values: list[Any], op: ReduceOp) -> list[Any]:
        """Reduce the values over the ranks."""
        if self._comm.size == 1:
            return values
        options = GradientOptions(op, process_set=self.process_set, name=None, start=self._start)
        return reduce_all(values, options)

    def _start(
        self,
        kind: str,
        name: str | None,
        x: Any,
        out: Any = None,
        *,
        group: Communicator,
        priority: int,
        terms: str | None = None,
        **options: Any,
    ) -> _Started:
        """Start an allreduce by the algorithm, on a communicator of its own."""
        with translated():
            return _Started(self._comm.iallreduce(x, out, algorithm=self.algorithm, **options))

    def _gather_implementation(
        self, per_replica_value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        """Join the values of all devices of all ranks."""
        joined = tf.concat([tf.convert_to_tensor(each) for each in per_replica_value.values], axis)
        if self._comm.size > 1:
            order = [axis, *[k for k in range(joined.shape.rank) if k != axis]]
            back = [order.index(k) for k in range(joined.shape.rank)]
            first = tf.transpose(joined, order)
            joined = tf.transpose(allgather(first, process_set=self.process_set), back)
        return self.broadcast(joined, destinations)

    def __deepcopy__(self, memo: Any) -> CrossDeviceOps:
        """Return itself: strategies are copied, but communicators cannot be."""
        return self


def _added(values: Sequence[Any], means: bool) -> Any:
    """Return the sum of the values of this rank's devices, or the mean."""
    if any(isinstance(each, tf.IndexedSlices) for each in values):
        joined = [tf.concat([each.values for each in values], 0)]
        if means:
            joined = [joined[0] / len(values)]
        indices = tf.concat([each.indices for each in values], 0)
        return tf.IndexedSlices(joined[0], indices, values[0].dense_shape)
    tensors = [tf.convert_to_tensor(each) for each in values]
    total = tensors[0] if len(tensors) == 1 else tf.add_n(tensors)
    return tf.cast(total / len(tensors), total.dtype) if means and len(tensors) > 1 else total


class _Started:
    """A started allreduce, with the methods that `Handle` waits with."""

    def __init__(self, request: Any) -> None:
        self.done, self.wait = request.test, request.wait
