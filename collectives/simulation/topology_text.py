"""``--topology``: a machine to simulate on, written as text."""

from __future__ import annotations

import re
from collections.abc import Callable

from collectives.errors import ArgumentError
from collectives.simulation.networks import (
    ALPHA,
    BETA,
    GAMMA,
    FatTree,
    Flat,
    Hosts,
    Topology,
    Torus,
)
from collectives.text.words import count, known, time_text

HELP = (
    "flat; hosts=8 (ranks on each) or hosts=512x8; fattree=8 or fattree=512x8, with per_switch=16 "
    "and oversubscription=2; torus=16x16x16 or torus (as square as can be); and for each, after a "
    "comma, alpha=1us, beta=12.5GB/s, gamma=20GB/s, delay=0; inside_alpha=, inside_beta= and "
    "memory= of a host; hop= of a torus"
)
WHERE = "collectives simulate --help describes them"
KINDS = ("flat", "hosts", "fattree", "torus")
INSIDE_ALPHA, INSIDE_BETA = 0.2e-6, 0.05e-9
PER_SWITCH, OVERSUBSCRIPTION = "16", "2"
TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTES = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
SPEEDS = {**BYTES, **{name.replace("B/s", "bit/s"): speed / 8 for name, speed in BYTES.items()}}


def seconds(text: str) -> float:
    """Read the time `text`: ``1us``, ``200ns``, ``1e-6``. Local."""
    return _read(text, TIMES, "a time such as 1us, 200ns or 1e-6")


def rate(text: str) -> float:
    """Read `text` as seconds per byte: ``12.5GB/s``, ``100Gbit/s``, or ``0.08ns``. Local."""
    try:
        speed = _read(text, SPEEDS, "")
    except ArgumentError:
        return _read(text, TIMES, "a speed such as 12.5GB/s or 100Gbit/s, or a time per byte")
    if speed == 0:
        raise ArgumentError(f"--topology: a speed of {text!r} would never end")
    return 1 / speed


def _read(text: str, units: dict[str, float], wanted: str) -> float:
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) *([A-Za-z/]*)", text.strip())
    if match is None or match[2] not in units:
        raise ArgumentError(f"--topology: {text!r} is not {wanted}")
    try:
        return float(match[1]) * units[match[2]]
    except ValueError:
        raise ArgumentError(f"--topology: {text!r} is not {wanted}") from None


def topology(text: str) -> tuple[str, Callable[[int], Topology]]:
    """Read a topology from `text`; return its name and a function from p to the machine. Local."""
    kind, size, options = _words(text)
    alpha = seconds(options.pop("alpha", str(ALPHA)))
    beta = rate(options.pop("beta", str(BETA)))
    gamma = rate(options.pop("gamma", str(GAMMA)))
    delay = seconds(options.pop("delay", "0"))
    lengths = _lengths(kind, size)
    make: Callable[[int], Topology]
    if kind == "flat":

        def make(p: int) -> Topology:
            return Flat(p, alpha, beta, gamma, delay=delay)

    elif kind == "torus":
        hop = seconds(options.pop("hop", "0"))

        def make(p: int) -> Topology:
            shape = lengths or _square(p)
            torus = Torus(shape, alpha, beta, gamma, hop, delay=delay)
            if torus.p != p:
                raise ArgumentError(f"a torus of {size} has {torus.p} ranks, not {p}")
            return torus

    else:
        inside = (
            seconds(options.pop("inside_alpha", str(INSIDE_ALPHA))),
            rate(options.pop("inside_beta", str(INSIDE_BETA))),
        )
        memory = rate(options.pop("memory")) if "memory" in options else None
        per_switch = _whole("per_switch", options.pop("per_switch", PER_SWITCH))
        narrower = _read(
            options.pop("oversubscription", OVERSUBSCRIPTION), {"": 1.0}, "a number of times"
        )
        ranks = lengths[-1]

        def make(p: int) -> Topology:
            each = min(ranks, p)
            hosts, odd = divmod(p, each)
            if odd:
                raise ArgumentError(f"{p} ranks do not fill hosts of {ranks}")
            if len(lengths) > 1 and hosts > lengths[0]:
                raise ArgumentError(f"{lengths[0]} hosts of {ranks} have no {p} ranks")
            rates = (alpha, beta, gamma, inside, memory)
            if kind == "hosts":
                return Hosts(hosts, each, *rates, delay=delay)
            return FatTree(hosts, each, per_switch, narrower, *rates, delay=delay)

    if options:
        raise ArgumentError(f"--topology {kind} has no option {next(iter(options))!r} ({WHERE})")
    return text, make


def _words(text: str) -> tuple[str, str, dict[str, str]]:
    """Read a topology as its kind, its size, and its options, still as text."""
    head, *rest = [word.strip() for word in text.split(",")]
    kind, _, size = head.partition("=")
    if kind not in KINDS:
        raise ArgumentError(f"--topology has no {kind!r}; {known(kind, KINDS, 'it has')} ({WHERE})")
    options = {}
    for word in rest:
        name, equals, value = word.partition("=")
        if not equals:
            raise ArgumentError(f"--topology: {word!r} is not an option such as alpha=1us")
        options[name] = value
    return kind, size, options


def numbers(text: str) -> str:
    """Return a topology that `topology` can read, with all its numbers, in words. Local.

    Examples
    --------
    >>> numbers("flat,alpha=2us")
    'a flat network: alpha 2 us, beta 12.5 GB/s, gamma 20 GB/s'
    """
    kind, size, options = _words(text)
    lengths = _lengths(kind, size)

    def speed(name: str, default: float) -> str:
        each = rate(options.get(name, str(default)))
        if not each:
            return "0 s/B"
        unit = max((size, unit) for unit, size in BYTES.items() if size * each <= 1 or size == 1)[1]
        return f"{1 / each / BYTES[unit]:.4g} {unit}"

    parts = [
        f"alpha {time_text(seconds(options.get('alpha', str(ALPHA))))}",
        f"beta {speed('beta', BETA)}",
        f"gamma {speed('gamma', GAMMA)}",
    ]
    for name in ("delay", "hop"):
        if name in options:
            parts.append(f"{name} {time_text(seconds(options[name]))}")
    if kind in ("hosts", "fattree"):
        inside = time_text(seconds(options.get("inside_alpha", str(INSIDE_ALPHA))))
        parts.append(f"inside a host {inside}, {speed('inside_beta', INSIDE_BETA)}")
    if kind == "fattree":
        parts.append(f"{options.get('per_switch', PER_SWITCH)} hosts below a switch")
        parts.append(f"oversubscription {options.get('oversubscription', OVERSUBSCRIPTION)}")
    hosts = f"hosts of {count(lengths[-1], 'rank')}" if lengths else ""
    if len(lengths) > 1:
        hosts = f"{lengths[0]} {hosts}"
    machine = {
        "flat": "a flat network",
        "hosts": hosts,
        "fattree": f"a fat tree of {hosts}",
        "torus": f"a torus of {' x '.join(map(str, lengths))}" if lengths else "a torus",
    }[kind]
    return f"{machine}: {', '.join(parts)}"


def _lengths(kind: str, size: str) -> tuple[int, ...]:
    """Read ``512x8``."""
    if kind == "flat" and size:
        raise ArgumentError(f"--topology flat takes no size, not {size!r}; ranks come from -p")
    if not size:
        return () if kind in ("flat", "torus") else (8,)
    lengths = tuple(_whole(kind, word) for word in size.split("x"))
    if kind in ("hosts", "fattree") and len(lengths) > 2:
        raise ArgumentError(f"--topology {kind}={size}: it is {kind}=512x8, hosts by ranks on each")
    return lengths


def _whole(what: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"--topology: {what} is {text!r}, not a whole number of at least 1")
    return int(text)


def _square(p: int) -> tuple[int, ...]:
    """Return the three lengths of a torus of `p` ranks that is as close to a cube as possible."""
    best = (1, 1, p)
    for a in range(1, round(p ** (1 / 3)) + 1):
        if p % a == 0:
            b = max(k for k in range(1, int((p // a) ** 0.5) + 1) if p // a % k == 0)
            best = min(best, (a, b, p // a // b), key=max)
    return best
