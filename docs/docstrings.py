"""The docstrings as Sphinx gets them: names become links wherever they are defined."""

from __future__ import annotations

import re
import sys
from typing import Any

from docutils import nodes

HEADING = re.compile(r"[-=]{3,}$")


def setup(app: Any) -> dict[str, bool]:
    """Join the build of Sphinx."""
    # Before numpydoc, which has 500.
    app.connect("autodoc-process-docstring", without_headings, priority=400)
    app.connect("missing-reference", imported)
    return {"parallel_read_safe": True}


def without_headings(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn the headings of a module's docstring into rubrics: a page has sections of its own."""
    if what != "module":
        return
    for number in range(len(lines) - 1, 0, -1):
        if HEADING.match(lines[number]) and lines[number - 1].strip():
            lines[number - 1 : number + 1] = [f".. rubric:: {lines[number - 1]}", ""]


def imported(app: Any, env: Any, node: Any, text: nodes.Node) -> nodes.Node | None:
    """Resolve a name in single backticks that its module has imported; leave others as code.

    Most of them are the names of arguments.
    """
    if node.get("refdomain") != "py" or node.get("reftype") != "obj":
        return None
    found: Any = sys.modules.get(node.get("py:module") or "collectives")
    for part in node["reftarget"].split("."):
        found = getattr(found, part, None)
    if getattr(found, "__qualname__", None) is None:
        return text
    target = f"{found.__module__}.{found.__qualname__}"
    domain = env.get_domain("py")
    link = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, text)
    return link or text
