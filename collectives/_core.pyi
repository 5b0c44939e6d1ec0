from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

from collectives.text.origin import Origin

COLLECTIVES: tuple[str, ...]
MAKINGS: tuple[str, ...]
DTYPES: tuple[str, ...]

@final
class Reduction:
    """A reduction operation, such as `collectives.SUM`."""

    name: str
    code: int
    average: bool
    function: Any
    commutative: bool
    def __init__(
        self,
        name: str,
        code: int,
        average: bool = ...,
        function: Any = ...,
        commutative: bool = ...,
    ) -> None: ...
    number: int
    def dtypes(self) -> list[str]: ...

@final
class Arena:
    """The memory of an operation, as soon as a user's arrays are views of it, too."""

@final
class Lent:
    """What an array points into that a user's function has kept."""

@final
class UserFold:
    """A fold that a user wrote, in one call."""

@final
class Held:
    """A tensor of another library that came by DLPack."""

@final
class Span:
    """Elements in a row, as an argument of a call."""

    address: int
    shape: tuple[int, ...]
    count: int
    def __new__(
        cls,
        address: int,
        shape: tuple[int, ...],
        dtype: str,
        itemsize: int,
        owner: Any = ...,
        remote: bool = ...,
    ) -> Self: ...

def tensor(
    capsule: Any, name: str
) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...] | None, str, int, bool, Held]: ...

@final
class Kind:
    """What is known of a class of arrays."""

@final
class Pending:
    """A result that is not yet what the caller gets."""

    def __dlpack__(
        self,
        *,
        stream: Any = ...,
        max_version: tuple[int, int] | None = ...,
        dl_device: tuple[int, int] | None = ...,
        copy: bool | None = ...,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Plan:
    source: Any
    def __new__(cls, source: Any, whole: Any, split: Any, room: int = ...) -> Self: ...

@final
class Choice:
    plan: Plan
    segment: int
    reason: str
    trials: Any
    due: int
    def __init__(self, plan: Plan, segment: int, reason: str = ...) -> None: ...

def ring_places(
    nbytes: int, width: int, operations: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]: ...
def segment_bytes(p: int, nlines: int, lane_bytes: int) -> int: ...
def mapped_bytes() -> int: ...
def take_leave_all() -> None: ...
def give_up_all(text: str) -> None: ...

@final
@final
class Mail:
    """The messages of a job without MPI."""

    def __new__(cls, memory: Any, rank: int, size: int, room: int) -> Self: ...

@disjoint_base
class Context:
    """Ranks of a job without MPI, whose messages are separate from those of other contexts."""

    mail: Mail
    ranks: tuple[int, ...]
    def __new__(cls, mail: Mail, id: int, ranks: Sequence[int]) -> Self: ...
    @property
    def id(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def isend(self, data: Any, dest: int, tag: int = ...) -> Letter: ...
    def irecv(self, data: Any, source: int, tag: int = ...) -> Letter: ...
    def sender(self, tag: int) -> int: ...

@final
class Letter:
    """A message that was started."""

    def test(self) -> bool: ...

@final
class Segment:
    """Memory that the ranks of one host share."""

    ranks: list[int]
    nbytes: int
    kind: str
    is_far: bool
    lanes: int
    lane_bytes: int
    lines: int
    windows: int
    def __new__(
        cls, memory: Any, file: int, ranks: list[int], me: int, nlines: int, lane_bytes: int
    ) -> Self: ...
    def leave(self) -> None: ...
    released: set[int]
    def add_window(self, memory: Any, start: int, nbytes: int) -> int: ...
    def move_rings(self, addresses: Sequence[int], lane_bytes: int) -> None: ...
    def all_finished(self, page: int) -> bool: ...
    def drop_windows(self, numbers: set[int]) -> None: ...
    def lost(self) -> list[tuple[int, int, bool]]: ...
    def ended(self) -> list[tuple[int, int, bool]]: ...
    def give_up(self, text: str, error: BaseException | None = ...) -> None: ...
    def doing(self) -> list[str]: ...
    def round_trip(self, rank: int, count: int, timeout: float = ...) -> float: ...

@final
class Engine:
    rank: int
    size: int
    timeout: float
    patience: int
    spins: int
    stores: int
    warning: float
    segment: Segment | None
    longest: int
    agree: Any
    label: tuple[str, int, tuple[int, ...], tuple[int, ...]]
    messages_by: str
    traced: Any
    devices: Any
    ahead: Any
    broken: str | None
    def check_whole(self) -> int: ...
    def __new__(
        cls,
        MPI: Any,
        communicator: Any,
        choose: Any,
        timeout: float,
        patience: int,
        spins: int,
    ) -> Self: ...
    def call(
        self,
        kind: int,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        algorithm: str | None,
        timeout: float | None = ...,
        prescale: float = ...,
        postscale: float = ...,
        blocking: bool = ...,
    ) -> Any: ...
    def call_vector(
        self,
        kind: int,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        algorithm: str | None,
        timeout: float | None,
        prescale: float,
        postscale: float,
        blocking: bool,
        counts: NDArray[Any],
        receive_counts: NDArray[Any],
        shape: tuple[int, ...],
        displs: NDArray[Any] | None = ...,
        receive_displs: NDArray[Any] | None = ...,
        before: tuple[Request, Any] | None = ...,
    ) -> Any: ...
    def inspect(
        self,
        kind: int,
        x: Span | None,
        out: Span | None,
        op: Any,
        root: Any,
        algorithm: str | None,
        prescale: float,
        postscale: float,
        counts: NDArray[Any] | None = ...,
        receive_counts: NDArray[Any] | None = ...,
        shape: tuple[int, ...] | None = ...,
    ) -> tuple[int, Any, str, bool]: ...
    def call_piece(
        self,
        kind: int,
        x: Span | None,
        out: Span | None,
        op: Any,
        root: Any,
        algorithm: str | None,
        timeout: float | None,
        prescale: float,
        postscale: float,
        blocking: bool,
        whole: int,
        counts: NDArray[Any] | None = ...,
        receive_counts: NDArray[Any] | None = ...,
        on: Any = ...,
    ) -> Request | None: ...
    def announce(
        self,
        making: str,
        record: NDArray[Any],
        out: NDArray[Any],
        timeout: float | None = ...,
    ) -> None: ...
    def compressed(
        self, x: Any, out: Any, op: Any, prescale: float, postscale: float
    ) -> Compressed: ...
    def tell_counts(self, kind: int, counts: NDArray[Any], root: int) -> Request: ...
    def verify(
        self,
        kind: int,
        x: Any,
        op: Any,
        algorithm: str | None,
        prescale: float = ...,
        postscale: float = ...,
    ) -> None: ...
    def plan(
        self,
        kind: int,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        algorithm: str | None,
        prescale: float = ...,
        postscale: float = ...,
    ) -> PlannedCall: ...
    def exchange(
        self,
        plan: Plan,
        x: Any,
        out: Any,
        tag: int,
        timeout: float | None,
        blocking: bool,
        cut: Any,
        result: Any = ...,
    ) -> Any: ...
    def check_root(self, root: Any) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = ...,
        error: BaseException | None = ...,
        trace: TracebackType | None = ...,
        /,
    ) -> None: ...
    def share(self, segment: Segment | None) -> None: ...
    def check_host(self, doing: str = ...) -> None: ...
    def forget_choices(self) -> None: ...

@final
class Request:
    origin: Origin | None
    def __new__(cls, engine: Engine, plan: Plan, keep: tuple[Any, ...]) -> Self: ...
    def test(self) -> bool: ...
    def wait(self, timeout: float | None = ...) -> Any: ...
    def state(self) -> str | None: ...
    def _look(self, waited: float, timeout: float | None = ...) -> None: ...
    def _spin(self, seconds: float) -> bool: ...
    def _awaited(self) -> list[int]: ...
    def where(self) -> str: ...

@final
class Turn:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = ...,
        error: BaseException | None = ...,
        trace: TracebackType | None = ...,
        /,
    ) -> None: ...

@final
class PlannedCall:
    """A collective with its arguments, made by `Communicator.plan`."""

    def __call__(self, timeout: float | None = ...) -> Any: ...
    def start(self) -> PlannedCall: ...
    def test(self) -> bool: ...
    def wait(self, timeout: float | None = ...) -> Any: ...
    def _look(self, waited: float, timeout: float | None = ...) -> None: ...

@final
class Compressed:
    """The input and the result of an allreduce that is compressed."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    values: NDArray[Any]
    def finish(self) -> Any: ...

@final
class Group:
    """The arrays of a grouped call, and the places of their results."""

    count: int
    def __new__(cls, arrays: list[Any], outs: list[Any]) -> Self: ...
    def spans(self) -> list[tuple[int, int, bool, str]]: ...
    def sizes(self) -> list[tuple[str, int, int]]: ...
    def allocate(self, which: list[int]) -> Any: ...
    def pack(self, which: list[int], memory: Any) -> None: ...
    def unpack(self, which: list[int], memory: Any) -> None: ...
    def array(self, i: int) -> tuple[Any, Any]: ...
    def store(self, i: int, result: Any) -> None: ...
    def results(self) -> list[Any]: ...

@disjoint_base
class Task:
    """A collective whose arguments are checked, and which waits for its turn."""

    name: str | None
    signature: int
    nbytes: int
    itemsize: int
    priority: int
    group: Any
    key: Any
    began: float
    number: int
    position: int
    complete: bool
    error: Any
    callbacks: Any
    codec: Any
    arrays: Any
    value: Any
    def __init__(
        self,
        engine: Engine,
        kind: int,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        prescale: Any,
        postscale: Any,
        name: str | None,
        priority: int,
        terms: str | None = ...,
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def operation(self) -> str | None: ...
    @property
    def folds_in_python(self) -> bool: ...
    @property
    def root(self) -> int: ...
    @property
    def scales(self) -> tuple[float, float]: ...
    @property
    def fuses(self) -> tuple[Any, ...] | None: ...
    def begun(self) -> None: ...
    def scheduled(self) -> None: ...
    @property
    def terms(self) -> str | None: ...
    @property
    def takes_steps(self) -> bool: ...
    def end(self, error: BaseException | None) -> bool: ...
    def call_at_end(self, function: Callable[[Any], object]) -> bool: ...
    def start(self) -> Request: ...
    def start_piece(self, first: int, count: int) -> Request: ...
    def result(self) -> Any: ...

@final
class Bundle:
    """Tasks that run as one."""

    copies: bool
    nbytes: int
    def __init__(self, tasks: Sequence[Task], memory: Any) -> None: ...
    def pack(self) -> None: ...
    def unpack(self) -> None: ...
    def start(self) -> Request: ...

@final
class Window:
    """What the ranks compare."""

    mine: NDArray[Any]
    common: NDArray[Any]
    slots: int
    def __init__(self, slots: int) -> None: ...
    def fill(self, tasks: Iterable[Task], joined: bool) -> None: ...
    def read(self) -> tuple[int, bool, bool]: ...

def employ(function: Callable[[], float]) -> None: ...
def dismiss() -> None: ...
def summon() -> None: ...
def attend(begins: bool) -> None: ...
def number_ended() -> int: ...
def await_ended(seen: int, seconds: float, patience: int) -> None: ...
def heard(engine: Engine) -> None: ...
def bind(MPI: Any) -> None: ...
def bind_mail(place: str) -> None: ...
def uses_mpi() -> bool: ...
def mail_bytes(p: int, room: int) -> int: ...
def shape(x: Any, name: str = ...) -> tuple[int, ...]: ...
def examine(
    array: Any, name: str = ..., writable: bool = ..., moves: bool = ...
) -> tuple[int, int, int, str, Any]: ...
def fold(
    op: int, out: NDArray[Any], left: NDArray[Any], right: NDArray[Any], dtype: int | None = ...
) -> NDArray[Any]: ...
def scale(
    out: NDArray[Any], src: NDArray[Any], factor: float, dtype: int | None = ...
) -> NDArray[Any]: ...
def stream_copy(dst: NDArray[Any], src: NDArray[Any]) -> NDArray[Any]: ...
def encoded_bytes(bits: int, count: int, block: int) -> int: ...
def random_word(seed: int, number: int) -> int: ...
def random_words(seed: int, count: int) -> NDArray[np.uint64]: ...
def encode(
    bits: int,
    out: NDArray[np.uint8],
    x: NDArray[Any],
    residual: NDArray[Any] | None,
    block: int,
    seed: int = ...,
    first: int = ...,
) -> None: ...
def decode(
    bits: int, out: NDArray[Any], codes: NDArray[np.uint8], block: int, add: bool = ...
) -> None: ...
def convert(out: Any, x: Any) -> None: ...
def orthonormalise(rows: NDArray[Any]) -> int: ...
def low_rank(
    out: NDArray[Any], left: NDArray[Any], right: NDArray[Any], subtract: bool = ...
) -> None: ...
def kernels_isa() -> str: ...
def kernels_select(isa: str | None = ...) -> None: ...
def pending(engine: Engine | None = ...) -> list[str]: ...
def note_staged(each: Any, begins: bool) -> None: ...
def untold() -> list[str]: ...
def advance_all() -> None: ...
def want_progress() -> None: ...
def stop_progress() -> None: ...
def stopped(looked: float) -> float: ...
def seconds(value: float, name: str = ...) -> float: ...
def forsaken(engine: Engine) -> list[Request]: ...
def guard() -> None: ...
def communicates() -> bool: ...
def fork_noticed() -> None: ...
def is_forked() -> bool: ...
def finalise_noticed() -> None: ...
def is_finalised() -> bool: ...
def end_threads(seconds: float) -> None: ...
def end_requests(threads: set[int]) -> None: ...
def is_ending() -> bool: ...
def child_exits(status: int) -> None: ...
def reduction_named(name: str) -> Reduction: ...
def start_tape(file: int, limit: int, counts: bool, tell: Any) -> None: ...
def stop_tape() -> bool: ...
def set_clock() -> None: ...
def monotonic_ticks() -> int: ...
def now_seconds() -> float: ...
