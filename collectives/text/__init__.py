"""What people read: numbers and ranks in words, tables, progress, places in a program.

In come numbers, names and stack frames; out go strings for errors, warnings, tables and terminals.
Nothing here knows of collectives, ranks' calls or MPI.
"""
