"""Pictures of algorithms: messages in space and time, and the contents of ranks after each step.

A `Proof` is drawn as text (`text`), as SVG (`messages`, `held`, `animation`), and as PNG
(`raster`). An SVG is one file without scripts and without external resources. It has a light and a
dark theme, of which the reader's system or the caller chooses one. Each arrow and cell has a
tooltip. `plots` has the common parts of Matplotlib plots. Nothing is proven or simulated here.
"""

from __future__ import annotations

from functools import partial

from collectives.picture.animation import scene, stage
from collectives.picture.held import grids
from collectives.picture.messages import diagram
from collectives.picture.raster import png
from collectives.picture.sheet import document
from collectives.plans.proof import Proof

__all__ = ["animation", "holdings", "picture", "png", "space_time"]


def picture(proof: Proof, *, theme: str | None = None) -> str:
    """Draw an algorithm: its messages, and below them the contents of each rank. Local.

    Parameters
    ----------
    proof : Proof
        The result of `check`.
    theme : str, optional
        ``"light"`` or ``"dark"``; by default the picture has both, and the reader's system chooses.

    Returns
    -------
    str
        The text of an SVG file.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.picture import picture
    >>> picture(check("allreduce", "ring", p=4)).count('class="arrow')
    24
    """
    return document(
        proof, "messages and holdings", [partial(diagram, proof), partial(grids, proof)], theme
    )


def space_time(proof: Proof, *, theme: str | None = None) -> str:
    """Draw the messages: a lane for each rank, time to the right, an arrow for each message. Local.

    Parameters
    ----------
    proof : Proof
        The result of `check`.
    theme : str, optional
        ``"light"`` or ``"dark"``; by default the picture has both, and the reader's system chooses.

    Returns
    -------
    str
        The text of an SVG file. An arrow has the colour of its first block and, on up to 16 ranks,
        the numbers of its blocks at its start. At its end, a disc with a plus means that the
        message is folded, a tip that it is stored.
    """
    return document(proof, "messages", [partial(diagram, proof)], theme)


def holdings(proof: Proof, *, theme: str | None = None) -> str:
    """Draw the contents of each rank after each step: a row for each rank, a column per block.
    Local.

    Parameters
    ----------
    proof : Proof
        The result of `check`.
    theme : str, optional
        ``"light"`` or ``"dark"``; by default the picture has both, and the reader's system chooses.

    Returns
    -------
    str
        The text of an SVG file. A cell is filled to the extent that the block is complete, and has
        a tick if it is. If there is room, the cell names the ranks whose contributions it holds, or
        counts them.
    """
    return document(proof, "holdings", [partial(grids, proof)], theme)


def animation(proof: Proof, *, theme: str | None = None) -> str:
    """Animate an algorithm: ranks in a circle, and messages that travel between them. Local.

    Parameters
    ----------
    proof : Proof
        The result of `check`, for at most 8 ranks and 16 blocks.
    theme : str, optional
        ``"light"`` or ``"dark"``; by default the picture has both, and the reader's system chooses.

    Returns
    -------
    str
        The text of an SVG file without scripts, which also moves as an image on a page. For readers
        who have asked their system for less motion, it shows the contents after the last step.

    Raises
    ------
    ArgumentError
        If there are more ranks or blocks.
    """
    on = stage(proof)
    return document(proof, "animation", [partial(scene, on)], theme, on.rules())


Proof._repr_svg_ = picture  # notebooks show a proof by it
