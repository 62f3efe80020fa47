"""What a mechanism of one's own is made of, under the name that docs/extend.md has always given."""

from homo_dp.federation.mechanisms.base import (
    Combined,
    FederationFacts,
    Mechanism,
    PartyFacts,
    PartyPlan,
    Release,
    Update,
    Weights,
    weighted_mean,
)

__all__ = [
    "Combined",
    "FederationFacts",
    "Mechanism",
    "PartyFacts",
    "PartyPlan",
    "Release",
    "Update",
    "Weights",
    "weighted_mean",
]
