"""Algorithms in simulated time, on real or imaginary machines.

`simulate.simulate` takes an algorithm, a number of bytes and a machine (`networks`, `host`), and
returns a `result`: the time, the traffic, and the critical path. Networks of thousands of ranks are
simulated with arrays (`traffic`, `clock`), the shared memory of one host step by step (`steps`,
`shared`). Nothing is measured here, and nothing runs on real ranks.
"""
