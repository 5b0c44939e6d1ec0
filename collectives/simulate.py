"""Algorithms in simulated time: the public names of `collectives.simulation`."""

from collectives.simulation.result import Simulation, Transfer
from collectives.simulation.simulate import simulate

__all__ = ["Simulation", "Transfer", "simulate"]
