"""Networks from files: ranks and switches, and the links between them.

A file of ``--topology`` is JSON::

    {
      "ranks": 4,
      "links": [
        ["switch", 0, "1Gbit/s"],
        ["switch", 1, "1Gbit/s"],
        ["switch", 2, "1Gbit/s"],
        ["switch", 3, "250Mbit/s", "20us"]
      ],
      "alpha": "10us", "gamma": "20GB/s", "delay": "0"
    }

Numbers are ranks, and names are switches or hosts. Each link lists its two ends, its speed and, if
it is not 0, its latency. A link has this speed in each direction; a link of ``one_way`` only from
its first end to its second. A message takes alpha, and then the path with the lowest latency and,
among several, the one with the fewest links.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Union

from collectives.errors import ArgumentError
from collectives.simulation import topology_text
from collectives.simulation.networks import Links
from collectives.text.words import count, error_text, named, shown

Node = Union[int, str]
Way = tuple[float, list[tuple[Node, Node]]]
NUMBERS = ("alpha", "gamma", "delay")
KEYS = ("ranks", "links", "one_way", *NUMBERS)


class Graph:
    """A network as it is in a file; `make` returns it as a machine to simulate on.

    `text` is the name of the file, for tables and errors.
    """

    alpha: float
    gamma: float
    delay: float

    def __init__(self, path: str) -> None:
        self.text = path
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
        except (OSError, ValueError) as error:
            raise self._wrong(f"it cannot be read: {error_text(error)}") from error
        if not isinstance(document, dict) or not isinstance(document.get("ranks"), int):
            raise self._wrong('it must be an object with "ranks": 4 and "links": [[0, 1, "1GB/s"]]')
        unknown = [key for key in document if key not in KEYS]
        if unknown:
            raise self._wrong(f"it has {unknown[0]!r}, and may have: {', '.join(KEYS)}")
        self.p: int = int(document["ranks"])
        self.alpha, self.gamma, self.delay = (
            self._read(key, topology_text.COMMON[key][0], document[key])
            if key in document
            else topology_text.COMMON[key][1]
            for key in NUMBERS
        )
        self.links: dict[tuple[Node, Node], float] = {}
        self.neighbours: dict[Node, list[tuple[Node, float]]] = {}
        for both, key in ((True, "links"), (False, "one_way")):
            listed = document.get(key, [])
            if not isinstance(listed, list):
                raise self._wrong(f"{key} is {shown(listed)}, and must be a list of links")
            for each in listed:
                self._add(each, both)
        self._ways: dict[int, dict[Node, Way]] = {}
        self._check_connected(both=not document.get("one_way"))

    def _wrong(self, text: str) -> ArgumentError:
        return ArgumentError(f"--topology {self.text}: {text}")

    def _read(self, where: str, read: Callable[[str], float], value: Any) -> float:
        """Read a time or a speed of the file; an error names the place."""
        try:
            return read(str(value))
        except ArgumentError as error:
            raise self._wrong(f"{where}: {str(error).removeprefix('--topology: ')}") from None

    def _add(self, link: Any, both: bool) -> None:
        """Add a link of the file, ``[end, end, speed, latency]``."""
        if not isinstance(link, list) or len(link) not in (3, 4):
            raise self._wrong(
                f'{shown(link)} is not a link such as [0, "switch", "1Gbit/s", "5us"]'
            )
        a, b = link[:2]
        for node in (a, b):
            if isinstance(node, bool) or not isinstance(node, int | str):
                raise self._wrong(f"the link {shown(link)} ends at {shown(node)}, which is no node")
            if isinstance(node, int) and not 0 <= node < self.p:
                ranks = count(self.p, "rank")
                raise self._wrong(f"the link {link} ends at rank {node}, and there are {ranks}")
        if a == b or (a, b) in self.links:
            raise self._wrong(f"the link {link} is there twice, or joins a node to itself")
        where = f"the link {shown(link)}"
        rate = self._read(where, topology_text.rate, link[2])
        if rate == 0:  # a time per byte, by which bytes would cross the link at once
            raise self._wrong(f"{where} has no speed above 0")
        latency = self._read(where, topology_text.seconds, link[3]) if len(link) > 3 else 0.0
        for source, target in ((a, b), (b, a)) if both else ((a, b),):
            self.links[source, target] = rate
            self.neighbours.setdefault(source, []).append((target, latency))

    def _check_connected(self, both: bool) -> None:
        if self.p < 1:
            raise self._wrong(f"it has {count(self.p, 'rank')}, and needs one at least")
        for source in range(1 if both else self.p):
            reached = self._reached(source)
            lost = [rank for rank in range(self.p) if rank not in reached]
            if lost:
                raise self._wrong(
                    f"it is not connected: there is no way from rank {source} to {named(lost)}"
                )

    def _reached(self, source: int) -> dict[Node, Way]:
        """Return the best way from a rank to every node (Dijkstra)."""
        known = self._ways.get(source)
        if known is not None:
            return known
        done: dict[Node, Way] = {}
        number = 0
        heap: list[tuple[float, int, int, Node, list[tuple[Node, Node]]]] = [
            (0.0, 0, 0, source, [])
        ]
        while heap:
            far, hops, _, node, way = heappop(heap)
            if node in done:
                continue
            done[node] = far, way
            for other, latency in self.neighbours.get(node, []):
                if other not in done:
                    number += 1
                    entry = far + latency, hops + 1, number, other, [*way, (node, other)]
                    heappush(heap, entry)
        self._ways[source] = done
        return done

    def make(self, p: int) -> Links:
        """Return the network, which has `p` ranks. Local."""
        if p != self.p:
            raise self._wrong(f"it has {count(self.p, 'rank')}, not {p}")

        def route(source: int, target: int) -> Way:
            far, way = self._reached(source)[target]
            return self.alpha + far, way

        return Links(self.p, self.links, route, self.gamma, delay=self.delay)

    def numbers(self) -> str:
        """Return a description of the network. Local."""
        return f"{self.text}: {count(self.p, 'rank')}, {count(len(self.links), 'link')}"


def machine(text: str) -> topology_text.Machine | Graph:
    """Return the machine of ``--topology``: a text, or the name of a file. Local."""
    return Graph(text) if text.endswith(".json") else topology_text.Machine(text)
