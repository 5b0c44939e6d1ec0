from typing import Any, final

from numpy.typing import NDArray
from typing_extensions import Self

COLLECTIVES: tuple[str, ...]
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
    def dtypes(self) -> list[str]: ...

@final
class Plan:
    source: Any
    def __new__(cls, source: Any, whole: Any, split: Any) -> Self: ...

@final
class Choice:
    plan: Plan
    segment: int
    def __init__(self, plan: Plan, segment: int) -> None: ...

@final
class Engine:
    rank: int
    size: int
    timeout: float
    patience: int
    agree: Any
    broken: str | None
    def __new__(
        cls, MPI: Any, communicator: Any, choose: Any, timeout: float, patience: int
    ) -> Self: ...
    def call(
        self,
        kind: int,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        algorithm: str | None,
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
        prescale: float,
        postscale: float,
        blocking: bool,
        counts: NDArray[Any],
        receive_counts: NDArray[Any],
        shape: tuple[int, ...],
    ) -> Any: ...
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
    def exchange(self, plan: Plan, x: Any, out: Any, tag: int, blocking: bool) -> Any: ...
    def check_root(self, root: Any) -> int: ...
    def forget_choices(self) -> None: ...

@final
class Request:
    def __new__(cls, engine: Engine, plan: Plan, keep: tuple[Any, ...]) -> Self: ...
    def test(self) -> bool: ...
    def wait(self) -> Any: ...
    def state(self) -> str | None: ...

@final
class PlannedCall:
    """A collective with its arguments, made by `Communicator.plan`."""

    def __call__(self) -> Any: ...
    def start(self) -> PlannedCall: ...
    def test(self) -> bool: ...
    def wait(self) -> Any: ...

def bind(MPI: Any) -> None: ...
def shape_of(x: Any, name: str = ...) -> tuple[int, ...]: ...
def fold(
    op: int, out: NDArray[Any], left: NDArray[Any], right: NDArray[Any], dtype: int | None = ...
) -> NDArray[Any]: ...
def scale(
    out: NDArray[Any], src: NDArray[Any], factor: float, dtype: int | None = ...
) -> NDArray[Any]: ...
def kernels_isa() -> str: ...
def kernels_select(isa: str | None = ...) -> None: ...
def pending(engine: Engine | None = ...) -> list[str]: ...
def reduction_named(name: str) -> Reduction: ...
