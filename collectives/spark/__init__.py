"""A function on the tasks of a Spark cluster, each a rank.

The input is a function; the output is a list of results. A barrier stage starts all ranks at
once and tells them where rank 0 serves. Nothing is imported from PySpark before `run` is called.
"""

from collectives.spark.running import run

__all__ = ["run"]
