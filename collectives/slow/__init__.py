"""Ranks in Python, on machines without the core: threads, or processes that meet on this host.

`core` stands in for ``collectives._core``: it has the classes that `calls` and `choice` use. A call
comes in with NumPy arrays, and goes through the same checks, plans and errors as in the core; its
rounds run here step by step, with NumPy's arithmetic, so that results have the same bits. Nothing
here promises speed, or uses modules that only Unix has, signals, or memory that processes share.
"""
