"""The compressed allreduce: the ranks agree on the codec, and then run its steps."""

from __future__ import annotations

from typing import Any

from collectives import _core
from collectives.compression import Piece, compressor
from collectives.compression.codec import check_codec
from collectives.errors import ArgumentError
from collectives.process.agreement import announced, refusing
from collectives.text.words import shown

MAKING = "compressed_allreduce"  # its name in the errors of ranks that make another call


class _Call:
    """One call, whose arguments are checked when the ranks agree on it."""

    def __init__(self, comm: Any, x: Any, out: Any, options: dict[str, Any]) -> None:
        self.comm, self.x, self.out, self.options = comm, x, out, options
        self.arrays: _core.Compressed
        self.codec: Any = None
        self.key = ""

    def check(self) -> tuple[int, int]:
        """Check the arguments; return the number of calls on the array so far. Local."""
        options = self.options
        name = options["name"]
        if options["compression"] is None:
            raise ArgumentError(f"name is {shown(name)}, and no compression is given that uses it")
        codec = compressor(options["compression"])
        if options["algorithm"] is not None:
            raise ArgumentError("algorithm is given, and a compressed allreduce has several calls")
        if name is not None and not isinstance(name, str):
            raise ArgumentError(f"name is {shown(name)}, and must be text")
        if name is None and getattr(codec, "needs_name", False):
            raise ArgumentError(
                f"{codec.name} stores the lost part of an array for the next call on it: pass "
                f"name=, another one for each array"
            )
        check_codec(codec, options["bits"], self.comm.bits)
        self.codec, self.key = codec, name or ""
        self.arrays = self.comm._engine.compressed(
            self.x, self.out, options["op"], options["prescale"], options["postscale"]
        )
        return 0, 0

    def text(self) -> str:
        """Return the arguments that must be equal on all ranks, as text. Local."""
        arrays, options = self.arrays, self.options
        parts = [
            f"compression={self.codec.name}",
            f"shape={arrays.shape}",
            f"dtype={arrays.dtype}",
            f"op={arrays.op}",
        ]
        parts += [f"name={self.key!r}"] if self.key else []
        for factor in ("prescale", "postscale"):
            if options[factor] != 1.0:
                parts.append(f"{factor}={options[factor]:g}")
        if hasattr(self.codec, "calls"):
            parts.append(f"calls before={self.codec.calls(self.comm, self.key)}")
        return ", ".join(parts)

    def run(self) -> Any:
        """Reduce, waiting for each step. Collective."""
        if type(self.codec).__module__.partition(".")[0] != "collectives":
            self.comm._engine.admit_program()
        piece = Piece(self.key, self.arrays.values, self.arrays.shape)
        for request in self.codec.allreduce(self.comm, [piece]):
            request.aside = True
            request.wait(self.options["timeout"])
        return self.arrays.finish()


def compressed_allreduce(comm: Any, x: Any, out: Any, **options: Any) -> Any:
    """Run `Communicator.allreduce` with ``compression=``. Collective."""
    engine, timeout = comm._engine, options["timeout"]
    if timeout is not None:
        _core.seconds(timeout)
    call = _Call(comm, x, out, options)
    if engine.agree is None:
        with engine:
            announced(engine, MAKING, call.check, call.text, timeout)
            return call.run()
    with refusing(engine, "allreduce"):
        call.check()
    with engine:
        engine.agree("allreduce", call.text(), True, timeout)
        return call.run()
