"""Proofs of algorithms: the door to `collectives.plans.proof`."""

from collectives.plans.proof import Event, Proof, check, hazards

__all__ = ["Event", "Proof", "check", "hazards"]
