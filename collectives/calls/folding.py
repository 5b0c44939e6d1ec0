"""The collectives that fold: allreduce, reduce, reduce_scatter, scan, exscan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectives import _core
from collectives._core import ALLREDUCE, EXSCAN, REDUCE, REDUCE_SCATTER, SCAN
from collectives.calls.base import Calls
from collectives.reductions import SUM, Reduction

if TYPE_CHECKING:
    from collectives.arrays.types import ArrayT, Number, OpName
    from collectives.compression import Compressor


class FoldingCalls(Calls):
    """The collectives that combine arrays, element by element."""

    def allreduce(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
        compression: Compressor | str | None = None,
        name: str | None = None,
    ) -> ArrayT:
        """Fold the arrays of all ranks; every rank gets the result.
        Collective.

        To fold arrays is to combine them element by element with `op`.

        Parameters
        ----------
        x : array
            This rank's contribution, in host memory or that of a CUDA device, or a number of
            Python: an array without dimensions, of int64, float64, complex128 or bool. The number
            of elements and the dtype are the same on all ranks. If an array in host memory is not
            contiguous, a packed copy is sent; one on a device must be contiguous.
        out : array, optional
            The destination of the result: a contiguous, writable array with the number of elements
            and the dtype of `x`, on the same device. It is `x` itself (in place), or shares no
            memory with it. If it is a NumPy array in Fortran order, the result is copied to it. A
            new array by default.
        op : Reduction or str
            ``SUM``, ``SUM_REPRODUCIBLE``, ``PROD``, ``MIN``, ``MAX``, ``AVG``, ``LAND``, ``LOR``,
            ``LXOR``, ``BAND``, ``BOR``, ``BXOR``, the name of one of these (``"sum"``), or one made
            by `reduction`. ``SUM_REPRODUCIBLE`` needs arrays in host memory, and so do ``MINLOC``
            and ``MAXLOC``, which fold pairs (:doc:`/reference/reductions`).
        algorithm : str, optional
            One of ``collectives.algorithms.names("allreduce")``; chosen by size and number of ranks
            by default. For arrays in GPU memory also ``"nccl"``.
        bits : str, optional
            The quantities that the bits of the result may depend on, as for `Communicator`:
            ``"size"`` or ``"any"``; by default that of the communicator. The same on all ranks.
        prescale, postscale : float
            Factors by which each contribution, and the result, are multiplied.
        timeout : float, optional
            Seconds after which a wait in this call raises `StallError`; by default the
            communicator's. It limits each wait of a compressed call by itself.
        compression : Compressor or str, optional
            Send fewer bytes, and get an approximation of the sum: a codec of
            `collectives.compression`, or its name, such as ``"int8"`` or ``"topk:0.01"``
            (:doc:`/training/compression`). `op` is ``SUM`` or ``AVG`` then, and `x` of float16,
            bfloat16, float32 or float64 and in host memory.
        name : str, optional
            The name of the array, under which a codec stores the rest that it did not send;
            different for each array. Only with `compression`.

        Returns
        -------
        array
            `out`, or a new array with the shape of `x`. All ranks have the same bits, also of NaN
            and of signed zeros (`collectives.reductions`).

        Raises
        ------
        ArgumentError
            If an argument cannot be accepted (`BufferError`: `x` or `out`). Nothing was sent. The
            other ranks wait for this one. If this rank makes another call next, those on its host
            raise `MismatchError`. Under ``COLLECTIVES_VALIDATE=1`` all of them raise it at once.
        UnsupportedTypeError
            If there is no kernel for this operation and dtype. The other ranks wait, as after an
            `ArgumentError`.
        MismatchError
            If the ranks made different calls. If they share memory, all of them raise it, and the
            text has the call of each. Otherwise a rank that gets a message of an unexpected length
            raises it. If ranks compress differently, all of them raise it, nothing was sent, and
            the communicator is usable.
        StallError, PeerLostError, PeerAbortedError, MPIError
            If the deadline passes, the process of another rank has ended, another rank has given
            up, or MPI fails. The communicator is broken after these errors and after a
            `MismatchError`.

        Notes
        -----
        Section 6.9.6 (All-Reduce) of the MPI standard, version 4.1. On tensors,
        `collectives.torch`, `collectives.tensorflow` and `collectives.jax` have this collective
        with a gradient (:doc:`/reference/collectives`).

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> x = np.array([1.0, 4.0])
        >>> cc.allreduce(x, op=cc.AVG)
        array([1., 4.])
        >>> bool((cc.allreduce(x) == cc.size() * x).all())
        True
        """
        if compression is not None or name is not None:
            from collectives.calls.compressed import compressed_allreduce

            return compressed_allreduce(
                self,
                x,
                out,
                op=op,
                algorithm=algorithm,
                bits=bits,
                prescale=prescale,
                postscale=postscale,
                timeout=timeout,
                compression=compression,
                name=name,
            )
        return self._call(
            ALLREDUCE, x, out, op, 0, algorithm, timeout, prescale, postscale, True, bits
        )

    def iallreduce(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.Request[ArrayT]:
        """Start an `allreduce` and return at once.
        Collective: all ranks start their operations in the same order, and complete them in any.

        Parameters
        ----------
        x, out, op, algorithm, bits, prescale, postscale
            As for `allreduce`. ``wait(timeout=...)`` takes the deadline. Neither `x` nor `out` may
            be read or written until the request is complete.

        Returns
        -------
        Request
            ``test()`` makes progress and returns whether the operation is complete; ``wait()``
            returns the result. Operations make progress only inside calls of the library. Under
            ``COLLECTIVES_VALIDATE=1`` the call waits until all ranks have made it. For arrays on a
            device, it is a `DeviceRequest`, whose ``wait()`` orders the stream of the arrays.

        Notes
        -----
        Nonblocking collectives are in section 6.12 of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> request = cc.iallreduce(np.arange(3), op="max")
        >>> request.wait()
        array([0, 1, 2])
        """
        return self._start(
            ALLREDUCE, x, out, op, 0, algorithm, None, prescale, postscale, False, bits
        )

    def reduce(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> ArrayT | None:
        """Fold the arrays of all ranks; the root gets the result.
        Collective.

        Parameters
        ----------
        x, op, algorithm, bits, prescale, postscale, timeout
            As for `allreduce`.
        out : array, optional
            The destination of the result on the root, as for `allreduce`; ignored on other ranks.
        root : int
            The rank that gets the result.

        Returns
        -------
        array or None
            The result on the root, None elsewhere.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 6.9.1 (Reduce) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> total = cc.reduce(np.array([1.0, 4.0]), op="max")
        >>> if cc.rank() == 0:
        ...     print(total)
        [1. 4.]
        """
        return self._call(
            REDUCE, x, out, op, root, algorithm, timeout, prescale, postscale, True, bits
        )

    def ireduce(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        root: int = 0,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.Request[ArrayT | None]:
        """Start a `reduce` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(
            REDUCE, x, out, op, root, algorithm, None, prescale, postscale, False, bits
        )

    def reduce_scatter(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> ArrayT:
        """Fold the arrays of all ranks; each rank gets an equal part of the result.
        Collective.

        Parameters
        ----------
        x, op, algorithm, bits, prescale, postscale, timeout
            As for `allreduce`. The number of elements of `x` is a multiple of ``size``; rank 0 gets
            the first ``x.size // size``.
        out : array, optional
            The destination of this rank's part: ``x.size // size`` elements. In place, `out` is
            that part of `x`, or as in MPI the first part, and the other parts of `x` are not
            changed. The first part costs a copy of `x` on all ranks but the first. A new array by
            default.

        Returns
        -------
        array
            `out`, or a new array with the shape of one part, if `x` can be cut into equal parts
            along its first axis; otherwise a one-dimensional array.

        Raises
        ------
        CollectivesError
            As for `allreduce`. Use `reduce_scatterv` if `x` cannot be cut into equal parts.

        Notes
        -----
        Section 6.10.1 (MPI_REDUCE_SCATTER_BLOCK) of the MPI standard, version 4.1. On tensors,
        `collectives.torch`, `collectives.tensorflow` and `collectives.jax` have this collective
        with a gradient (:doc:`/reference/collectives`).

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> part = cc.reduce_scatter(np.ones((cc.size(), 2)))
        >>> part.shape, float(part[0, 0]) == cc.size()
        ((1, 2), True)
        """
        return self._call(
            REDUCE_SCATTER, x, out, op, 0, algorithm, timeout, prescale, postscale, True, bits
        )

    def ireduce_scatter(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> _core.Request[ArrayT]:
        """Start a `reduce_scatter` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(
            REDUCE_SCATTER, x, out, op, 0, algorithm, None, prescale, postscale, False, bits
        )

    def scan(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT:
        """Fold the arrays of the ranks up to and including this one.
        Collective.

        Parameters
        ----------
        x, out, op, algorithm, bits, timeout
            As for `allreduce`; `op` cannot be ``AVG``.

        Returns
        -------
        array
            `out`, or a new array with the shape of `x`.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 6.11.1 (Inclusive Scan) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> upto = cc.scan(np.ones(1))
        >>> float(upto[0]) == cc.rank() + 1
        True
        """
        return self._call(SCAN, x, out, op, 0, algorithm, timeout, bits=bits)

    def iscan(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
    ) -> _core.Request[ArrayT]:
        """Start a `scan` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(SCAN, x, out, op, 0, algorithm, None, 1.0, 1.0, False, bits)

    def exscan(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
        timeout: float | None = None,
    ) -> ArrayT | None:
        """Fold the arrays of the ranks before this one.
        Collective.

        Parameters
        ----------
        x, out, op, algorithm, bits, timeout
            As for `scan`.

        Returns
        -------
        array or None
            `out`, or a new array with the shape of `x`. None on rank 0, which has no rank before
            it; its `out` is not changed.

        Raises
        ------
        CollectivesError
            As for `allreduce`.

        Notes
        -----
        Section 6.11.2 (Exclusive Scan) of the MPI standard, version 4.1.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> before = cc.exscan(np.ones(1))
        >>> before is None or float(before[0]) == cc.rank()
        True
        """
        return self._call(EXSCAN, x, out, op, 0, algorithm, timeout, bits=bits)

    def iexscan(
        self,
        x: ArrayT | Number,
        out: ArrayT | None = None,
        *,
        op: Reduction | OpName = SUM,
        algorithm: str | None = None,
        bits: str | None = None,
    ) -> _core.Request[ArrayT | None]:
        """Start an `exscan` and return at once; see `iallreduce`.
        Collective.
        """
        return self._start(EXSCAN, x, out, op, 0, algorithm, None, 1.0, 1.0, False, bits)
