"""Compression: an allreduce that sends fewer bytes, and returns an approximation of the sum.

The inputs of a codec are arrays of this rank (`Piece`), and its outputs are nonblocking collectives
on a communicator, one after the other: the caller waits for each, and has the sums after the last
one. A codec keeps its state from one call to the next (error feedback, the number of the call, the
factors of `PowerSGD`) for each communicator and each name of an array.

Codecs do not compare themselves between ranks. Their callers, such as
``comm.allreduce(compression=...)``, ensure that all ranks use the same one. No codec chooses an
algorithm.
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
