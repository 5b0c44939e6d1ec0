"""The reductions: what a fold does to two elements.

``SUM PROD MIN MAX`` on integers and floats (``SUM PROD`` on complex too), ``AVG`` on floats and
complex, ``LAND LOR LXOR`` (logical) and ``BAND BOR BXOR`` (bitwise) on integers and bool.
Integers wrap around. float16 and bfloat16 are folded in float32 and rounded once for each fold.
``MIN`` and ``MAX`` pass NaN on, as NumPy does. ``AVG`` is a sum that is scaled once, at the end.
"""

from collectives._core import Reduction

__all__ = ["AVG", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR", "MAX", "MIN", "PROD", "SUM"]
__all__ += ["ALL", "Reduction"]

SUM = Reduction("SUM", 0)
PROD = Reduction("PROD", 1)
MIN = Reduction("MIN", 2)
MAX = Reduction("MAX", 3)
LAND = Reduction("LAND", 4)
LOR = Reduction("LOR", 5)
LXOR = Reduction("LXOR", 6)
BAND = Reduction("BAND", 7)
BOR = Reduction("BOR", 8)
BXOR = Reduction("BXOR", 9)
AVG = Reduction("AVG", 0, True)

ALL = (SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR, AVG)
