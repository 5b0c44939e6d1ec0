"""Policies: the rules by which servers apply gradients and workers continue."""

from __future__ import annotations

from collectives.compression.codec import integer_from, parameter


class Policy:
    """Base of the policies, with the methods that a policy of your own overrides.

    Attributes
    ----------
    waits_for_update : bool
        Whether a worker continues only after an update that is newer than the parameters from which
        its last gradient was computed.
    drops_late : bool
        Whether a gradient from older parameters than the current ones is dropped.
    bound : int or None
        The number of steps that a worker may be ahead of the slowest one.
    pieces : int
        The number of pieces of a worker's part of a batch; if more than one, a worker without work
        gets pieces of others.
    """

    waits_for_update = False
    drops_late = False
    bound: int | None = None
    pieces = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def quorum(self, present: int, total: int) -> int:
        """Return the number of gradients of an update. Local.

        Parameters
        ----------
        present : int
            The number of workers that have not left.
        total : int
            Their number at the beginning.
        """
        return 1

    def survives(self, present: int, total: int) -> bool:
        """Return whether the others continue when a worker is lost. Local.

        Parameters
        ----------
        present : int
            The number of the remaining workers.
        total : int
            Their number at the beginning.
        """
        return present > 0


class Asynchronous(Policy):
    """Apply each gradient when it comes; no worker waits for another.

    Gradients may be computed from older parameters than those that they are applied to; the
    statistics count the updates between. A worker that is lost is dropped.

    Notes
    -----
    Source: J. Dean et al.: "Large scale distributed deep networks", NeurIPS 2012 (Downpour SGD).
    """


class Synchronous(Policy):
    """Apply the mean of the gradients of all workers; each waits for the slowest.

    The gradients are added up in the order of the ranks. A worker that is lost is an error on all
    ranks.
    """

    waits_for_update = True

    def quorum(self, present: int, total: int) -> int:
        """Return `present`, the number of gradients of an update, with any `total`. Local."""
        return present

    def survives(self, present: int, total: int) -> bool:
        """Return False with any `present` and `total`, because the mean would change. Local."""
        return False


class BoundedStaleness(Policy):
    """Apply each gradient when it comes; no worker is more than some steps ahead of the slowest.

    Parameters
    ----------
    bound : int
        The number of steps. With 0 all workers do the same step at a time.

    Raises
    ------
    ArgumentError
        If `bound` is not a number of steps.

    Notes
    -----
    A worker that is lost is dropped.

    Source: Q. Ho et al.: "More effective distributed ML via a stale synchronous parallel parameter
    server", NeurIPS 2013.
    """

    def __init__(self, bound: int) -> None:
        self.bound: int = parameter(bound, "bound", integer_from(0))

    def __repr__(self) -> str:
        return f"BoundedStaleness({self.bound})"


class BackupWorkers(Policy):
    """Apply the mean of the first gradients; drop those of the workers that come too late.

    Parameters
    ----------
    backups : int
        The number b of workers that an update of N + b workers does not wait for.

    Raises
    ------
    ArgumentError
        If `backups` is not a number of workers.

    Notes
    -----
    The gradients of an update are added up in the order of the ranks. Each server decides for its
    part of the parameters. Up to `backups` lost workers are dropped.

    Source: J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz: "Revisiting distributed synchronous
    SGD", 2016, arXiv:1604.00981.
    """

    waits_for_update = True
    drops_late = True

    def __init__(self, backups: int) -> None:
        self.backups: int = parameter(backups, "backups", integer_from(1))

    def __repr__(self) -> str:
        return f"BackupWorkers({self.backups})"

    def quorum(self, present: int, total: int) -> int:
        """Return the number of gradients of an update: `total` without the backups, or `present` if
        that is less, because some workers have finished. Local.
        """
        return max(1, min(present, total - self.backups))

    def survives(self, present: int, total: int) -> bool:
        """Return whether the `present` workers of `total` are enough for an update. Local."""
        return present >= max(1, total - self.backups)


class RapidReassignment(Synchronous):
    """As `Synchronous`, but a slow worker hands pieces of its part of a batch to fast ones.

    Parameters
    ----------
    pieces : int
        The number of pieces into which the part of a worker is cut.

    Raises
    ------
    ArgumentError
        If `pieces` is less than 2.

    Notes
    -----
    ``ps.parts()`` yields the pieces: a worker gets its own pieces one by one, and then those of the
    worker that has most left. So the order in which a batch is added up depends on the speed of the
    workers.

    Source: A. Harlap, H. Cui, W. Dai, J. Wei, G. R. Ganger, P. B. Gibbons, G. A. Gibson, E. P.
    Xing: "Addressing the straggler problem for iterative convergent parallel ML" (FlexRR), SoCC
    2016, doi:10.1145/2987550.2987554. There the workers watch each other's progress and exchange
    pieces themselves; here the first server distributes the pieces.
    """

    def __init__(self, pieces: int = 8) -> None:
        self.pieces: int = parameter(pieces, "pieces", integer_from(2))

    def __repr__(self) -> str:
        return f"RapidReassignment({self.pieces})"
