"""Policies: when a server applies which gradients, and when a worker goes on."""

from __future__ import annotations

from collectives.compression.codec import integer_from, parameter


class Policy:
    """Base of the policies, with the methods that a policy of your own overrides.

    Attributes
    ----------
    waits_for_update : bool
        Whether a worker goes on only after an update that is newer than the parameters which its
        last gradient was computed from.
    drops_late : bool
        Whether a gradient from older parameters than the current ones is dropped.
    bound : int or None
        The number of steps that a worker may be ahead of the slowest one.
    pieces : int
        Into how many pieces a worker's part of a batch is cut; if more than one, a worker without
        work gets pieces of others.
    """

    waits_for_update = False
    drops_late = False
    bound: int | None = None
    pieces = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def quorum(self, present: int, total: int) -> int:
        """Return how many gradients an update is made of. Local.

        Parameters
        ----------
        present : int
            The number of workers that have not left.
        total : int
            Their number at the beginning.
        """
        return 1

    def survives(self, present: int, total: int) -> bool:
        """Return whether the others go on when a worker is lost. Local.

        Parameters
        ----------
        present : int
            The number of workers that are there, without the lost one.
        total : int
            Their number at the beginning.
        """
        return present > 0


class Asynchronous(Policy):
    """Apply each gradient when it comes; no worker waits for another.

    Gradients may be computed from parameters that are older than those they are applied to; the
    statistics say by how many updates. A worker that is lost is dropped.

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
        """Return how many gradients an update is made of: `present` ones, whatever `total` is.
        Local.
        """
        return present

    def survives(self, present: int, total: int) -> bool:
        """Return False, whatever `present` and `total` are: the mean would change. Local."""
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
        The number of workers that an update does not wait for: of N + b, it is b.

    Raises
    ------
    ArgumentError
        If `backups` is not a number of workers.

    Notes
    -----
    The gradients of an update are added up in the order of the ranks. Each server decides for its
    part of the parameters. Workers that are lost are dropped, as long as no more than `backups`
    are.

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
        """Return how many gradients an update is made of: `total` without the backups, or all of
        the `present` workers if they are fewer, because some have finished. Local.
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
        Into how many pieces the part of a worker is cut.

    Raises
    ------
    ArgumentError
        If `pieces` is less than 2.

    Notes
    -----
    The pieces come from ``ps.parts()``: a worker gets its own pieces one by one, and when there are
    none left those of the worker that has most left. So the order in which a batch is added up
    depends on the speed of the workers.

    Source: A. Harlap, H. Cui, W. Dai, J. Wei, G. R. Ganger, P. B. Gibbons, G. A. Gibson, E. P.
    Xing: "Addressing the straggler problem for iterative convergent parallel ML" (FlexRR), SoCC
    2016, doi:10.1145/2987550.2987554. There the workers watch each other's progress and
    hand pieces over themselves; here the first server gives pieces out.
    """

    def __init__(self, pieces: int = 8) -> None:
        self.pieces: int = parameter(pieces, "pieces", integer_from(2))

    def __repr__(self) -> str:
        return f"RapidReassignment({self.pieces})"
