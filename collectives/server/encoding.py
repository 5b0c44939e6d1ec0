"""The bytes of a gradient on its way to a server: as it is, or compressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.compression.codec import Codec, State
from collectives.server.parameters import Parameter, Piece

Bytes = NDArray[np.uint8]


class Encoding:
    """How the gradient of a server's pieces is sent.

    Attributes
    ----------
    nbytes : int
        Of the memory that a gradient takes.
    payload : int
        Of them, those that say something.
    """

    def __init__(
        self, parameters: Sequence[Parameter], pieces: Sequence[Piece], codec: Codec | None
    ) -> None:
        self.pieces, self.codec = pieces, codec
        self.names = [f"{parameters[each.parameter].name} {each.start}" for each in pieces]
        self.states = [State(each.stop - each.start) for each in pieces]
        self.places: list[slice] = []
        at = 0
        for each in pieces:
            part = parameters[each.parameter].flat[each.start : each.stop]
            nbytes = each.nbytes if codec is None else codec.message_bytes(part)
            self.places.append(slice(at, at + nbytes))
            at += nbytes + 15 & -16
        self.nbytes = max(at, 16)
        self.payload = sum(each.stop - each.start for each in self.places)
        longest = max((each.stop - each.start for each in pieces), default=0)
        self._scratch = None if codec is None else np.empty(longest, np.float64)

    def write(self, memory: Bytes, gradients: Sequence[NDArray[Any]], rank: int) -> None:
        """Write gradients as bytes. Local."""
        for i, piece in enumerate(self.pieces):
            part = gradients[piece.parameter][piece.start : piece.stop]
            codes = memory[self.places[i]]
            if self.codec is None:
                codes.view(piece.dtype)[:] = part
            else:
                self.codec.pack(codes, part, self.names[i], self.states[i], rank)

    def read(self, memory: Bytes, i: int, call: int) -> NDArray[Any]:
        """Return the gradient of piece `i`, which is valid until the next call. Local."""
        piece, codes = self.pieces[i], memory[self.places[i]]
        if self.codec is None or self._scratch is None:
            return codes.view(piece.dtype)
        out = self._scratch.view(piece.dtype)[: piece.stop - piece.start]
        self.codec.unpack(out, codes, self.names[i], call)
        return out
