"""Every public name has a docstring in the one form, which names the parameters that there are."""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import warnings
from functools import cache

import pytest
from numpydoc.docscrape import NumpyDocString

import collectives
from collectives import Communicator, Request

# The sections in their order.
ORDER = ["Parameters", "Returns", "Yields", "Attributes", "Raises", "Notes", "References"]
ORDER += ["Examples"]

# The commands' own modules are no interface; their help texts are under test with the commands.
# What binds to CuPy can be imported only where that is, and the interface to drivers says once that
# all of it is local. To import `as_horovod` is to use it.
INTERNAL = re.compile(r"collectives\.(_|cli|__main__|as_horovod|devices\.(cupy_|driver))")
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


def modules():
    """Yield the modules with public names, the package first."""
    yield collectives
    # Packages are imported to see what is in them; one whose framework is missing has nothing.
    for info in pkgutil.walk_packages(collectives.__path__, "collectives.", lambda name: None):
        module = None if INTERNAL.match(info.name) else loaded(info.name)
        if hasattr(module, "__all__"):
            yield module


def members(owner):
    """Yield the public functions and properties of a class, inherited ones too.

    Its fields stand in its own docstring.
    """
    for base in owner.__mro__:
        for name, value in vars(base).items() if base.__module__.startswith("collectives") else ():
            if not name.startswith("_") and (isinstance(value, property) or callable(value)):
                yield name, value


def public():
    """Return what must have a docstring, by the first of its names."""
    found = {}
    for module in modules():
        found.setdefault(id(module), (module.__name__, module))
        for name in module.__all__:
            value = getattr(module, name)
            if not inspect.isclass(value) and not inspect.isroutine(value):
                continue
            found.setdefault(id(value), (f"{module.__name__}.{name}", value))
            for member, each in members(value) if inspect.isclass(value) else ():
                found.setdefault(id(each), (f"{module.__name__}.{name}.{member}", each))
    return dict(found.values())


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
    assert len(FUNCTIONS) > 30


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
        taken = [each for each in inspect.signature(value).parameters if each != "self"]
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


# One test for each and all names of a room: there are thousands of names.
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


@pytest.mark.parametrize("name", ["test", "wait"])
def test_requests_say_what_they_raise(name):
    assert parsed(getattr(Request, name))["Raises"]
