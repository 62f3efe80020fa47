"""DP-FedAvg (McMahan et al. 2018) with fixed or adaptive clipping (Andrew et al. 2021): a whole
user is hidden.

A round: a cohort is drawn -> every user trains and sends the difference to the global weights,
clipped as one vector, and one bit where clipping adapts -> noise, at the aggregator once or at
every party a share -> sum over a fixed denominator -> new weights and, from the noisy bits, the
clip norm of the next round.

Under masks a party holds one user or many, draws among them in secret, and sends its part of the
sum with its share of the noise: the aggregator then sees what a reader of the model sees.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from homo_dp.config.mechanisms import DP_FEDAVG
from homo_dp.config.privacy import UserKeys, keys_of
from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import (
    Combined,
    FederationFacts,
    PartyFacts,
    PartyPlan,
    Release,
    Update,
    Weights,
)
from homo_dp.federation.mechanisms.cohort_mechanism import (
    CohortMechanism,
    CohortSum,
    Contributions,
    batched,
)
from homo_dp.federation.mechanisms.flat_weights import Layout, check_module
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.mechanisms.masked_cohorts import MaskedCohorts
from homo_dp.federation.mechanisms.shared_noise import shared_figures, shared_note
from homo_dp.federation.mechanisms.user_noise import UserNoise, user_noise
from homo_dp.federation.protocol.messages import NUMBER, Field
from homo_dp.federation.protocol.round_sums import SUM
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.adaptive_clipping import HALF, QuantileTracker, centred_bits
from homo_dp.privacy.gradients.clipping import check_clip_norm, clip_factors, row_norms
from homo_dp.privacy.noise.grid import noised, noised_share
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum

log = logging.getLogger(__name__)


class DpFedAvg(CohortMechanism):
    """User-level noise on the sum of clipped updates.

    Guarantees:
        - one user moves the sum by at most the clip norm C of the round, and the sum of bits by
          1/2;
        - the noise on the sum has at least the standard deviation z_delta * C, of the C that
          clipped; it is added once, by the aggregator or in shares by the parties, and what carries
          it lies on the grid of that noise;
        - under masks that of any N - dropouts - colluders holders together does, and a part leaves
          only masked;
        - the sum is divided by a fixed number, so a missing reply lowers the sum and never the
          noise;
        - who was in a cohort stays with the aggregator: no output of a run says it.
    """

    capabilities = DP_FEDAVG
    message_fields: ClassVar[Mapping[str, Mapping[str, Field]]] = {"update": {"clip_bit": NUMBER}}

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        self.privacy = privacy = keys_of(config.privacy, UserKeys)
        # one process stands for all users, who are then the holders of the noise
        self.alone = len(facts.parties) == 1
        holders = (privacy.population or 0) if self.alone else len(facts.parties)
        self.numbers: UserNoise = user_noise(privacy, facts.rounds, holders)
        share = self.numbers.masked
        self.cohorts = (
            None if share is None else MaskedCohorts(self.numbers, share, facts.parameters)
        )
        if self.masked_sum is not None:  # what a party samples are its users
            rate = self.numbers.sampler.sample_rate
            drawn = {
                name: replace(party, sample_rate=rate, steps_per_round=1)
                for name, party in facts.parties.items()
            }
            self.facts = replace(facts, parties=drawn)
        self.adaptive = privacy.clips_adaptively
        self.first_clip_norm = (
            check_clip_norm(
                privacy.adaptive.initial_clip_norm, "privacy.adaptive.initial_clip_norm"
            )
            if self.adaptive
            else check_clip_norm(privacy.clip_norm, "privacy.clip_norm")
        )
        self.clip_norm = self.first_clip_norm
        self.not_finite = (
            # updates that were NaN or infinite; for the log of the process that trained them, never
            # released
            0
        )
        self._fit_clip_norm = self.clip_norm
        self._within = True

    @property
    def noise_at_parties(self) -> bool:
        """Whether each party adds its share of the noise."""
        return self.numbers.shares is not None

    @property
    def ledger_keeper(self) -> Literal["party", "aggregator"]:
        trusted = self.privacy.trust_aggregator or not self.noise_at_parties
        return "aggregator" if trusted and self.cohorts is None else "party"

    @property
    def masked_sum(self) -> PrivateSum | None:
        return None if self.cohorts is None or self.alone else self.cohorts.private_sum

    @property
    def noise_share(self) -> NoiseShare | None:
        return self.numbers.masked

    @property
    def noises_in_a_number(self) -> int:
        return max(len(self.facts.parties), self.numbers.sampler.population)

    @property
    def hides_cohort(self) -> bool:
        """Under masks everybody replies in every round, and only a holder itself knows which of
        its users are in.
        """
        return self.privacy.sampling != "everyone" and self.masked_sum is None

    def plan(self, party: PartyFacts) -> PartyPlan:
        numbers, privacy, clip_norm = self.numbers, self.privacy, self.first_clip_norm
        own = self.ledger_keeper == "party"
        return PartyPlan(
            noise_multiplier=numbers.noise_multiplier,
            sigma=numbers.share_sigma(clip_norm) if own else numbers.sum_sigma(clip_norm),
            clip_norm=clip_norm,
            relation=numbers.sampler.relation,
            delta=privacy.users_delta,
            rounds=party.rounds,
            events=numbers.events,
            releases=(self._released(),),
            noise_to_signal=numbers.update_multiplier
            * math.sqrt(self.facts.parameters)
            / numbers.cohort_size,
            notes=self._notes(),
            extra={
                "population": numbers.sampler.population,
                "cohort_size": numbers.cohort_size,
                "sampling": privacy.sampling,
                "clipping": privacy.clipping,
                "first_clip_norm": clip_norm,
                "noise_at": privacy.noise_at,
                "tolerated_dropouts": privacy.tolerated_dropouts,
                "update_noise_multiplier": numbers.update_multiplier,
                "bit_noise": numbers.bit_noise,
                **self._shared_figures,
            },
            trusts_aggregator=privacy.trust_aggregator and self.cohorts is None,
        )

    def _released(self) -> str:
        bit = " and the noisy share of unclipped updates" if self.adaptive else ""
        if self.masked_sum is not None:
            return f"its part, under masks, of the parties' noisy sum of updates{bit}, every round"
        apart = self.noise_at_parties and self.cohorts is None
        what = "each party's noisy update" if apart else "noisy mean update of a cohort"
        return f"{what}{bit}, every round"

    @functools.cached_property
    def _shared_figures(self) -> Mapping[str, float | str | None]:
        if self.cohorts is None:
            return {}
        return shared_figures(self.cohorts.private_sum, unit=self.first_clip_norm)

    def _notes(self) -> tuple[str, ...]:
        if self.numbers.masked is not None:
            return (shared_note(self.numbers.masked),)
        if not self.noise_at_parties:
            return (
                (
                    "protects against readers of the model only: the aggregator sees updates "
                    "without noise"
                ),
            )
        whom = "readers of the model" if self.privacy.trust_aggregator else "the aggregator"
        return (
            (
                f"target_epsilon is kept against {whom}; the epsilon of both observers is in the "
                "indicators"
            ),
        )

    # --- at the party ---

    def check_broadcast(self, broadcast: Mapping[str, float]) -> None:
        self._agreed_clip_norm(broadcast)

    @batched
    def before_fit(self, fit: LocalFit) -> None:
        check_module(fit.model, self.privacy.public_tensors)
        self._fit_clip_norm = self._agreed_clip_norm(fit.broadcast)
        self._within = True
        # Users keep no state between rounds: a party that was drawn often is trained as one that
        # was drawn first.
        fit.optimizer.state.clear()
        fit.steps_done = (fit.round_number - 1) * fit.facts.steps_per_round

    @batched
    def after_batch(self, fit: LocalFit) -> None:
        """Project the weights back into the ball around the global ones, where
        ``clip_each_step`` asks for it.
        """
        if not self.privacy.clip_each_step:
            return
        layout, clip_norm = self.layout(fit.start), self._fit_clip_norm
        start = layout.flatten(fit.start)
        rows = (layout.flatten(fit.weights()) - start).unsqueeze(0)
        norm = row_norms(rows)
        if bool(norm > clip_norm) and bool(norm.isfinite()):
            self._within = False
            fit.load({**fit.start, **layout.unflatten(start + _scaled(rows, norm, clip_norm)[0])})

    @batched
    def after_fit(self, fit: LocalFit) -> Release:
        layout = self.layout(fit.start)
        rows = (layout.flatten(fit.weights()) - layout.flatten(fit.start)).unsqueeze(0)
        sent = self.contributions(rows, self._fit_clip_norm, torch.tensor([self._within]))
        public = {name: torch.zeros_like(fit.start[name]) for name in self.privacy.public_tensors}
        own = (
            self.noise_at_parties and self.cohorts is None
        )  # otherwise the noise is added to the sum that this row is part of
        return Release(
            {**layout.unflatten(sent.rows[0]), **public},
            event=self.numbers.share_event if own else None,
            sigma=self.party_sigma(self._fit_clip_norm) if own else 0.0,
            relation=self.numbers.sampler.relation,
            info={"clip_bit": float(sent.bits[0])} if self.adaptive else {},
        )

    def contributions(self, rows: Tensor, clip_norm: float, within: Tensor) -> Contributions:
        """A row that is not finite becomes zeros with the bit of a clipped one."""
        norms = row_norms(rows)
        bad = int((~norms.isfinite()).sum())
        if bad:
            self.not_finite += bad
            log.warning(
                "%d update(s) with NaN or infinity count as zero; lower train.learning_rate?", bad
            )
        bounded = _scaled(rows, norms, clip_norm)
        bits = self.bits((norms <= clip_norm) & within)
        if self.noise_at_parties and self.cohorts is None:
            bounded = noised_share(bounded, self.numbers.share_sigma(clip_norm), self.noise).to(
                bounded.dtype
            )
            if self.adaptive:
                bits = noised_share(bits, self.numbers.share_of_bit_noise, self.noise)
        return Contributions(bounded, bits)

    def release(self, total: CohortSum, plan: PartyPlan) -> Release:
        if self.cohorts is None:
            return super().release(total, plan)
        if self.alone:
            return super().release(self.cohorts.released_by_all(total, self.noise), plan)
        steps = {SUM: self.cohorts.released(total, self.noise)}
        return Release(steps, self.numbers.event, self.party_sigma(total.clip_norm), plan.relation)

    def party_sigma(self, clip_norm: float) -> float:
        return self.numbers.share_sigma(clip_norm) if self.noise_at_parties else 0.0

    def open_round(self, broadcast: Mapping[str, float]) -> None:
        self.clip_norm = self._agreed_clip_norm(broadcast)

    def draw_of(self, users: int) -> tuple[Tensor, int]:
        if self.cohorts is None or self.alone:
            return super().draw_of(users)
        return self.cohorts.draw(users, self.noise), self.cohorts.usual_draw(users)

    def check_model(self, module: nn.Module) -> None:
        if self.cohorts is None or self.one_party_holds_all:
            return
        if self.masked_sum is None:
            raise PrivacyError(
                "privacy.secure_aggregation=true: masks take two parties or more, and the run "
                "has one"
            )
        check_module(module, self.privacy.public_tensors)
        trained = self.layout(dict(module.state_dict())).size
        if trained != self.facts.parameters:
            raise PrivacyError(
                f"privacy.secure_aggregation=true: {trained} of {self.facts.parameters} weights "
                "are trained; a masked sum is of all of them: take the frozen ones out of the "
                "model"
            )

    def bits(self, within: Tensor) -> Tensor:
        """The bit of each user, before noise."""
        return centred_bits(within)

    def _agreed_clip_norm(self, broadcast: Mapping[str, float]) -> float:
        own, asked = self.privacy.clip_norm, broadcast.get("clip_norm")
        if self.adaptive:
            if asked is None:
                raise PrivacyError(
                    "clip_norm: is missing from the aggregator's message; adaptive clipping "
                    "needs it"
                )
            return check_clip_norm(asked)
        if asked is not None and asked != own:
            raise PrivacyError(
                f"clip_norm={asked:g}: the aggregator asks for another one than this party's "
                f"{own:g}"
            )
        return own

    # --- at the aggregator ---

    def draw(self) -> Tensor:
        return self.numbers.sampler.draw(self.noise)

    def cohort(self, parties: Sequence[str], round_number: int) -> tuple[str, ...]:
        """Draw from the declared population; numbers without a party are users who never reply."""
        if not parties:
            return ()
        if len(parties) > self.numbers.sampler.population:
            raise PrivacyError(
                f"privacy.population={self.numbers.sampler.population}: is below the "
                f"{len(parties)} parties; raise it"
            )
        if self.masked_sum is not None:
            return tuple(parties)  # all of them add noise in every round
        return tuple(parties[number] for number in self.draw().tolist() if number < len(parties))

    def broadcast_info(self) -> Mapping[str, float]:
        return {"clip_norm": self.clip_norm}

    def received(self, update: Update, layout: Layout, clip_norm: float) -> Contributions:
        rows = layout.flatten(update.tensors).unsqueeze(0)
        bit = update.info.get("clip_bit", 0.0)
        # who adds the noise bounds what it is added to
        if not self.noise_at_parties or self.cohorts is not None:
            rows = _scaled(rows, row_norms(rows), clip_norm)
            bit = math.copysign(HALF, bit) if bit else 0.0
        elif self.adaptive:  # a forged bit moves the clip norm no further than noise could have
            most = HALF + 10 * self.numbers.share_of_bit_noise
            bit = min(max(bit, -most), most)
        return Contributions(rows, torch.tensor([bit], dtype=torch.float64))

    def on_total(
        self, total: Tensor, replied: Sequence[str], current: Weights, round_number: int
    ) -> Combined:
        if self.cohorts is None:
            return super().on_total(total, replied, current, round_number)
        return self.combine(
            self.cohorts.opened(total, self.clip_norm, len(replied)), current, round_number
        )

    def combine(self, total: CohortSum, current: Weights, round_number: int) -> Combined:
        """Add the aggregator's noise, divide by the fixed cohort size, move the clip norm."""
        numbers = self.numbers
        event = numbers.event if self.ledger_keeper == "aggregator" else None
        sigma = self._applied_sigma(total)
        metrics = {"clip_norm": total.clip_norm, "applied_sigma": sigma}
        if numbers.shares is not None and total.replies < numbers.shares:
            log.warning(
                "round %d: %d of %g replies are missing, more than privacy.tolerated_dropouts=%d: "
                "what came has too little noise, the round is discarded, and charged",
                round_number,
                round(numbers.cohort_size) - total.replies,
                numbers.cohort_size,
                round(numbers.cohort_size) - numbers.shares,
            )
            planned = numbers.sum_sigma(total.clip_norm)
            metrics = {"clip_norm": total.clip_norm, "discarded": 1.0}
            return Combined(current, event, planned, metrics, discarded=True)
        mean = self.noisy_sum(total) / self.denominator(total)
        if self.adaptive:
            share = self._move_clip_norm(total)
            metrics |= {
                "unclipped_share": share,
                "fraction_clipped": min(1.0, max(0.0, 1.0 - share)),
            }
        moved = {
            name: current[name] + part
            for name, part in self.layout(current).unflatten(mean).items()
        }
        return Combined({**current, **moved}, event, sigma, metrics)

    def noisy_sum(self, total: CohortSum) -> Tensor:
        """The sum of the updates with all of its noise: added here unless the parties have."""
        if self.noise_at_parties:
            return total.updates
        sigma = self.numbers.sum_sigma(total.clip_norm)
        return noised(total.updates, sigma, self.noise)

    def denominator(self, total: CohortSum) -> float:
        """What the sum is divided by: fixed before anyone replied."""
        return self.numbers.cohort_size

    def _applied_sigma(self, total: CohortSum) -> float:
        """The noise on the sum; of a secret cohort the least there is, since all of it would
        tell how many replied.
        """
        if self.noise_at_parties and not self.hides_cohort:
            return self.numbers.share_sigma(total.clip_norm) * math.sqrt(total.replies)
        return self.numbers.sum_sigma(total.clip_norm)

    def _move_clip_norm(self, total: CohortSum) -> float:
        """The noisy share of updates within the clip norm; the next round's clip norm follows
        from it.
        """
        bits = total.bits
        if not self.noise_at_parties:
            bits = float(
                noised(
                    torch.tensor(bits, dtype=torch.float64),
                    self.numbers.bit_noise or math.nan,
                    self.noise,
                )
            )
        adaptive = self.privacy.adaptive
        tracker = QuantileTracker(
            adaptive.learning_rate, adaptive.target_quantile, self.numbers.cohort_size
        )
        share = tracker.share(bits)
        self.clip_norm = tracker.next_clip_norm(total.clip_norm, share)
        return share

    def state(self) -> Weights:
        return {"clip_norm": torch.tensor(self.clip_norm, dtype=torch.float64)}

    def restore(self, state: Weights) -> None:
        self.clip_norm = check_clip_norm(float(state["clip_norm"]))


def _scaled(rows: Tensor, norms: Tensor, clip_norm: float) -> Tensor:
    """Rows of at most the clip norm; rows that are not finite become zeros."""
    factors = clip_factors(norms, check_clip_norm(clip_norm)).to(rows.dtype).unsqueeze(1)
    return torch.where(factors > 0, rows * factors, 0.0)
