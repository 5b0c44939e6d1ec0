"""Every name of the reference has a docstring in the one form, which names its parameters."""

import ast
import importlib
import inspect
import re
import warnings
from functools import cache
from pathlib import Path

import pytest
from numpydoc.docscrape import NumpyDocString

import collectives
from collectives import Communicator, Request

# The sections in their order.
ORDER = ["Parameters", "Returns", "Yields", "Attributes", "Raises", "Warns", "Notes"]
ORDER += ["References", "Examples"]

PAGES = Path(__file__).parents[2] / "docs" / "reference"
DIRECTIVE = re.compile(
    r"\.\. (?P<kind>currentmodule|auto\w+):: (?P<name>[\w.]+)\n(?:   :members:(?P<members>.*))?"
)
FRAMEWORKS = ("flwr", "jax", "keras", "optax", "tensorflow", "torch")


def loaded(name):
    """Return a module, or None if it needs a framework that is not here."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        cause = error if error.name is not None else error.__cause__
        if getattr(cause, "name", None) in FRAMEWORKS:
            return None
        raise


def found(name):
    """Return the object that a dotted name stands for, or None if its framework is not here."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            value = loaded(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:] if value is not None else ():
            by = getattr if inspect.ismodule(value) else inspect.getattr_static
            value = by(value, part)  # a module may load it
            value = getattr(value, "__func__", value)
        return value
    raise LookupError(name)


def members(owner, wanted):
    """Yield the functions and properties of a class, or of a module, that a page describes."""
    for name in wanted or [name for name in vars(owner) if not name.startswith("_")]:
        value = inspect.getattr_static(owner, name)
        if isinstance(value, property) or callable(value):
            yield name, getattr(value, "__func__", value)


def public():
    """Return what the pages of the reference describe by its docstring, by its name there."""
    described = {}
    for page in sorted(PAGES.glob("*.md")):
        module = ""
        for each in DIRECTIVE.finditer(page.read_text()):
            if each["kind"] == "currentmodule":
                module = each["name"]
                continue
            own = each["name"].startswith("collectives")
            name = each["name"] if own else f"{module}.{each['name']}"
            value = found(name)
            if value is None:
                continue
            described[name] = value
            if each["members"] is not None:
                wanted = each["members"].replace(",", " ").split()
                described |= {f"{name}.{key}": item for key, item in members(value, wanted)}
    return described


PUBLIC = public()
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isroutine(value)}
CALLABLE = {name: value for name, value in PUBLIC.items() if callable(value)}


def summary(value):
    """Return the first paragraph."""
    return inspect.getdoc(value).partition("\n\n")[0].strip()


def parsed(value):
    return parsed_text(inspect.getdoc(value))


@cache
def parsed_text(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpydoc warns of sections that it does not know
        return NumpyDocString(text)


def listed(value, steps=2):
    """Return the Parameters section, or that of the function that the summary points to."""
    if parsed(value)["Parameters"] or not steps:
        return parsed(value)["Parameters"]
    for name in re.findall(r"`([\w.]+)`", summary(value)):
        for full, other in FUNCTIONS.items():
            if f".{full}".endswith(f".{name}") and other is not value:
                found = listed(other, steps - 1)
                if found:
                    return found
    return []


def test_nothing_is_overlooked():
    assert {"collectives.check.check", "collectives.Communicator.allreduce"} <= set(FUNCTIONS)
    assert {"collectives.Request.wait", "collectives.errors.StallError"} <= set(PUBLIC)
    assert len(FUNCTIONS) > 200


def begins_with_a_sentence(name):
    assert inspect.getdoc(PUBLIC[name]), "there is no docstring"
    text = summary(PUBLIC[name])
    assert text[0].isupper() or text[0] in "`'\""
    assert text.endswith((".", "::"))


def says_what_to_do_and_who_must_call_it(name):
    text = summary(FUNCTIONS[name])
    assert not re.match(r"[A-Z][a-z]+s ", text), "the first line is imperative"
    assert re.search(r"(^|[.;`] |\n)(Collective|Local)\b", text), "neither Collective nor Local"


def has_known_sections_in_order(name):
    if inspect.ismodule(PUBLIC[name]):
        return
    parsed(PUBLIC[name])
    found = re.findall(r"^(\w[\w ]*)\n-{3,}$", inspect.getdoc(PUBLIC[name]), re.MULTILINE)
    assert found == sorted(found, key=ORDER.index)


def has_the_parameters_of_the_signature(name):
    value = CALLABLE[name]
    sections = parsed(value)
    names = [
        word for each in sections["Parameters"] for word in each.name.replace("*", "").split(", ")
    ]
    try:
        taken = [
            each for each in inspect.signature(value).parameters if each not in ("self", "cls")
        ]
    except ValueError:  # a class of the core, or an exception
        taken = []
    if inspect.isclass(value):
        # Records list their fields, which are what makes them, as attributes, or need no list.
        fields = [
            word
            for each in sections["Attributes"]
            for word in each.name.replace("*", "").split(", ")
        ]
        assert set(taken) <= {*names, *fields} or not (names or fields)
    elif names:
        assert sorted(names) == sorted(taken)
    else:
        named = re.findall(r"`(\w+)`", summary(value))
        assert set(taken) <= set(named) or listed(value), f"{taken} stand nowhere"


# One test for each rule and all names of a room: there are hundreds of names.
RULES = [
    (begins_with_a_sentence, PUBLIC),
    (says_what_to_do_and_who_must_call_it, FUNCTIONS),
    (has_known_sections_in_order, PUBLIC),
    (has_the_parameters_of_the_signature, CALLABLE),
]


def room(name):
    """Return the package or module at the top level that a name is in."""
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize(("rule", "names"), RULES, ids=[rule.__name__ for rule, _ in RULES])
@pytest.mark.parametrize("where", sorted({room(name) for name in PUBLIC}))
@pytest.mark.usual(*[rule.__name__ for rule, _ in RULES])
def test_every_docstring(rule, names, where):
    faults = {}
    for name in names:
        if room(name) == where:
            try:
                rule(name)
            except (AssertionError, Warning) as fault:
                faults[name] = str(fault).partition("\n")[0]
    assert not faults


@pytest.mark.parametrize("name", [n for n in dir(Communicator) if not n.startswith("_")])
def test_collectives_say_what_they_raise(name):
    value = getattr(Communicator, name)
    if not callable(value) or "Collective" not in summary(value):
        return
    assert parsed(value)["Raises"] or listed(value)


# They need other things than ranks: a rank that is lost, no MPI, or a GPU.
WITHOUT_EXAMPLE = {"agree", "from_rendezvous", "device_transports"}


def test_calls_have_an_example():
    """Or they name a call that has one."""
    homes = "collectives", "collectives.Communicator", "collectives.Cart"
    calls = {name: value for name, value in FUNCTIONS.items() if name.rpartition(".")[0] in homes}

    def has_example(value, steps=1):
        named = re.findall(r"`([\w.]+)`", summary(value)) if steps else []
        others = (
            f"collectives.Communicator.{name.removeprefix('Communicator.')}" for name in named
        )
        return parsed(value)["Examples"] or any(
            has_example(calls[other], steps - 1) for other in others if other in calls
        )

    lacking = {
        name.rpartition(".")[2]
        for name, value in calls.items()
        if inspect.signature(value).parameters.keys() - {"self"} and not has_example(value)
    }
    assert len(calls) > 100
    assert lacking == WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", ["test", "wait"])
def test_requests_say_what_they_raise(name):
    assert parsed(getattr(Request, name))["Raises"]


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "send", "allreduce_object", "plan"])
def test_functions_have_the_parameters_of_the_methods(name):
    expected = list(inspect.signature(getattr(Communicator, name)).parameters.values())[1:]
    assert list(inspect.signature(getattr(collectives, name)).parameters.values()) == expected
    doc = inspect.getdoc(getattr(collectives, name))
    assert f"`Communicator.{name}` on the default communicator. " in doc
    method = inspect.getdoc(getattr(Communicator, name))
    assert doc.split("\n\n")[1:] == method.split("\n\n")[1:]


def exports(tree):
    """Return the names that a module exports, by `__all__` or ``import name as name``."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            found |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
        elif isinstance(node, ast.ImportFrom):
            found |= {each.name for each in node.names if each.name == each.asname}
    return found


def manuals(node, public):
    """Yield the names that are not public, but are documented as if they were."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name not in public:
            text = ast.get_docstring(each) or ""
            if re.search(r"^(Parameters|Returns|Yields|Raises)\n---", text, re.MULTILINE):
                yield each.name
            yield from manuals(each, public)


def test_internals_have_a_line_and_no_manual():
    """Public are the names that some module exports; all of a public class is."""
    package = Path(collectives.__file__).parent
    trees = {path: ast.parse(path.read_text()) for path in package.rglob("*.py")}
    public = set().union(*map(exports, trees.values()))
    public |= {base.__name__ for each in PUBLIC.values() for base in getattr(each, "__mro__", ())}
    public |= {name.rpartition(".")[2] for name in PUBLIC}
    found = {
        str(path.relative_to(package)): list(manuals(tree, public)) for path, tree in trees.items()
    }
    assert not {path: names for path, names in found.items() if names}
