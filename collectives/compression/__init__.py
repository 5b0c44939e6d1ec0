"""Compression: an allreduce that sends fewer bytes, and returns an approximation of the sum.

In come arrays of this rank (`Piece`), out come nonblocking collectives on a communicator, one after
the other: the caller of a codec waits for each, and has the sums when there are no more. A codec
keeps its state from one call to the next (error feedback, the number of the call, the factors of
`PowerSGD`) for each communicator and each name of an array.

A codec agrees with no other rank on anything: that all ranks use the same one is for its callers to
see to, and ``comm.allreduce(compression=...)`` does. No codec chooses an algorithm.
"""

from collectives.compression.codec import Codec, Compressor, Piece
from collectives.compression.halves import BFloat16, Float16, NoCompression
from collectives.compression.powersgd import PowerSGD
from collectives.compression.quantised import Int4, Int8, Sign
from collectives.compression.sparse import RandomK, TopK
from collectives.compression.spelling import NAMES, compressor

__all__ = [
    "NAMES",
    "BFloat16",
    "Codec",
    "Compressor",
    "Float16",
    "Int4",
    "Int8",
    "NoCompression",
    "Piece",
    "PowerSGD",
    "RandomK",
    "Sign",
    "TopK",
    "compressor",
]
