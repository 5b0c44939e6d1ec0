"""Jobs in the worker processes of engines such as Dask, whose processes live longer than jobs.

What comes in is a store of the engine and a function for a rank; what goes out is its result, or
its failure with the host. Nothing here imports an engine, places ranks, or starts a process. What
is sent is pickled as the engine pickles its own tasks, and trusted as these are.
"""
