"""The sheet that pictures are drawn on: SVG elements, colours for light and dark, the document."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

from collectives.errors import ArgumentError
from collectives.picture import colours
from collectives.picture.text import between_pairs, blocks_text
from collectives.plans.proof import Proof
from collectives.text.words import count, named

# Lengths are in pixels of the picture at its own size.
WIDTH = 1240  # the largest width; the rest goes below
NARROWEST = 440  # the smallest width, with room for the name and the summary
MARGIN = 24
BLANK = 0.33  # the largest part of the sheet that may stay blank where parts of a picture differ
RANK = 62  # the column with the names of the ranks
GAP = 20  # between parts
KEY_GAP = 24  # between the marks that a key explains
KEY_MARK = (34, 22)  # the box of a mark in a key
LETTER = 0.64  # width of a digit in the widest of the usual fonts, in units of the font size
BASE = 0.36  # from the middle of a digit to the baseline, in units of the font size

# Eight colours for blocks. Any two have a CIELAB distance of over 25, also for colour-blind readers
# (who lack one kind of cone), and each has a contrast of at least 3 with the background.
LIGHT = ("#145571", "#d67f1b", "#00aa73", "#c472da", "#863eff", "#941400", "#360074", "#53061a")
DARK = ("#2f85f4", "#e3621c", "#2dc66b", "#eb80a3", "#acf4ff", "#f0e442", "#a199dc", "#e1fad6")
# The colours of the background, of text, of neutral lines, and of every second step.
LIGHT_SHEET = ("#ffffff", "#1b1f24", "#8a929c", "#f1f3f6")
DARK_SHEET = ("#14181d", "#e8eaed", "#7d8792", "#20262d")
THEMES = {
    "light": (LIGHT, LIGHT_SHEET, colours.LIGHT),
    "dark": (DARK, DARK_SHEET, colours.DARK),
}

STYLE = """\
.collectives { max-width: 100%; height: auto; }
.collectives text { font-family: Helvetica, Arial, "DejaVu Sans", sans-serif; font-size: 12px; }
.collectives .head { font-size: 18px; font-weight: bold; }
.collectives .label, .collectives .content, .collectives .step { text-anchor: middle; }
.collectives .content { font-size: 11px; }
.collectives .lane { stroke-width: 1; }
.collectives .arrow { fill: none; stroke-width: 1.6; }
.collectives .thin .arrow { stroke-width: 0.8; }
.collectives .tip { stroke: none; }
.collectives .plus, .collectives .tick { fill: none; stroke-width: 2; stroke-linecap: round; }
.collectives .share { fill-opacity: 0.34; }
.collectives .slot { fill: none; stroke-width: 1; }
.collectives .new { fill: none; stroke-width: 1.6; }"""


class Part(NamedTuple):
    """A part of a picture: its size and its elements, with positions relative to its corner."""

    width: float
    height: float
    elements: list[str]


# A function that draws a part, given the width that it may have.
Drawn = Callable[[float], Part]


def element(tag: str, content: str = "", **attributes: str | float) -> str:
    words = [tag]
    for name, value in attributes.items():
        text = value if isinstance(value, str) else f"{round(value, 1):g}"
        words.append(f'{name.rstrip("_").replace("_", "-")}="{text}"')
    head = " ".join(words)
    return f"<{head}>{content}</{tag}>" if content else f"<{head}/>"


def text_at(text: str, x: float, y: float, **attributes: str | float) -> str:
    return element("text", html.escape(text, quote=False), x=x, y=y, **attributes)


def key(samples: Sequence[tuple[str, str]], y: float, width: float) -> Part:
    """Explain marks: each sample and its text, in as many lines as `width` needs. Local."""
    x = right = 0.0
    lines = []
    for sample, text in samples:
        wide = KEY_MARK[0] + 8 + 6.3 * len(text)  # words are narrower than digits
        if x and x + wide > width:
            x, y = 0.0, y + KEY_MARK[1] + 6
        lines.append(element("g", sample, class_="key", transform=f"translate({x:g} {y:g})"))
        lines.append(text_at(text, x + KEY_MARK[0] + 8, y + 4))
        x += wide
        right = max(right, x)
        x += KEY_GAP
    return Part(right, y + KEY_MARK[1] / 2, lines)


def tooltip(text: str) -> str:
    return f"<title>{html.escape(text, quote=False)}</title>"


def _rules(
    algorithm: str, blocks: Sequence[str], sheet: Sequence[str], algorithms: Sequence[str]
) -> Iterator[str]:
    """Write the colours as CSS rules: of an algorithm, of blocks, and of the sheet.

    The rules have colours and not variables, because presentation programs do not support these.
    """
    ground, ink, line, shade = sheet
    yield f".algorithm {{ fill: {algorithms[colours.number(algorithm)]}; }}"
    yield f".ground, .slot.empty {{ fill: {ground}; }}"
    yield f"text {{ fill: {ink}; }}"
    yield f".lane, .slot {{ stroke: {line}; }}"
    yield f".shade {{ fill: {shade}; }}"
    yield f".new {{ stroke: {ink}; }}"
    for number, colour in enumerate(blocks):
        on = max(("#000000", "#ffffff"), key=lambda each: contrast(each, colour))
        yield f".c{number} .fill, .c{number} .tip {{ fill: {colour}; }}"
        yield f".c{number}.arrow {{ stroke: {colour}; }}"
        yield f".c{number} .plus, .c{number} .tick {{ stroke: {on}; }}"
        yield f".c{number} .label {{ fill: {on}; }}"


def contrast(one: str, other: str) -> float:
    """Return the WCAG contrast of two colours, from 1 (none) to 21 (black on white). Local."""
    low, high = sorted(_luminance(each) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _scoped(rules: Iterator[str]) -> list[str]:
    """Restrict rules to pictures, because a page may include one in its own text."""
    lines = []
    for rule in rules:
        selectors, brace, body = rule.partition(" {")
        lines.append(", ".join(f".collectives {each}" for each in selectors.split(", ")))
        lines[-1] += brace + body
    return lines


def _colours(algorithm: str, theme: str | None) -> list[str]:
    """Write the rules of one theme, or of both, between which the reader's system chooses."""
    if theme not in (None, *THEMES):
        raise ArgumentError(
            f"theme is {theme!r}, and must be None, {' or '.join(map(repr, THEMES))}"
        )
    if theme:
        return _scoped(_rules(algorithm, *THEMES[theme]))
    light, dark = (_scoped(_rules(algorithm, *each)) for each in THEMES.values())
    return [*light, "@media (prefers-color-scheme: dark) {", *dark, "}"]


def _shifted(part: Part, x: float, y: float) -> str:
    at = f"translate({round(x, 1):g} {round(y, 1):g})"
    return "\n".join([f'<g transform="{at}">', *part.elements, "</g>"])


def _below(upper: Part, lower: Part) -> Part:
    y = upper.height + GAP
    elements = [_shifted(upper, 0, 0), _shifted(lower, 0, y)]
    return Part(max(upper.width, lower.width), y + lower.height, elements)


def _beside(left: Part, right: Part) -> Part:
    x = left.width + 2 * GAP
    elements = [_shifted(left, 0, 0), _shifted(right, x, 0)]
    return Part(x + right.width, max(left.height, right.height), elements)


def arranged(parts: Sequence[Drawn]) -> Part:
    """Put two parts below or beside each other, so that little of the sheet stays blank. Local."""
    if len(parts) == 1:
        return parts[0](WIDTH)
    draw, draw_too = parts
    one, other = draw(WIDTH), draw_too(WIDTH)
    whole = _below(one, other)
    if _blank(whole, one, other) < BLANK:
        return whole
    room = WIDTH - 2 * GAP
    pairs = [
        (_below, one, other),
        (_below, one, draw_too(max(one.width, NARROWEST))),
        (_below, draw(max(other.width, NARROWEST)), other),
        (_beside, one, draw_too(room - one.width)),
        (_beside, draw(room - other.width), other),
    ]
    found = []
    for put, left, right in pairs:
        whole = put(left, right)
        if put is _below or whole.width <= WIDTH:
            found.append((_blank(whole, left, right), whole))
    most = max(BLANK, min(blank for blank, _ in found) + 0.1)
    return min((whole for blank, whole in found if blank < most), key=lambda each: each.height)


def _blank(whole: Part, one: Part, other: Part) -> float:
    used = one.width * one.height + other.width * other.height
    return 1 - used / (max(NARROWEST, whole.width) * whole.height)


def document(
    proof: Proof,
    what: str,
    parts: Sequence[Drawn],
    theme: str | None = None,
    rules: Iterable[str] = (),
) -> str:
    """Put parts on a sheet, under the algorithm's name.

    `parts` are functions from the width that they may have to their drawings; `rules` are further
    CSS.
    """
    algorithm = proof.algorithm
    name = algorithm.title(proof.p, proof.root)
    about = (
        f"{algorithm.summary} {count(proof.p, 'rank')}, {count(proof.depth, 'step')}, "
        f"{count(sum(proof.messages), 'message')}, {count(proof.nblocks, 'block')}."
    )
    return sheet(
        (name, algorithm.summary),
        (f"{name}: {what}", about),
        arranged(parts),
        [*_colours(algorithm.name, theme), *rules],
        has_mark=True,
    )


def sheet(
    heading: tuple[str, str],
    about: tuple[str, str],
    drawing: Part,
    rules: Sequence[str] | None = None,
    has_mark: bool = False,
) -> str:
    """Put a drawing under a name and a summary; `about` has the title and the description."""
    if rules is None:
        rules = _colours("", None)
    name, summary = heading
    width = max(NARROWEST, drawing.width) + 2 * MARGIN
    lines = textwrap.wrap(summary, int((width - 2 * MARGIN) / (12 * LETTER)))
    y = MARGIN + 16.0
    body = [text_at(name, MARGIN + 22 * has_mark, y, class_="head")]
    if has_mark:
        body.insert(
            0, element("rect", class_="algorithm", x=MARGIN, y=y - 14, width=14, height=14, rx=3)
        )
    for line in lines:
        y += 18
        body.append(text_at(line, MARGIN, y))
    y += 22
    body.append(_shifted(drawing, MARGIN, y))
    height = y + drawing.height + MARGIN
    # Whole pixels, so that the background covers the last row and column of pixels.
    size = str(ceil(width)), str(ceil(height))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="collectives" role="img" '
            f'viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}">',
            tooltip(about[0]),
            f"<desc>{html.escape(about[1], quote=False)}</desc>",
            "<style>",
            *[STYLE, *rules],
            "</style>",
            element("rect", class_="ground", width=size[0], height=size[1]),
            *body,
            "</svg>\n",
        ]
    )


def colour_class(proof: Proof, block: int) -> str:
    """Return the class of a block's colour; in an alltoall, that of its source rank."""
    if between_pairs(proof):
        block //= proof.nblocks // proof.p
    return f"c{block % len(LIGHT)}"


def blocks_in_words(proof: Proof, blocks: Sequence[int]) -> str:
    """Name blocks in words."""
    if not between_pairs(proof):
        return named(blocks, "block")
    return f"block{'s' if len(blocks) != 1 else ''} {blocks_text(proof, blocks)}"
