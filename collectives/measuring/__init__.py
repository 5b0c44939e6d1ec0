"""The measurements of ``collectives bench``, ``tune`` and ``doctor``, for use by any program.

The functions take a communicator and the things to compare, and return times, rows of a report,
profiles and findings, as data. Nothing is parsed or printed here.
"""
