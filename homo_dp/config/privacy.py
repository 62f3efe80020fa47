"""The `privacy` and `nbafl` sections: what is hidden, by which mechanism, at what price.

Guarantees: DP is on unless `mechanism: none` is written out; a DP mechanism never comes out of here without noise.
"""

from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from homo_dp.config.base import (
    Columns,
    Conflict,
    Count,
    CountOrZero,
    FilePath,
    Flag,
    Positive,
    Probability,
    Rate,
    Section,
    Seed,
    Strength,
    is_import_path,
    key,
    mapping,
    section,
)

BUILT_IN = ("dp_sgd", "dp_fedavg", "nbafl", "none")
DEFAULT_TARGET_EPSILON = 4.0

# Which keys speak to which built-in mechanisms; a key that the chosen one ignores is refused, not ignored.
SPEAKS_TO: dict[str, tuple[str, ...]] = {
    "target_epsilon": ("dp_sgd", "dp_fedavg"),
    "noise_multiplier": ("dp_sgd", "dp_fedavg"),
    "max_grad_norm": ("dp_sgd",),
    "clip_norm": ("dp_fedavg",),
    "clipping": ("dp_fedavg",),
    "clip_each_step": ("dp_fedavg",),
    "adaptive": ("dp_fedavg",),
    "sampling": ("dp_fedavg",),
    "population": ("dp_fedavg",),
    "cohort_size": ("dp_fedavg",),
    "sample_rate": ("dp_fedavg",),
    "noise_at": ("dp_fedavg",),
    "tolerated_dropouts": ("dp_fedavg",),
    "public_tensors": ("dp_fedavg",),
    "options": (),
}
INSTEAD = {
    "max_grad_norm": "dp_fedavg clips with privacy.clip_norm, nbafl with nbafl.clip_norm",
    "clip_norm": "dp_sgd clips with privacy.max_grad_norm, nbafl with nbafl.clip_norm",
    "sample_rate": "the sampling of rows is train.sample_rate",
    "nbafl.cohort_size": "K-of-N scheduling is not offered, since its noise formula could not be checked against the "
    "paper; leave it out, and limit the uploads of a party with nbafl.exposures if you like",
    "target_epsilon": "none adds no noise, and nbafl solves its own from nbafl.epsilon; leave it out",
    "noise_multiplier": "none adds no noise, and nbafl solves its own from nbafl.epsilon; leave it out",
}


class AdaptiveConfig(Section):
    """Adaptive clipping (Andrew et al. 2021): the clip norm follows a quantile of the update norms."""

    initial_clip_norm: Positive = key(
        0.1, "Clip norm of the first round; privacy.clip_norm, if that is given and this is not."
    )
    learning_rate: Positive = key(0.2, "eta: how fast the clip norm moves.")
    target_quantile: Probability = key(0.5, "gamma: share of updates that should stay unclipped.")
    bit_noise: Positive | None = key(None, "sigma_b: noise on the sum of the clip bits; null: cohort size / 20.")


class PrivacyConfig(Section):
    """The guarantee that is asked for."""

    mechanism: str = key(
        "dp_sgd", "`dp_sgd`, `dp_fedavg`, `nbafl`, `package.module:Class` of your own, or `none`: NOT PRIVATE."
    )
    unit: Literal["record", "user"] = key("record", "Whose presence is hidden: one row, or all rows of a user.")
    target_epsilon: Positive | None = key(
        None, "Epsilon of the whole run, noise is solved for it. Null: 4 without noise_multiplier."
    )
    noise_multiplier: Positive | None = key(None, "Noise over clip norm, instead of target_epsilon.")
    delta: Probability = key(1e-5, "Delta of every epsilon; must be below 1 / rows (1 / population for users).")
    max_grad_norm: Positive = key(1.0, "Clip norm of a row's gradient (dp_sgd).")
    secure_mode: Flag = key(True, "Noise and sampling from a cryptographic generator.")
    grad_sample_mode: Literal["auto", "fast", "hooks", "functorch", "ghost"] = key(
        "auto", "How rows are clipped; auto: fast where every layer allows it."
    )
    ledger: FilePath = key("ledger.sqlite", "The SQLite file in which every release is charged.")
    lifetime_epsilon: Positive | None = key(None, "Budget over all runs on this data.name; null: none.")
    lifetime_delta: Probability | None = key(None, "Delta of the lifetime budget; null: delta.")
    trust_aggregator: Flag = key(False, "The aggregator may see updates without noise; only you can say so.")
    clip_norm: Positive = key(1.0, "Clip norm of a user's whole update (dp_fedavg).")
    clipping: Literal["fixed", "adaptive"] = key("fixed", "Keep clip_norm, or follow a quantile (dp_fedavg).")
    adaptive: AdaptiveConfig = section(AdaptiveConfig, "Settings of `clipping: adaptive`.")
    clip_each_step: Flag = key(False, "Also project after every local batch (dp_fedavg).")
    sampling: Literal["poisson", "fixed", "everyone"] = key(
        "poisson", "How the cohort of a round is drawn (dp_fedavg)."
    )
    population: Count | None = key(None, "Declared number of users; null: those of the simulated table.")
    cohort_size: Count | None = key(None, "Users of a round (expected number for poisson).")
    sample_rate: Rate | None = key(None, "Share of users of a round, instead of cohort_size (poisson).")
    noise_at: Literal["server", "parties"] = key(
        "server", "Who adds the noise (dp_fedavg); `server` needs trust_aggregator: true."
    )
    tolerated_dropouts: CountOrZero = key(0, "Dropouts and colluders that the noise of `noise_at: parties` survives.")
    public_tensors: Columns = key(
        (), "Buffers and frozen weights of the model that hold no data; they keep their first values (dp_fedavg)."
    )
    not_private: Flag = key(False, "Mark the run NOT PRIVATE; lets a mechanism of your own run without an event.")
    seeded_noise_for_tests: Seed | None = key(None, "A seed for the noise; everything is then NOT PRIVATE.")
    options: dict[str, Any] = mapping("Settings for a mechanism of your own.")

    @property
    def built_in(self) -> bool:
        """Whether the mechanism is one of ours."""
        return self.mechanism in BUILT_IN

    @field_validator("mechanism", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        if value is None or value is False:
            raise ValueError("must be a mechanism; to train without privacy write the word none")
        if not isinstance(value, str) or not (value in BUILT_IN or is_import_path(value)):
            raise ValueError(f"must be one of {', '.join(BUILT_IN)}, or package.module:Class of your own")
        return value

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        if filled.get("mechanism") == "dpsgd":
            filled["mechanism"] = "dp_sgd"
        mechanism = filled.get("mechanism", "dp_sgd")
        if filled.get("unit") is None:
            filled["unit"] = "user" if mechanism == "dp_fedavg" else "record"
        adaptive, clip_norm = filled.get("adaptive") or {}, filled.get("clip_norm")
        unset = isinstance(adaptive, dict) and adaptive.get("initial_clip_norm") is None
        if filled.get("clipping") == "adaptive" and unset and clip_norm is not None:
            filled["adaptive"] = {**adaptive, "initial_clip_norm": clip_norm}
        if mechanism in SPEAKS_TO["target_epsilon"]:
            both = [filled.get("target_epsilon"), filled.get("noise_multiplier")]
            if both == [None, None] and "target_epsilon" in filled:
                raise Conflict(
                    "privacy.target_epsilon=null: DP needs noise; give privacy.target_epsilon or "
                    "privacy.noise_multiplier, or write privacy.mechanism: none"
                )
            if both == [None, None]:
                filled["target_epsilon"] = DEFAULT_TARGET_EPSILON
        return filled

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target_epsilon is not None and self.noise_multiplier is not None:
            raise Conflict(
                f"privacy.target_epsilon={self.target_epsilon:g}, privacy.noise_multiplier={self.noise_multiplier:g}: "
                "one follows from the other; leave one of them out"
            )
        for name in idle_keys(self.mechanism):
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                hint = INSTEAD.get(f"{self.mechanism}.{name}") or INSTEAD.get(name)
                hint = hint or f"it belongs to {' or '.join(SPEAKS_TO[name]) or 'a mechanism of your own'}"
                raise Conflict(f"privacy.{name}: is not used by privacy.mechanism={self.mechanism}; {hint}")
        if self.lifetime_delta is not None and self.lifetime_epsilon is None:
            raise Conflict("privacy.lifetime_delta: has no budget beside it; give privacy.lifetime_epsilon too")
        wanted = {"dp_sgd": "record", "nbafl": "record", "dp_fedavg": "user"}.get(self.mechanism, self.unit)
        if self.unit != wanted:
            raise Conflict(
                f"privacy.unit={self.unit}: privacy.mechanism={self.mechanism} hides a {wanted}; write "
                f"privacy.unit: {wanted} or choose {'dp_fedavg' if self.unit == 'user' else 'dp_sgd'}"
            )
        if self.mechanism == "dp_fedavg":
            self.check_users()
        return self

    def check_users(self) -> None:
        """Refuse what cannot hold together where cohorts of users are drawn, whoever wrote the mechanism."""
        if self.noise_at == "server" and not self.trust_aggregator:
            raise Conflict(
                "privacy.noise_at=server: the aggregator sees updates without noise; write privacy.trust_aggregator: "
                "true if you trust it, or privacy.noise_at: parties with privacy.sampling: fixed"
            )
        if self.noise_at == "parties" and self.sampling == "poisson":
            raise Conflict(
                "privacy.noise_at=parties: a poisson cohort has no known size to share the noise over; "
                "write privacy.sampling: fixed or everyone"
            )
        if self.cohort_size is not None and self.sample_rate is not None:
            raise Conflict(
                "privacy.cohort_size, privacy.sample_rate: one follows from the other; leave one of them out"
            )
        if self.sampling == "everyone" and (self.cohort_size or self.sample_rate):
            raise Conflict("privacy.sampling=everyone: takes no cohort_size or sample_rate; leave them out")
        if self.sampling == "fixed" and self.cohort_size is None:
            raise Conflict("privacy.sampling=fixed: needs the number of users of a round; give privacy.cohort_size")
        if self.sampling == "poisson" and self.cohort_size is None and self.sample_rate is None:
            raise Conflict(
                "privacy.sampling=poisson: needs privacy.cohort_size or privacy.sample_rate; give one of them"
            )
        if self.population is not None:
            if self.cohort_size is not None and self.cohort_size > self.population:
                raise Conflict(
                    f"privacy.cohort_size={self.cohort_size}: must be at most privacy.population={self.population}"
                )
            if self.delta >= 1 / self.population:
                raise Conflict(
                    f"privacy.delta={self.delta:g}: must be below 1 / privacy.population = {1 / self.population:g}"
                )
        if self.tolerated_dropouts and self.noise_at == "server":
            raise Conflict("privacy.tolerated_dropouts: is for privacy.noise_at: parties; leave it out")
        size = self.cohort_size or self.population
        if size is not None and self.tolerated_dropouts >= size:
            raise Conflict(f"privacy.tolerated_dropouts={self.tolerated_dropouts}: must be below the cohort of {size}")


def idle_keys(mechanism: str) -> list[str]:
    """The keys of the privacy section that a built-in mechanism does not read; none for a foreign one.

    >>> "clip_norm" in idle_keys("dp_sgd"), idle_keys("mine.laplace:Laplace")
    (True, [])
    """
    return [name for name, users in SPEAKS_TO.items() if mechanism in BUILT_IN and mechanism not in users]


class NbaflConfig(Section):
    """NbAFL (Wei et al. 2020); read only with `privacy.mechanism: nbafl`."""

    epsilon: Positive = key(50.0, "The paper's epsilon (nominal; the accounted one is reported beside it).")
    delta: Probability | None = key(None, "Sets the constant c = sqrt(2 ln(1.25 / delta)) only. Null: 0.01.")
    constant: Positive | None = key(None, "c itself, instead of delta (FederatedScope).")
    clip_norm: Positive = key(1.0, "C: L2 norm of uploaded weights. Also `w_clip` and `l2_norm_clip`.")
    mu: Strength = key(0.01, "Weight of the proximal term.")
    exposures: Count | None = key(None, "L: uploads of one party; null: train.rounds.")
    noise_at_upload: Flag = key(True, "Parties add noise; false needs privacy.trust_aggregator: true.")
    noise_at_download: Flag = key(True, "The aggregator adds the paper's download noise.")
    min_dataset_size: Count | None = key(None, "m: declared smallest row count; null: the smallest party's.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("delta") is None and given.get("constant") is None:
            return {**given, "delta": 0.01}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.delta is not None and self.constant is not None:
            raise Conflict("nbafl.delta, nbafl.constant: one follows from the other; leave one of them out")
        return self
