"""A function on the workers of a Dask cluster, each a rank.

The input is a client and a function; the output is a list of results. Ranks find each other
through variables of the scheduler. It starts no worker, and nothing is imported from Dask before
`run` is called.
"""

from collectives.dask.running import run

__all__ = ["run"]
