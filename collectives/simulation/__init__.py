"""Algorithms in simulated time, on real or imaginary networks.

`simulate.simulate` takes an algorithm, a number of bytes and a machine (`networks`), and returns a
`result`: the time, the traffic, and the critical path. Networks of thousands of ranks are simulated
with arrays (`columns`, `clock`). Nothing is measured here, and nothing runs on real ranks.
"""
