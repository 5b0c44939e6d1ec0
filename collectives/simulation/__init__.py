"""Algorithms in simulated time, on machines that need not exist.

In come an algorithm, a number of bytes and a machine (`networks`, `host`); out goes a `result`:
the time, who was busy, what lies on the critical path. Networks of thousands of ranks run as
arrays (`traffic`, `clock`), one host's shared memory step by step (`steps`, `shared`). Nothing is
measured here, and nothing runs on real ranks.
"""
