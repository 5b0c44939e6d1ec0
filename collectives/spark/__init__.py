"""A function on the tasks of a Spark cluster, each a rank.

What comes in is a function; what goes out is a list of results. A barrier stage starts all ranks at
once and tells them where rank 0 serves. Nothing is imported from PySpark before `run` is called.
"""

from collectives.spark.running import run

__all__ = ["run"]
