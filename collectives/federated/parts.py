"""The parts of the parameters: in each round, the clients send one of them, in turn.

A client trains all of its parameters in each round. It keeps those of the other parts until their
turn. So a client sends fewer bytes in a round, and no training is lost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collectives.arrays.parameters import divided
from collectives.errors import ArgumentError
from collectives.federated.parameters import Parameters
from collectives.federated.strategies import Arrays

Bytes = NDArray[np.uint8]


class Parts:
    """The division of some parameters into `count` parts.

    Attributes
    ----------
    places : list of list of int
        The numbers of the arrays of each part.
    layouts : list of Parameters
        The arrays of each part, for packing and unpacking.
    """

    def __init__(self, own: Parameters, count: int) -> None:
        if count > len(own.sizes):
            raise ArgumentError(
                f"parts is {count}, and must be at most {len(own.sizes)}, the number of arrays"
            )
        self._own = own
        self.places: list[list[int]] = divided(own.sizes, count)
        self.layouts: list[Parameters] = [own.subset(each) for each in self.places]

    def due(self, round: int) -> int:
        """Return the part that clients send in a round. Local."""
        return (round - 1) % len(self.places)

    def of(self, part: int, arrays: Arrays) -> Arrays:
        """Return the arrays of a part. Local."""
        return [arrays[k] for k in self.places[part]]

    def replaced(self, part: int, arrays: Arrays, new: Arrays) -> Arrays:
        """Return all `arrays` with `new` ones in a part. Local."""
        found = dict(zip(self.places[part], new, strict=True))
        return [found.get(k, each) for k, each in enumerate(arrays)]

    def changed(self, since: int, round: int) -> list[int]:
        """Return the arrays that may differ at the beginning of a round from those at the beginning
        of round `since`: all of them if that is 0. Local.
        """
        if not since:
            return list(range(len(self._own.sizes)))
        parts = {self.due(each) for each in range(since, round)}
        return sorted(k for part in parts for k in self.places[part])

    def nbytes(self, since: int, round: int) -> int:
        """Return the bytes of these arrays. Local."""
        return self._own.subset(self.changed(since, round)).nbytes

    def packed(self, arrays: Arrays, since: int, round: int) -> Bytes:
        """Return these arrays as bytes. Local."""
        places = self.changed(since, round)
        return self._own.subset(places).packed([arrays[k] for k in places])

    def merged(self, arrays: Arrays, data: Bytes, since: int, round: int) -> Arrays:
        """Return all `arrays`, these as `packed` has written them. Local."""
        places = self.changed(since, round)
        new = self._own.subset(places).unpacked(data)
        if not since:
            return new
        found = dict(zip(places, new, strict=True))
        return [found.get(k, each) for k, each in enumerate(arrays)]
