"""The `nbafl` section: the settings of the paper, beside those of `privacy`."""

from typing import Any, Self

from pydantic import model_validator

from homo_dp.config.base import (
    Conflict,
    Count,
    Flag,
    Positive,
    Probability,
    Section,
    Strength,
    key,
)


class NbaflConfig(Section):
    """NbAFL (Wei et al. 2020); read only with `privacy.mechanism: nbafl`."""

    epsilon: Positive = key(
        50.0, "The paper's epsilon (nominal; the accounted one is reported beside it)."
    )
    delta: Probability | None = key(
        None, "Sets the constant c = sqrt(2 ln(1.25 / delta)) only. Null: 0.01."
    )
    constant: Positive | None = key(None, "c itself, instead of delta (FederatedScope).")
    clip_norm: Positive = key(
        1.0, "C: L2 norm of uploaded weights. Also `w_clip` and `l2_norm_clip`."
    )
    mu: Strength = key(0.01, "Weight of the proximal term.")
    exposures: Count | None = key(None, "L: uploads of one party; null: train.rounds.")
    parties_per_round: Count | None = key(
        None,
        "K: parties of a round, in turn, instead of exposures; null: all. Also `cohort_size`, "
        "`clients_per_round`.",
    )
    noise_at_upload: Flag = key(
        True,
        "Parties add noise; false needs privacy.trust_aggregator: true, or "
        "privacy.secure_aggregation: true.",
    )
    noise_at_download: Flag = key(True, "The aggregator adds the paper's download noise.")
    min_dataset_size: Count | None = key(
        None, "m: declared smallest row count; null: the smallest party's."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("delta") is None and given.get("constant") is None:
            return {**given, "delta": 0.01}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.delta is not None and self.constant is not None:
            raise Conflict(
                "nbafl.delta, nbafl.constant: one follows from the other; leave one of them out"
            )
        if self.exposures is not None and self.parties_per_round is not None:
            raise Conflict(
                "nbafl.exposures, nbafl.parties_per_round: one follows from the other; leave one "
                "of them out"
            )
        if not self.noise_at_upload and not self.noise_at_download:
            raise Conflict(
                "nbafl.noise_at_upload, nbafl.noise_at_download: both false leaves no noise; turn "
                "one on"
            )
        return self
