"""Algorithms for a network that nobody wrote one for: bounds, trees, rounds, and their text.

In comes a network of `collectives.simulation`; out come a lower bound with its proof, and the
rounds of the fastest algorithm that was found, proven by `collectives.plans` and simulated. The
package measures nothing, runs nothing on ranks, and is imported by the command line alone. It needs
scipy; `exact`, the search with proofs for few ranks, needs OR-Tools instead.
"""
