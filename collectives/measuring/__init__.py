"""What ``collectives bench``, ``tune`` and ``doctor`` measure with, for any program.

In come a communicator and what is to be compared; out go times, rows of a report, profiles and
findings, as data. Nothing is parsed or printed here.
"""
