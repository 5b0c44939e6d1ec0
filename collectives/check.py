"""Proofs of algorithms: the public names of `collectives.plans.proof`."""

import collectives.picture  # noqa: F401  (gives proofs their picture in notebooks)
from collectives.plans.proof import Proof, check
from collectives.plans.replay import Event, hazards

__all__ = ["Event", "Proof", "check", "hazards"]
