"""Machines to simulate on: public names of `collectives.simulation`."""

from collectives.simulation.networks import (
    FatTree,
    Flat,
    Hosts,
    Links,
    Network,
    Topology,
    Torus,
)

__all__ = [
    "FatTree",
    "Flat",
    "Hosts",
    "Links",
    "Network",
    "Topology",
    "Torus",
]
