"""Compression: an allreduce that sends fewer bytes, and returns an approximation of the sum.

A codec gets arrays of this rank and starts nonblocking collectives on a communicator, whose
arguments are what it has encoded. What it keeps from one call to the next (error feedback, the
number of the call, the factors of `PowerSGD`) is in the codec, for each communicator and name.

=================  ====================  ==========================================  ==============
codec              as text               bits sent for an element of float32         error feedback
=================  ====================  ==========================================  ==============
`NoCompression`    ``"none"``            32                                          no
`Float16`          ``"float16"``         16                                          no
`BFloat16`         ``"bfloat16"``        16                                          no
`Int8`             ``"int8:256"``        8, and 32 for each block                    no
`Int4`             ``"int4:64"``         4, and 32 for each block                    no
`Sign`             ``"sign:256"``        1, and 32 for each block                    yes
`TopK`             ``"topk:0.01"``       64 for each element that is chosen          yes
`RandomK`          ``"randomk:0.01"``    32 for each element that is chosen          yes
`PowerSGD`         ``"powersgd:2"``      of a matrix, 32 for each element of factors yes
=================  ====================  ==========================================  ==============

The number after the colon may be left out; what it is then is the default of the class.
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
