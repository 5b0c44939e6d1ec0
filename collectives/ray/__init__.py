"""A function on actors of a Ray cluster, each a rank.

The input is a function, or one after another; the output are results in the order of ranks.
Ray places the actors, and one more actor tells ranks of each other. Nothing is imported from Ray
before ranks are started.
"""

from collectives.ray.executor import Executor, Settings
from collectives.ray.running import run

__all__ = ["Executor", "Settings", "run"]
