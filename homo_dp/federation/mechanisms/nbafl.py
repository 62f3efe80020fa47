"""NbAFL, noising before aggregation (Wei et al. 2020, https://arxiv.org/abs/1911.00222).

Parties train without noise on gradients, clip the weights they upload and noise those; the
aggregator noises the mean once more where the paper asks for it. The paper's epsilon rests on an
assumption about training, so it is reported as nominal, beside the one that the clip and the
applied noise alone account for: docs/nbafl.md.

With noise on the mean alone (``noise_at_upload: false``) the aggregator is trusted, unless uploads
are masked: then the parties share that noise, all of them in every round, and the aggregator sees
the noisy mean only.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from homo_dp.config.mechanisms import NBAFL
from homo_dp.config.privacy import SharedNoiseKeys, keys_of
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import (
    Combined,
    FederationFacts,
    Mechanism,
    Observer,
    PartyFacts,
    PartyPlan,
    Release,
    Update,
    Weights,
    weighted_mean,
)
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.mechanisms.shared_noise import shared_figures, shared_note
from homo_dp.federation.protocol.round_sums import SUM
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.accounting.dp_event import DpEvent, GaussianDpEvent, NoOpDpEvent
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import check_clip_norm, clip_vector
from homo_dp.privacy.noise.grid import noised_share
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.privacy.sampling.samplers import REPLACE_ONE

log = logging.getLogger(__name__)

NOMINAL = (
    "the paper's, for all uploads; assumes that one record moves the trained weights by at most "
    "2C/m"
)
NOT_NOMINAL = (
    "the paper's theorem for K parties a round could not be sourced; the noise is its sigma_u for "
    "the uploads"
)
ACCOUNTED = (
    "for the noise applied so far, assuming nothing but the clip (sensitivity 2C); this is the "
    "guarantee"
)


def noise_constant(delta: float) -> float:
    """The paper's c (section II-C), of the classical Gaussian mechanism.

    >>> noise_constant(2e-5)
    4.699557816587533
    """
    return math.sqrt(2 * math.log(1.25 / delta))


@dataclass(frozen=True)
class Formula:
    """The paper's noise (Theorem 1) for constant c, clip norm C, exposures L, rounds T, parties N,
    smallest rows m.

    >>> formula = Formula(0.8, noise_constant(1e-5), clip_norm=1.5, exposures=2, rounds=3, parties=2, rows=10_000)
    >>> formula.download_sigma
    0.0009084009867385104
    """

    epsilon: float
    constant: float
    clip_norm: float
    exposures: int
    rounds: int
    parties: int
    rows: int

    @property
    def upload_sigma(self) -> float:
        """What a party adds to every coordinate of its clipped weights: 2 c C L / (m epsilon)."""
        return 2 * self.constant * self.clip_norm * self.exposures / (self.rows * self.epsilon)

    @property
    def download_sigma(self) -> float:
        """What the aggregator adds to the mean; 0 where the noise of the uploads is enough, T <=
        L sqrt(N).
        """
        left = self.rounds**2 - self.exposures**2 * self.parties
        if left <= 0:
            return 0.0
        return (
            2
            * self.constant
            * self.clip_norm
            * math.sqrt(left)
            / (self.rows * self.parties * self.epsilon)
        )


class Nbafl(Mechanism):
    """Clipped weights with Gaussian noise at each upload, and on the mean where the formula says
    so.

    Guarantees:
        - whatever the rows of a party are, its upload before noise has L2 norm at most C over all
          tensors together, so replacing a record moves it by at most 2C, and the mean by 2C times
          the party's share;
        - a party uploads at most ``exposures`` times, in rounds that everybody can compute
          beforehand;
        - the published mean never has less noise, for a party's share in it, than the plan says:
          what missing parties would have brought is added by the aggregator;
        - under masks the noise of any N - dropouts - colluders parties is the download noise, and a
          party outside of its rounds sends noise alone.
    """

    capabilities = NBAFL

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        settings = config.nbafl
        self.clip_norm = check_clip_norm(settings.clip_norm, "nbafl.clip_norm")
        self.per_round = settings.parties_per_round
        self._rounds = _rounds_of(config, facts)
        self.exposures = max(map(len, self._rounds.values()))
        # the config has one of them
        self.constant = settings.constant or noise_constant(settings.delta or math.nan)
        self.formula = Formula(
            settings.epsilon,
            self.constant,
            settings.clip_norm,
            self.exposures,
            facts.rounds,
            self.per_round or len(facts.parties),
            settings.min_dataset_size or facts.smallest_rows,
        )
        self._share = _shared(config, len(facts.parties))
        self.upload_sigma = self.formula.upload_sigma if settings.noise_at_upload else 0.0
        self.download_sigma = self.formula.download_sigma if settings.noise_at_download else 0.0
        self._cohorts: dict[int, list[str]] = {number: [] for number in range(1, facts.rounds + 1)}
        for party, numbers in self._rounds.items():
            for number in numbers:
                self._cohorts[number].append(party)
        if not self.upload_sigma > 0 and not self.download_sigma > 0:
            raise PrivacyError(
                "nbafl.noise_at_upload=false: there would be no noise at all, since "
                f"{self._no_download_noise()}; turn noise_at_upload on, or give fewer "
                "nbafl.exposures or more train.rounds"
            )

    @property
    def ledger_keeper(self) -> Literal["party", "aggregator"]:
        return "party" if self.upload_sigma > 0 or self._share else "aggregator"

    @functools.cached_property
    def masked_sum(self) -> PrivateSum | None:
        """The mean of a round as a sum: each party adds its weights times its part in the mean."""
        if self._share is None:
            return None
        most = self.clip_norm * max(max(self._shares(number).values()) for number in self._cohorts)
        parties = len(self.facts.parties)
        return PrivateSum(
            self.facts.parameters, most, self.download_sigma / most, parties, share=self._share
        )

    @property
    def noise_share(self) -> NoiseShare | None:
        return self._share

    @property
    def noises_in_a_number(self) -> int:
        return len(self.facts.parties) + 1  # of the uploads, and of the download

    @property
    def proximal_mu(self) -> float:
        return self.config.nbafl.mu

    # --- what it will cost

    def plan(self, party: PartyFacts) -> PartyPlan:
        delta = self.config.delta
        check_delta(delta, party.rows)
        at_party, reader = self.upload_sigma > 0, GaussianDpEvent(self.reader_multiplier)
        sigma = self.upload_sigma if at_party else self.download_sigma
        upload = f"weights clipped to norm {self.clip_norm:g}"
        how = "its part, under masks, of the parties' noisy mean of" if self._share else ""
        events: dict[Observer, DpEvent] = {"model_reader": reader}
        # under masks the aggregator sees only the total, as a reader of the model does
        if at_party or self._share:
            events["aggregator"] = self.upload_event if at_party else reader
        return PartyPlan(
            noise_multiplier=sigma / self.clip_norm,
            sigma=self.masked_sum.party_sigma if self.masked_sum else sigma,
            clip_norm=self.clip_norm,
            relation=REPLACE_ONE,
            delta=delta,
            rounds=party.rounds,
            events=events,
            releases=(
                (
                    f"{how} {upload}, {self.exposures} times, and noise alone in other rounds"
                    if self._share
                    else (
                        f"{upload}, {'with' if at_party else 'without'} noise, {self.exposures} "
                        "times"
                    )
                ),
            ),
            noise_to_signal=sigma * math.sqrt(self.facts.parameters) / self.clip_norm,
            notes=self._notes(),
            extra=self._shared_figures,
            schedule=None if self.exposures == party.rounds else self._rounds[party.name],
            noise_between=self._share is not None,
        )

    @functools.cached_property
    def _shared_figures(self) -> Mapping[str, float | str | None]:
        if self.masked_sum is None:
            return {}
        return shared_figures(self.masked_sum)

    @property
    def upload_event(self) -> GaussianDpEvent:
        """What one upload costs towards the aggregator: replacing a record moves it by 2C."""
        return GaussianDpEvent(self.upload_sigma / (2 * self.clip_norm))

    @functools.cached_property
    def reader_multiplier(self) -> float:
        """Noise of a published mean over the most that a record can move it by, in the least
        favourable round.

        With equal weights and everybody in every round: sqrt(sigma_u**2 / N + sigma_d**2) N / (2C).
        """
        cohorts = {tuple(cohort): number for number, cohort in self._cohorts.items()}
        rounds = map(self._shares, cohorts.values())
        return min(
            self._multiplier(self._noise_of_mean(shares, self.download_sigma), shares)
            for shares in rounds
        )

    def _multiplier(self, sigma: float, shares: Mapping[str, float]) -> float:
        return sigma / (2 * self.clip_norm * max(shares.values()))

    def figures(
        self, plan: PartyPlan, epsilons: Mapping[Observer, float | None]
    ) -> Mapping[str, float | str | None]:
        settings = self.config.nbafl
        quoted: Observer = "aggregator" if "aggregator" in plan.events else "model_reader"
        return {
            **plan.extra,
            "nominal_epsilon": settings.epsilon if self.per_round is None else None,
            "nominal_epsilon_is": NOMINAL if self.per_round is None else NOT_NOMINAL,
            "nominal_delta": settings.delta or 1.25 * math.exp(-(self.constant**2) / 2),
            "accounted_epsilon": epsilons[quoted],
            "accounted_epsilon_is": f"towards the {quoted}: {ACCOUNTED}",
            "accounted_epsilon_model_reader": epsilons["model_reader"],
            "upload_sigma": self.upload_sigma,
            "download_sigma": self.download_sigma,
        }

    def _notes(self) -> tuple[str, ...]:
        if self.per_round is None:
            notes = [
                f"NbAFL: the nominal epsilon {self.formula.epsilon:g} is {NOMINAL}; see "
                "docs/nbafl.md"
            ]
        else:
            notes = [f"NbAFL: there is no nominal epsilon: {NOT_NOMINAL}; see docs/nbafl.md"]
        if self.download_sigma == 0:
            notes.append(f"NbAFL: {self._no_download_noise()}")
        if self._share is not None:
            notes.append(shared_note(self._share))
        smallest, declared = self.facts.smallest_rows, self.formula.rows
        if (
            declared > smallest > 1 and self.per_round is None
        ):  # at an aggregator, 1 stands for a count that the party keeps to itself
            notes.append(
                f"nbafl.min_dataset_size={declared}: the smallest party has {smallest} rows; with "
                f"those the paper's epsilon is {self.formula.epsilon * declared / smallest:.4g}, "
                f"not the nominal {self.formula.epsilon:g}"
            )
        return tuple(notes)

    def _no_download_noise(self) -> str:
        formula = self.formula
        if formula.download_sigma > 0:
            return "the download noise is switched off"
        reach = formula.exposures * math.sqrt(formula.parties)
        return (
            f"the download noise is zero by formula (rounds T={formula.rounds} are not above L "
            f"sqrt(N)={reach:.4g}, for L={formula.exposures} exposures and N={formula.parties} "
            "parties)"
        )

    # --- at the party

    def before_fit(self, fit: LocalFit) -> None:
        fit.proximal_mu = self.proximal_mu

    def after_fit(self, fit: LocalFit) -> Release:
        clipped, norm = clip_vector(fit.weights(), self.clip_norm)
        if not math.isfinite(norm):
            log.warning("weights with NaN or infinity count as zeros; lower train.learning_rate?")
        if self.masked_sum is not None:
            part = self._shares(fit.round_number)[fit.facts.name]
            vector = torch.cat([clipped[name].reshape(-1).double() for name in sorted(clipped)])
            return self._masked(vector * part, GaussianDpEvent(self.reader_multiplier))
        if self.ledger_keeper == "aggregator":
            return Release(clipped, event=None, sigma=0.0, relation=REPLACE_ONE)
        return Release(
            self._noised(clipped, self.upload_sigma),
            self.upload_event,
            self.upload_sigma,
            REPLACE_ONE,
        )

    def noise_alone(self) -> Release:
        return self._masked(torch.zeros(self.facts.parameters, dtype=torch.float64), NoOpDpEvent())

    def _masked(self, vector: Tensor, event: DpEvent) -> Release:
        """A party's part of the masked mean with its share of the noise."""
        found = self.masked_sum
        if found is None:
            raise PrivacyError(
                "privacy.secure_aggregation=false: no noise is shared; set it to true"
            )
        return Release(
            {SUM: found.release(vector, self.noise)}, event, found.party_sigma, REPLACE_ONE
        )

    def check_model(self, module: nn.Module) -> None:
        size = sum(tensor.numel() for tensor in module.state_dict().values())
        if self._share is not None and size != self.facts.parameters:
            raise PrivacyError(
                f"privacy.secure_aggregation=true: {self.facts.parameters} of {size} numbers of "
                "the model are weights; a masked mean is of weights alone: take the buffers out "
                "of the model"
            )

    def _noised(self, tensors: Weights, sigma: float) -> Weights:
        """With noise that adds up over parties, on its grid."""
        return {
            name: noised_share(tensor, sigma, self.noise).to(tensor.dtype)
            for name, tensor in tensors.items()
        }

    # --- at the aggregator

    def cohort(self, parties: Sequence[str], round_number: int) -> tuple[str, ...]:
        return tuple(parties) if self._share else tuple(self._cohorts[round_number])

    def on_receive(
        self, updates: Sequence[Update], current: Weights, round_number: int
    ) -> Combined:
        """The mean with the download noise: here and not before broadcast, so that a server
        optimiser, which remembers what it saw, sees nothing without it.
        """
        updates = [
            replace(u, tensors={name: t.double() for name, t in u.tensors.items()}) for u in updates
        ]
        if (
            self.ledger_keeper == "aggregator"
        ):  # clipped here, where the noise is added, so that sensitivity and noise cannot differ
            updates = [
                replace(update, tensors=clip_vector(update.tensors, self.clip_norm)[0])
                for update in updates
            ]
        mean = weighted_mean(updates)
        sigma = self._sigma_for(updates, round_number)
        if sigma > 0:
            mean = self._noised(mean, sigma)
        mean = {name: tensor.to(current[name].dtype) for name, tensor in mean.items()}
        event = None
        if self.ledger_keeper == "aggregator":
            total = sum(update.weight for update in updates)
            done = self._multiplier(sigma, {u.party: u.weight / total for u in updates})
            # a round with more parties hides more than the least favourable one, which the plan
            # states for all
            event = GaussianDpEvent(min(done, self.reader_multiplier))
        return Combined(mean, event, sigma, metrics={"download_sigma": sigma})

    def on_total(
        self, total: Tensor, replied: Sequence[str], current: Weights, round_number: int
    ) -> Combined:
        """The mean of those of the round who replied; the noise came with it, and is scaled as
        it is.
        """
        shares, found = self._shares(round_number), self.masked_sum
        present = sum(share for party, share in shares.items() if party in replied)
        if found is None or not present:
            log.warning(
                "round %d: nobody whose turn it was replied; the round is discarded", round_number
            )
            return Combined(current, metrics={"discarded": 1.0}, discarded=True)
        names = sorted(current)
        pieces = torch.split(total / present, [current[name].numel() for name in names])
        mean = {
            name: piece.reshape(current[name].shape).to(current[name].dtype)
            for name, piece in zip(names, pieces, strict=True)
        }
        sigma = found.party_sigma * math.sqrt(len(replied)) / present
        return Combined({name: mean[name] for name in current}, metrics={"download_sigma": sigma})

    def _sigma_for(self, updates: Sequence[Update], round_number: int) -> float:
        """The download noise of a round; more where parties are missing, since every other share
        is larger then.
        """
        planned, present = self._shares(round_number), {update.party for update in updates}
        if present == set(planned):
            return self.download_sigma
        growth = 1 / sum(planned[party] for party in present)
        shares = {party: planned[party] * growth for party in present}
        wanted = growth * self._noise_of_mean(planned, self.download_sigma)
        return math.sqrt(max(0.0, wanted**2 - self._noise_of_mean(shares, 0.0) ** 2))

    def _noise_of_mean(self, shares: Mapping[str, float], download_sigma: float) -> float:
        return math.hypot(download_sigma, *(self.upload_sigma * share for share in shares.values()))

    def _shares(self, round_number: int) -> dict[str, float]:
        """The part that each party of a round has in its mean."""
        by_rows = self.config.train.weighting == "rows"
        weights = {
            name: self.facts.parties[name].rows if by_rows else 1
            for name in self._cohorts[round_number]
        }
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


def schedule(parties: Sequence[str], exposures: int, rounds: int) -> dict[str, tuple[int, ...]]:
    """The rounds of each party: ``exposures`` each, one after the other around the circle of
    rounds.

    >>> schedule(["a", "b", "c"], exposures=2, rounds=3)
    {'a': (1, 2), 'b': (1, 3), 'c': (2, 3)}
    """
    return {
        party: tuple(sorted((place * exposures + step) % rounds + 1 for step in range(exposures)))
        for place, party in enumerate(parties)
    }


def turns(parties: Sequence[str], per_round: int, rounds: int) -> dict[str, tuple[int, ...]]:
    """The rounds of each party where ``per_round`` take part, in turn: nobody is drawn, everybody
    can compute it.

    >>> turns(["a", "b", "c"], per_round=2, rounds=4)
    {'a': (1, 2, 4), 'b': (1, 3, 4), 'c': (2, 3)}
    """
    found: dict[str, list[int]] = {party: [] for party in parties}
    for number in range(rounds):
        for place in range(per_round):
            found[parties[(number * per_round + place) % len(parties)]].append(number + 1)
    return {party: tuple(numbers) for party, numbers in found.items()}


def _rounds_of(config: Config, facts: FederationFacts) -> dict[str, tuple[int, ...]]:
    """The rounds of each party, by its exposures or by the parties of a round."""
    names, per_round = sorted(facts.parties), config.nbafl.parties_per_round
    exposures = facts.rounds if config.nbafl.exposures is None else config.nbafl.exposures
    if per_round is None:
        _check(config, exposures, facts)
        return schedule(names, exposures, facts.rounds)
    _check(config, facts.rounds, facts)
    if per_round > len(names) or per_round * facts.rounds < len(names):
        raise ConfigError(
            f"nbafl.parties_per_round={per_round}: must be at most the {len(names)} parties, and "
            f"give each a turn in train.rounds={facts.rounds}; choose another"
        )
    return turns(names, per_round, facts.rounds)


def _shared(config: Config, parties: int) -> NoiseShare | None:
    """How the parties share the noise of the mean; None where they do not."""
    privacy = keys_of(config.privacy, SharedNoiseKeys)
    if not privacy.secure_aggregation:
        return None
    if config.nbafl.noise_at_upload or not config.nbafl.noise_at_download:
        raise ConfigError(
            "privacy.secure_aggregation=true: under masks NbAFL's parties share the noise of the "
            "mean; write nbafl.noise_at_upload: false and nbafl.noise_at_download: true"
        )
    return NoiseShare(parties, privacy.tolerated_dropouts, privacy.tolerated_colluders)


def _check(config: Config, exposures: int, facts: FederationFacts) -> None:
    if config.train.proximal_mu:
        raise ConfigError(
            f"train.proximal_mu={config.train.proximal_mu:g}: NbAFL's proximal term is "
            f"nbafl.mu={config.nbafl.mu:g}; leave train.proximal_mu out"
        )
    least = math.ceil(facts.rounds / len(facts.parties))
    if not least <= exposures <= facts.rounds:
        raise ConfigError(
            f"nbafl.exposures={exposures}: must be from {least} (every round needs one of the "
            f"{len(facts.parties)} parties) to train.rounds={facts.rounds}; choose one of these, "
            "or leave it out for every round"
        )
