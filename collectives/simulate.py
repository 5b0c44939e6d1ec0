"""Algorithms in simulated time: the door to `collectives.simulation`."""

from collectives.simulation.result import Simulation, Transfer
from collectives.simulation.simulate import simulate

__all__ = ["Simulation", "Transfer", "simulate"]
