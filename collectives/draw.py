"""Drawings of algorithms as text: the public names of `collectives.picture.text`."""

from collectives.picture.text import drawing, grid, rounds

__all__ = ["drawing", "grid", "rounds"]
