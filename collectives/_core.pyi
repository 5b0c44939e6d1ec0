from typing import Any

from numpy.typing import NDArray

COLLECTIVES: tuple[str, ...]
DTYPES: tuple[str, ...]

class Reduction:
    """A reduction operation, such as `collectives.SUM`."""

    name: str
    code: int
    average: bool
    def __init__(self, name: str, code: int, average: bool = ...) -> None: ...
    def dtypes(self) -> list[str]: ...

class Plan:
    source: Any
    def __init__(self, source: Any, whole: Any, split: Any) -> None: ...

class Choice:
    plan: Plan
    segment: int
    def __init__(self, plan: Plan, segment: int) -> None: ...

class Engine:
    rank: int
    size: int
    timeout: float
    patience: int
    agree: Any
    broken: str | None
    live: set[Request]
    def __init__(
        self, MPI: Any, communicator: Any, choose: Any, timeout: float, patience: int
    ) -> None: ...
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
    def forget_choices(self) -> None: ...
    def pending(self) -> list[str]: ...

class Request:
    def __init__(self, engine: Engine, plan: Plan, keep: tuple[Any, ...]) -> None: ...
    def test(self) -> bool: ...
    def wait(self) -> Any: ...
    def state(self) -> str | None: ...

def bind(MPI: Any) -> None: ...
def fold(
    op: int, out: NDArray[Any], left: NDArray[Any], right: NDArray[Any], dtype: int | None = ...
) -> NDArray[Any]: ...
def scale(
    out: NDArray[Any], src: NDArray[Any], factor: float, dtype: int | None = ...
) -> NDArray[Any]: ...
def kernels_isa() -> str: ...
def kernels_select(isa: str | None = ...) -> None: ...
def reduction_named(name: str) -> Reduction: ...
