"""Text for users: numbers and ranks in words, progress, places in a program, and files.

The functions turn numbers, names, errors and stack frames into strings for errors, warnings, tables
and terminals, and write files. Nothing here depends on algorithms, calls or MPI.
"""
