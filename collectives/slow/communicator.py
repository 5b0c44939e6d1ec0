"""The communicator of ranks in Python: its making and its end; the collectives are in `calls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from collectives import coreless
from collectives.algorithms.bits import BITS, checked
from collectives.algorithms.groups import Groups
from collectives.calls.base import explain_names
from collectives.calls.comparing import ComparingCalls
from collectives.calls.explaining import ExplainingCalls
from collectives.calls.folding import FoldingCalls
from collectives.calls.grouped import GroupedCalls
from collectives.calls.making import MakingCalls
from collectives.calls.members import Members
from collectives.calls.object_folds import ObjectFoldingCalls
from collectives.calls.planned import PlannedCalls
from collectives.calls.scopes import ScopedCalls
from collectives.choice.chooser import Chooser
from collectives.errors import ArgumentError, CommunicatorError, MismatchError
from collectives.process import environment
from collectives.process.advice import alone
from collectives.slow import stations
from collectives.slow.arguments import seconds
from collectives.slow.engine import Engine, Plan
from collectives.slow.stations import Context, Station
from collectives.text.words import grouped, ranks, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

# The methods of the communicator that need the core, beside those of `coreless.NAMES`.
NEED_CORE = (
    *("agree", "cart", "device_transports", "from_rendezvous", "graph", "mpi", "shrink"),
    *("timeline", "trace"),
)
TIMEOUT, WARNING = 1800.0, 60.0  # seconds, as in `process.settings`


class Communicator(
    ComparingCalls,
    FoldingCalls,
    PlannedCalls,
    GroupedCalls,
    ObjectFoldingCalls,
    MakingCalls,
    ScopedCalls,
    ExplainingCalls,
    Members,
):
    """A group of ranks that run collectives together, in Python. Collective."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int = 0
    nodes: int = 1
    _proc_null = -1
    _segment = None

    def __init__(
        self, mpi: Any = None, *, timeout: float | None = None, bits: str | None = None
    ) -> None:
        if mpi is not None:
            raise ArgumentError(
                f"mpi is {shown(mpi)}, and this process is a rank of a job without MPI: leave it "
                f"out"
            )
        station = stations.here(_join)
        number = station.kept["made"] = station.kept.get("made", 0) + 1
        context = Context(number, tuple(range(station.size)))
        self._set_up(station, context, "Communicator()", timeout, bits)

    def _set_up(
        self,
        station: Station,
        context: Context,
        call: str,
        timeout: float | None,
        bits: str | None,
    ) -> None:
        """Begin to communicate. Collective."""
        if timeout is None:
            timeout = environment.seconds("COLLECTIVES_TIMEOUT", TIMEOUT)
        if bits is None:
            bits = environment.text("COLLECTIVES_BITS") or BITS[0]
            if bits not in BITS:
                raise ArgumentError(
                    f"COLLECTIVES_BITS is {bits!r}, and must be one of {', '.join(BITS)}"
                )
        self.rank, self.size = context.ranks.index(station.rank), len(context.ranks)
        self.local_rank, self.local_size = self.rank, self.size
        self._meeting: Any = _Meeting(station, context)
        chooser: Any = _Chooser(self, bits)
        self._chooser = chooser
        self._engine: Any = Engine(
            station,
            context,
            chooser.weakly(),
            alone,
            seconds(timeout),
            environment.seconds("COLLECTIVES_STALL_WARNING", WARNING),
            checked(bits),
        )
        self._call = self._start = self._engine.call
        self._vector, self._barrier = self._engine.vector, self._engine.barrier
        self._exchanges = {}
        self._mpi: Any = context  # None when it is freed
        self._chooser.begin()
        groups = grouped(enumerate(self._engine.gather(call, bits)))
        if len(groups) > 1:
            told = " and ".join(f"{value} on {ranks(mask)}" for value, mask in groups.items())
            raise MismatchError(f"bits is {told}; set it to one value on all ranks")

    def _grown(self, mpi: Any, call: str, bits: str | None = None) -> Self:
        """Return a communicator that this one has made. Collective."""
        grown = type(self).__new__(type(self))
        grown._set_up(self._engine.station, mpi, call, self.timeout, bits or self.bits)
        return grown

    @property
    def transport(self) -> str:
        """``"threads"`` or ``"loopback"``: the way of the messages between ranks."""
        carrier: str = self._engine.station.carrier
        return carrier

    def free(self) -> None:
        """Free the communicator; it cannot be used afterwards.
        Collective.

        Raises
        ------
        CommunicatorError
            If operations are in flight; the text lists them.
        """
        live = self._engine.station.live
        pending = [each.title for each in live if each.engine is self._engine]
        if pending:
            raise CommunicatorError(
                f"operations are in flight: {'; '.join(pending)}; wait for them"
            )
        self._mpi = None
        self._engine.broken = "the communicator was freed"


class _NeedsCore:
    """A name of the communicator that needs the core."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, comm: object, owner: type) -> NoReturn:
        raise coreless.error(f"Communicator.{self._name}")


explain_names(Communicator)
for _name in (*NEED_CORE, *(name for name in coreless.NAMES if name.islower())):
    setattr(Communicator, _name, _NeedsCore(_name))


class _Chooser(Chooser):
    """The choice of algorithms as in shared memory, without trials and programs for the core."""

    def __init__(self, comm: Communicator, bits: str) -> None:
        groups = Groups.read([0] * comm.size)
        super().__init__(comm, comm.rank, groups, "0", "shm", [], None, bits=bits)

    def _packed(self, source: Any, shares: bool, lends: bool, ragged: bool = False) -> Any:
        return Plan(source)


class _Meeting:
    """The ranks of a communicator, while they make another one."""

    def __init__(self, station: Station, context: Context) -> None:
        self._station, self._context = station, context
        self._made: dict[object, int] = {}
        self.call, self.timeout = "", 0.0

    def duplicate(self) -> Context:
        """Return the same ranks, with separate messages. Local, and on all of them."""
        return self._part(self._context.ranks)

    def split(self, pairs: Sequence[tuple[int | None, int]]) -> Context | None:
        """Return the ranks with the same color, by their keys; None if it is None. Local."""
        color, _ = pairs[self._context.ranks.index(self._station.rank)]
        alike = [rank for rank, (other, _) in enumerate(pairs) if other == color]
        alike.sort(key=lambda rank: pairs[rank][1])
        if color is None:
            return None
        return self._part(tuple(self._context.ranks[rank] for rank in alike))

    def _part(self, members: tuple[int, ...]) -> Context:
        number = self._made[members] = self._made.get(members, 0) + 1
        return Context((self._context.id, members, number), members)


def _join() -> Station | None:
    """Join the job that the environment names, if any. Local."""
    from collectives.slow import job

    return job.join()


def world() -> Communicator:
    """Return the default communicator, which has all ranks of the job.
    Collective on the first call.
    """
    kept = stations.here(_join).kept
    found: Communicator | None = kept.get("world")
    if found is None or found._mpi is None:
        found = kept["world"] = Communicator()
    return found
