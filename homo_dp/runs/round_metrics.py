"""The numbers of a round, for indicators and MLflow: how good, how private, how expensive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from homo_dp.federation.mechanisms.base import PartyPlan
from homo_dp.federation.sessions.aggregator import RoundReport
from homo_dp.federation.sessions.party_session import Party
from homo_dp.federation.sessions.statement import epsilon_after, quoted_observer

NORM_BINS = 30
MOST_NORMS = 200_000

Numbers = dict[str, float]


def party_numbers(
    plans: Mapping[str, PartyPlan],
    sigmas: Mapping[str, float | None],
    report: RoundReport,
    private: bool,
) -> dict[str, Numbers]:
    """What each party's own history gets: epsilon so far by both accountants, noise, clipping and
    bytes.

    ``bytes`` counts the tensors that travelled to the party and, if it replied, back; it is left
    out where a cohort is drawn, because it would say who, or how many, took part.
    """
    observer = quoted_observer(plans)
    payload = payload_bytes(report.weights)
    everybody = set(plans) == {*report.replied, *report.missing}
    numbers: dict[str, Numbers] = {}
    for name, plan in plans.items():
        spent = epsilon_after(plan, observer, report.round) if private else None
        values: dict[str, float | None] = {
            "epsilon_pld": spent.pld if spent else None,
            "epsilon_rdp": spent.rdp if spent else None,
            "applied_sigma": sigmas.get(name),
            # 0 means no clipping
            "clip_norm": report.metrics.get("clip_norm", plan.clip_norm or None),
            "bytes": payload * (2 if name in report.replied else 1) if everybody else None,
        }
        numbers[name] = {key: float(value) for key, value in values.items() if value is not None}
    return numbers


def payload_bytes(weights: Mapping[str, torch.Tensor]) -> int:
    """The bytes of the tensors of one message."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def promised_numbers(plans: Mapping[str, PartyPlan], rounds: int) -> Numbers:
    """The largest epsilon over the parties after some rounds, quoted and by both accountants, by
    their plans alone.
    """
    observer = quoted_observer(plans)
    spent = [epsilon_after(plan, observer, rounds) for plan in plans.values()]
    known = [each for each in spent if each is not None]
    if not known or len(known) < len(spent):
        return {}
    numbers = {
        "epsilon": max(each.quoted for each in known),
        "epsilon_rdp": max(each.rdp for each in known),
    }
    pld = [each.pld for each in known if each.pld is not None]
    return numbers | ({"epsilon_pld": max(pld)} if len(pld) == len(known) else {})


def summed_up(numbers: Mapping[str, Numbers]) -> Numbers:
    """The round as a whole: the largest epsilon, sigma and clip norm over the parties, and all
    bytes.

    >>> summed_up({"a": {"epsilon_rdp": 1.0, "bytes": 8.0}, "b": {"epsilon_rdp": 2.0, "bytes": 8.0}})
    {'epsilon_rdp': 2.0, 'bytes': 16.0}
    """
    names = dict.fromkeys(name for values in numbers.values() for name in values)
    found = {
        name: [values[name] for values in numbers.values() if name in values] for name in names
    }
    return {name: sum(values) if name == "bytes" else max(values) for name, values in found.items()}


class GradientNorms:
    """Gradient norms before clipping, of the last batch of every round. LOCAL: they have no
    event.
    """

    def __init__(self) -> None:
        self._norms: dict[str, list[torch.Tensor]] = {}
        self._clip_norm = 0.0
        self._count = 0

    def look(self, parties: Mapping[str, Party]) -> None:
        """Take in what the mechanisms of all parties saw last."""
        for name, party in parties.items():
            seen = party.mechanism.local_norms() if self._count < MOST_NORMS else None
            if seen is not None:
                norms, self._clip_norm = seen[0].detach().float().cpu(), seen[1]
                self._norms.setdefault(name, []).append(norms[torch.isfinite(norms)])
                self._count += len(norms)

    def histogram(self) -> dict[str, Any] | None:
        """Counts per party in equal bins from 0 on, and the share above the clip norm; None if
        nothing was seen.
        """
        norms = {name: torch.cat(parts) for name, parts in self._norms.items() if parts}
        if not any(len(values) for values in norms.values()):
            return None
        top = max(
            2 * self._clip_norm, *(float(values.max()) for values in norms.values() if len(values))
        )
        return {
            "what": "gradient norms before clipping, last batch of every round",
            "local_only": True,
            "clip_norm": self._clip_norm,
            "edges": torch.linspace(0.0, top, NORM_BINS + 1).tolist(),
            "parties": {name: self._party(values, top) for name, values in norms.items()},
        }

    def _party(self, values: torch.Tensor, top: float) -> dict[str, Any]:
        return {
            "counts": [int(count) for count in torch.histc(values, NORM_BINS, 0.0, top)],
            "fraction_clipped": (
                float((values > self._clip_norm).double().mean()) if len(values) else 0.0
            ),
        }
