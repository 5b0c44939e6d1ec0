"""The docstrings as Sphinx gets them: names become links to where they are described.

An object may be described under another module than the one that defines it: `collectives.check`
describes what users import from there, and `collectives.plans.proof` defines it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.util import logging

import collectives
from collectives import Reduction

HEADING = re.compile(r"[-=]{3,}$")


def setup(app: Any) -> dict[str, bool]:
    """Join the build of Sphinx."""
    # Before numpydoc, which has 500.
    app.connect("autodoc-process-docstring", without_headings, priority=400)
    app.connect("autodoc-process-docstring", without_sections, priority=400)
    app.connect("missing-reference", imported)
    app.connect("env-check-consistency", complete)
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


def without_sections(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keep the first paragraph of a function on the default communicator.

    It has the docstring of the method that it links to.
    """
    is_default = what == "function" and obj.__module__ == "collectives.default"
    if is_default and hasattr(collectives.Communicator, obj.__name__):
        del lines[lines.index("") :]


def imported(app: Any, env: Any, node: Any, text: nodes.Node) -> nodes.Node | None:
    """Resolve a name in single backticks that its module has imported; leave others as code.

    Most of them are the names of arguments.
    """
    if node.get("refdomain") != "py" or node.get("reftype") != "obj":
        return None
    domain = env.get_domain("py")
    module = sys.modules[node.get("py:module") or "collectives"]
    for scope in scopes(module):
        found = attribute(scope, node["reftarget"])
        name = getattr(found, "__qualname__", None)
        if name is None:
            continue
        for home in (found.__module__, *domain.modules):
            target = f"{home}.{name}"
            if target in domain.objects and attribute(sys.modules[home], name) is found:
                return domain.resolve_xref(
                    env, node["refdoc"], app.builder, "obj", target, node, text
                )
    return text


def attribute(found: Any, name: str) -> Any:
    """Return what a dotted name stands for in a module, or None."""
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def scopes(module: ModuleType) -> Iterator[ModuleType]:
    """Yield a module, and those that define what it exports: a docstring uses their names."""
    yield module
    public = [getattr(module, name) for name in getattr(module, "__all__", ())]
    homes = dict.fromkeys(getattr(value, "__module__", None) for value in public)
    yield from (sys.modules[home] for home in homes if home in sys.modules)


def complete(app: Any, env: Any) -> None:
    """Warn of public names that no page describes."""
    described = env.get_domain("py").objects
    public = {name: getattr(collectives, name) for name in collectives.__all__}
    for name, value in list(public.items()):
        if inspect.isclass(value) and not issubclass(value, Exception):
            for member in dir(value):
                field = inspect.isgetsetdescriptor(getattr(value, member))
                if not member.startswith("_") and not field:
                    public[f"{name}.{member}"] = getattr(value, member)
    for name, value in public.items():
        if isinstance(value, str) or inspect.ismodule(value) or isinstance(value, Reduction):
            continue  # fields and operations stand in other docstrings
        home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        if not {f"collectives.{name}", home} & described.keys():
            logging.getLogger(__name__).warning("no page describes collectives.%s", name)
