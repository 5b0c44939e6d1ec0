"""Actors on a Ray cluster: where they are placed, their ranks, and their outcomes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from collectives.engines import rank as ranks
from collectives.errors import ArgumentError, PeerLostError, StallError
from collectives.launch.spawning import Failure
from collectives.process import host
from collectives.ray.actors import VISIBLE, Meeting, Rank, Store

LOOK = 0.5  # seconds between two looks whether ranks have ended


class Wish(NamedTuple):
    """Numbers of actors on each bundle of resources and of bundles, and the resources of an actor.

    Bundles are on one host each, on as few hosts as possible; or each is on a host of its own.
    """

    bundles: int
    each: int
    cpus: float
    gpus: float
    apart: bool = False

    @property
    def n(self) -> int:
        """The number of ranks."""
        return self.bundles * self.each

    def resources(self, count: int = 1) -> dict[str, float]:
        """Return what so many actors need. Local."""
        needs = {"CPU": count * self.cpus, "GPU": count * self.gpus}
        return {name: amount for name, amount in needs.items() if amount}


class Actors:
    """The actors of the ranks, in the order of ranks: those of one host have numbers in a row."""

    # They are placed in `timeout` seconds. They inherit the placement group that this program is
    # in, if it is in one.
    def __init__(self, wish: Wish, timeout: float, inherits: bool = True) -> None:
        import ray
        from ray.util.placement_group import get_current_placement_group, placement_group

        limit = time.monotonic() + timeout
        self.size: int = wish.n
        self._made: list[Any] = []
        self._group = None
        self._meeting: Any = None
        try:
            group = get_current_placement_group() if inherits else None
            if group is None and wish.resources():
                self._group = group = placement_group(
                    [wish.resources(wish.each)] * wish.bundles,
                    strategy="STRICT_SPREAD" if wish.apart else "PACK",
                )
                if not group.wait(timeout):
                    raise _unplaced(wish, timeout)
            own = self._group is not None
            self._made = [
                _started(wish, group, index // wish.each if own else -1) for index in range(wish.n)
            ]
            asked = [each.place.remote() for each in self._made]
            ready, _ = ray.wait(
                asked, num_returns=wish.n, timeout=max(0.0, limit - time.monotonic())
            )
            if len(ready) < wish.n:
                raise _unplaced(wish, timeout)
            self._number([self._placed(each) for each in asked])
        except BaseException:
            self.close()
            raise

    def _placed(self, asked: Any) -> tuple[str, str]:
        import ray

        try:
            place: tuple[str, str] = ray.get(asked)
        except ray.exceptions.RayError as error:
            raise PeerLostError(f"an actor of a rank has not started: {error}") from error
        return place

    def _number(self, places: Sequence[tuple[str, str]]) -> None:
        """Give the actors their numbers, and each host's ranks all of its GPUs, as their
        `local_rank` counts them.
        """
        names = [name for name, _ in places]
        order = ranks.numbered(names)
        self.ranks: list[Any] = [self._made[index] for index in order]
        self.hosts: list[str] = [host.node(names[index]) for index in order]
        self._environs = []
        for index in order:
            gpus = [places[each][1] for each in order if names[each] == names[index]]
            self._environs.append({VISIBLE: ",".join(gpus)} if all(gpus) else {})

    def jobs(self, timeout: float, environ: Mapping[str, str]) -> list[tuple[Any, ...]]:
        """Return the variables of each rank, and the first arguments for a new job. Local."""
        import ray

        self._end_meeting()
        # Each rank may wait for a value.
        made = ray.remote(Meeting).options(num_cpus=0, max_concurrency=max(100, 2 * self.size))
        self._meeting = made.remote()
        store = Store(self._meeting, timeout)
        return [
            ({**each, **environ}, ranks.by_store(store, rank, self.size))
            for rank, each in enumerate(self._environs)
        ]

    def results(self, asked: Sequence[Any], is_elastic: bool = False) -> list[Any]:
        """Return the results of the first ranks, of which an `Outcome` each was asked; if the job
        is elastic, of those of them that are left. Local.
        """
        import ray

        ends: list[ranks.Outcome | Failure | None] = [None] * len(asked)

        def look() -> list[ranks.Outcome | Failure | None]:
            numbers = {each: rank for rank, each in enumerate(asked) if ends[rank] is None}
            ready = list(numbers)
            if ready:
                ready, _ = ray.wait(ready, timeout=LOOK)
            for each in ready:
                try:
                    ends[numbers[each]] = ray.get(each)
                except ray.exceptions.RayError as error:
                    ends[numbers[each]] = self._lost(numbers[each], error)
            return ends

        return ranks.results(self.size, look, is_elastic)

    def _lost(self, rank: int, error: Exception) -> Failure:
        host = self.hosts[rank]
        reason = " ".join(str(error).split())
        reason = reason.rpartition("The actor is dead because ")[2].partition(" Some common ")[0]
        who = f"rank {rank} of {self.size} on {host}"
        lost = PeerLostError(f"{who} has ended: {reason}")
        return Failure(rank, lost, "", "its actor has ended", host)

    def close(self) -> None:
        """End the actors, and give their resources back. Local."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for each in self._made:
            ray.kill(each)
        self._end_meeting()
        self._made = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _end_meeting(self) -> None:
        import ray

        if self._meeting is not None:
            ray.kill(self._meeting)
            self._meeting = None


def _started(wish: Wish, group: Any, bundle: int) -> Any:
    """Return a new actor on a bundle of a placement group, or on any if that is -1."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    options: dict[str, Any] = {"num_cpus": wish.cpus, "num_gpus": wish.gpus}
    if group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, bundle)
    return ray.remote(Rank).options(**options).remote()


def _unplaced(wish: Wish, timeout: float) -> StallError:
    """Return the error for actors that Ray has not placed."""
    import ray

    there, free = ray.cluster_resources(), ray.available_resources()
    needs = wish.resources(wish.n)
    parts = [
        f"{needs[name]:g} {name} are needed, and the cluster has {there.get(name, 0):g}, of which "
        f"{free.get(name, 0):g} are free"
        for name in needs
        if needs[name] > free.get(name, 0)
    ]
    if not parts:
        each = " and ".join(f"{a:g} {name}" for name, a in wish.resources(wish.each).items())
        apart = f"{wish.bundles} hosts" if wish.apart else "some host for each rank"
        parts = [f"{each} must be free on {apart}"]
    return StallError(
        f"Ray has not placed {wish.n} ranks in {timeout:g} s: {'; '.join(parts)}. Ask for less, "
        f"end other actors, or add nodes"
    )


def checked(n: Any, cpus: Any, gpus: Any) -> None:
    """Raise an error if these are no number of ranks, and no resources of each. Local."""
    if not isinstance(n, int) or n < 1:
        raise ArgumentError(f"n is {n!r}, and must be a positive number of ranks")
    for name, value in (("cpus", cpus), ("gpus", gpus)):
        if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise ArgumentError(f"{name} is {value!r}, and must be a number, 0 or more")
