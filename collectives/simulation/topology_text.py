"""``--topology``: a machine to simulate on, written as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

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
    "memory= of a host; hop= of a torus; or a file such as mine.json with ranks, switches and links"
)
WHERE = "collectives simulate --help describes them"
TIMES = {"": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
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


def _times(text: str) -> float:
    return _read(text, {"": 1.0}, "a number of times")


def _whole(what: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"--topology: {what} is {text!r}, not a whole number of at least 1")
    return int(text)


# The options of each kind of machine: the function that reads an option, and its default.
Option = tuple[Callable[[str], Any], Any]
COMMON: dict[str, Option] = {
    "alpha": (seconds, ALPHA),
    "beta": (rate, BETA),
    "gamma": (rate, GAMMA),
    "delay": (seconds, 0.0),
}
HOSTS: dict[str, Option] = {
    **COMMON,
    "inside_alpha": (seconds, 0.2e-6),
    "inside_beta": (rate, 0.05e-9),
    "memory": (rate, None),
}
KINDS: dict[str, dict[str, Option]] = {
    "flat": COMMON,
    "hosts": HOSTS,
    "fattree": {
        **HOSTS,
        "per_switch": (partial(_whole, "per_switch"), 16),
        "oversubscription": (_times, 2.0),
    },
    "torus": {**COMMON, "hop": (seconds, 0.0)},
}


class Machine:
    """A machine as text: its name, its numbers, and a function that makes it for p ranks."""

    values: dict[str, Any]
    kind: str
    size: str

    def __init__(self, text: str) -> None:
        self.text = text
        head, *words = [word.strip() for word in text.split(",")]
        self.kind, _, self.size = head.partition("=")
        if self.kind not in KINDS:
            told = known(self.kind, KINDS, "it has")
            raise ArgumentError(f"--topology has no {self.kind!r}; {told} ({WHERE})")
        options = KINDS[self.kind]
        self.given: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise ArgumentError(f"--topology: {word!r} is not an option such as alpha=1us")
            if name not in options:
                raise ArgumentError(f"--topology {self.kind} has no option {name!r} ({WHERE})")
            self.given[name] = options[name][0](value)
        self.lengths: tuple[int, ...] = _lengths(self.kind, self.size)
        self.values = {name: default for name, (_, default) in options.items()} | self.given

    def make(self, p: int) -> Topology:
        """Return the machine with `p` ranks. Local."""
        of = self.values
        rates = of["alpha"], of["beta"], of["gamma"]
        if self.kind == "flat":
            return Flat(p, *rates, delay=of["delay"])
        if self.kind == "torus":
            torus = Torus(self.lengths or _square(p), *rates, of["hop"], delay=of["delay"])
            if torus.p != p:
                raise ArgumentError(f"a torus of {self.size} has {torus.p} ranks, not {p}")
            return torus
        ranks = min(self.lengths[-1], p)
        hosts, odd = divmod(p, ranks)
        if odd:
            raise ArgumentError(f"{p} ranks do not fill hosts of {self.lengths[-1]}")
        if len(self.lengths) > 1 and hosts > self.lengths[0]:
            raise ArgumentError(f"{self.lengths[0]} hosts of {self.lengths[1]} have no {p} ranks")
        inside = (of["inside_alpha"], of["inside_beta"]), of["memory"]
        if self.kind == "hosts":
            return Hosts(hosts, ranks, *rates, *inside, delay=of["delay"])
        core = of["per_switch"], of["oversubscription"]
        return FatTree(hosts, ranks, *core, *rates, *inside, delay=of["delay"])

    def numbers(self) -> str:
        """Return a description of the machine with all its numbers. Local.

        Examples
        --------
        >>> Machine("flat,alpha=2us").numbers()
        'a flat network: alpha 2 us, beta 12.5 GB/s, gamma 20 GB/s'
        """
        of = self.values
        parts = [
            f"alpha {time_text(of['alpha'])}",
            f"beta {_speed(of['beta'])}",
            f"gamma {_speed(of['gamma'])}",
        ]
        parts += [
            f"{name} {time_text(of[name])}" for name in ("delay", "hop") if name in self.given
        ]
        if self.kind in ("hosts", "fattree"):
            parts.append(
                f"inside a host {time_text(of['inside_alpha'])}, {_speed(of['inside_beta'])}"
            )
        if self.kind == "fattree":
            parts.append(f"{of['per_switch']} hosts below a switch")
            parts.append(f"oversubscription {of['oversubscription']:g}")
        hosts = f"hosts of {count(self.lengths[-1], 'rank')}" if self.lengths else ""
        if len(self.lengths) > 1:
            hosts = f"{self.lengths[0]} {hosts}"
        machine = {
            "flat": "a flat network",
            "hosts": hosts,
            "fattree": f"a fat tree of {hosts}",
            "torus": f"a torus of {' x '.join(map(str, self.lengths))}"
            if self.lengths
            else "a torus",
        }[self.kind]
        return f"{machine}: {', '.join(parts)}"


def _speed(each: float) -> str:
    """Write seconds per byte as a speed."""
    if not each:
        return "0 s/B"
    unit = max((size, unit) for unit, size in BYTES.items() if size * each <= 1 or size == 1)[1]
    return f"{1 / each / BYTES[unit]:.4g} {unit}"


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


def _square(p: int) -> tuple[int, ...]:
    """Return the three lengths of a torus of `p` ranks that is as close to a cube as possible."""
    best = (1, 1, p)
    for a in range(1, round(p ** (1 / 3)) + 1):
        if p % a == 0:
            b = max(k for k in range(1, int((p // a) ** 0.5) + 1) if p // a % k == 0)
            best = min(best, (a, b, p // a // b), key=max)
    return best
