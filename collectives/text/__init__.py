"""Text for users: numbers and ranks in words, progress, places in a program.

The functions turn numbers, names and stack frames into strings for errors, warnings, tables and
terminals. Nothing here depends on algorithms, calls or MPI.
"""
