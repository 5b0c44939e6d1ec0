"""Jobs in the worker processes of engines such as Dask, whose processes live longer than jobs.

The input is a store of the engine and a function for a rank; the output is its result, or its
failure with the host. Nothing here imports an engine, places ranks, or starts a process. Data is
pickled as the engine pickles its own tasks, and trusted as these are.
"""
