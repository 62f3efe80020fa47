"""The `privacy` section: what is hidden, by which mechanism, at what price.

`privacy.mechanism` says which class checks the section; each mechanism has one, with the keys that
it reads. A key of another mechanism is refused unless it holds its default, so that a resolved
config can be loaded again.

Guarantees: DP is on unless `mechanism: none` is written out; a DP mechanism never comes out of here
without noise.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Discriminator, Tag, model_validator
from pydantic.fields import FieldInfo

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
    is_import_path,
    key,
    mapping,
    section,
)
from homo_dp.config.capabilities import Capabilities
from homo_dp.config.mechanisms import (
    BUILT_IN,
    CHOSEN,
    DP_FEDAVG,
    DP_FEDSGD,
    DP_SGD,
    NBAFL,
    NONE,
    STATISTICS,
    capabilities_of,
    records,
)
from homo_dp.core.errors import ConfigError

DEFAULT_TARGET_EPSILON = 4.0
_SPELLINGS = {"dpsgd": DP_SGD.name}
_TARGET = "Epsilon of the whole run, noise is solved for it. Null: 4 without noise_multiplier."
_MULTIPLIER = "Noise over clip norm, instead of target_epsilon."
_PUBLIC_TENSORS = (
    "Buffers and frozen weights of the model that hold no data; they keep their first values "
    "(dp_fedavg)."
)

# Advice for keys of another mechanism, where more can be said than that mechanism's name.
INSTEAD = {
    "max_grad_norm": "dp_fedavg clips with privacy.clip_norm, nbafl with nbafl.clip_norm",
    "clip_norm": "dp_sgd clips with privacy.max_grad_norm, nbafl with nbafl.clip_norm",
    "sample_rate": "the sampling of rows is train.sample_rate",
    "nbafl.cohort_size": "the parties of a round are nbafl.parties_per_round",
    "target_epsilon": (
        "none adds no noise, and nbafl solves its own from nbafl.epsilon; leave it out"
    ),
    "noise_multiplier": (
        "none adds no noise, and nbafl solves its own from nbafl.epsilon; leave it out"
    ),
}


def default_delta(largest: int | None) -> float:
    """The delta of a run whose user sets none.

    Args:
        largest: the largest declared or public row count of a party, or the number of users; None
            where there is no count.

    Returns:
        The largest power of ten at or below 1 / (10 largest), at most 1e-5.

    >>> default_delta(None), default_delta(10_000), default_delta(10_001), default_delta(125_000)
    (1e-05, 1e-05, 1e-06, 1e-07)
    """
    # in whole numbers: 1 / (10 n) as a float may lie on the wrong side of a power of ten
    digits = len(str(10 * (largest or 1) - 1))
    return float(f"1e-{max(5, digits)}")


class AdaptiveConfig(Section):
    """Adaptive clipping (Andrew et al. 2021): the clip norm follows a quantile of the update
    norms.
    """

    initial_clip_norm: Positive = key(
        0.1, "Clip norm of the first round; privacy.clip_norm, if that is given and this is not."
    )
    learning_rate: Positive = key(0.2, "eta: how fast the clip norm moves.")
    target_quantile: Probability = key(0.5, "gamma: share of updates that should stay unclipped.")
    bit_noise: Positive | None = key(
        None, "sigma_b: noise on the sum of the clip bits; null: cohort size / 20."
    )


class PrivacyConfig(Section):
    """The guarantee that is asked for."""

    mechanism: str = key(
        DP_SGD.name,
        "`dp_sgd`, `dp_fedsgd`, `dp_fedavg`, `nbafl`, `package.module:Class` of your own, or "
        "`none`: NOT PRIVATE; `statistics` trains nothing (`homo-dp stats`).",
    )
    unit: Literal["record", "user"] = key(
        "record", "Whose presence is hidden: one row, or all rows of a user."
    )
    target_epsilon: Positive | None = key(None, _TARGET)
    noise_multiplier: Positive | None = key(None, _MULTIPLIER)
    delta: Probability | None = key(
        None,
        "Delta of every epsilon; must be below 1 / rows (1 / population for users). Null: the "
        "largest power of ten at or below 1 / (10 n), at most 1e-5, where n is the largest "
        "declared or public row count of a party (users, for unit: user).",
    )
    statistics_share: Rate = key(
        0.1,
        "Share of the budget, by mu^2, that private estimates take (`data.scaling`, `data.counts`, "
        "`levels`: private).",
    )
    secure_mode: Flag = key(True, "Noise and sampling from a cryptographic generator.")
    grad_sample_mode: Literal["auto", "fast", "hooks", "functorch", "ghost"] = key(
        "auto", "How rows are clipped; auto: fast where every layer allows it."
    )
    ledger: FilePath = key("ledger.sqlite", "The SQLite file in which every release is charged.")
    lifetime_epsilon: Positive | None = key(
        None, "Budget over all runs on this data.name; null: none."
    )
    lifetime_delta: Probability | None = key(None, "Delta of the lifetime budget; null: delta.")
    trust_aggregator: Flag = key(
        False, "The aggregator may see updates without noise; only you can say so."
    )
    public_tensors: Columns = key((), _PUBLIC_TENSORS)
    not_private: Flag = key(
        False, "Mark the run NOT PRIVATE; lets a mechanism of your own run without an event."
    )
    seeded_noise_for_tests: Seed | None = key(
        None, "A seed for the noise; everything is then NOT PRIVATE."
    )

    @property
    def built_in(self) -> bool:
        """Whether the mechanism is one of ours."""
        return self.mechanism in BUILT_IN

    @property
    def capabilities(self) -> Capabilities:
        """What is known of the mechanism before its class is loaded."""
        return capabilities_of(self.mechanism)

    @property
    def clips_adaptively(self) -> bool:
        """Whether the clip norm follows the updates."""
        return False

    @property
    def asks_raw_values(self) -> bool:
        """Whether columns are read as they are, not scaled to the model's inputs: statistics ask
        about them.
        """
        return not self.capabilities.trains

    @model_validator(mode="before")
    @classmethod
    def _own_keys(cls, given: Any) -> Any:
        """Drop the keys of other mechanisms that hold their defaults, and refuse those that do
        not.
        """
        if not isinstance(given, dict):
            return given
        mechanism = _mechanism_of(given)
        filled = {
            name: value for name, value in given.items() if not (name == "unit" and value is None)
        }
        if "mechanism" in filled:
            filled["mechanism"] = mechanism
        for name, value in given.items():
            if name in EVERY_KEY and not cls.reads(name):
                asks = not _says(value, EVERY_KEY[name])
                if asks and not (
                    capabilities_of(str(mechanism)).leaves_keys_aside
                    and name not in ("target_epsilon", "noise_multiplier")
                ):
                    unused = f"privacy.{name}: is not used by privacy.mechanism={mechanism}"
                    raise Conflict(f"{unused}; {_instead(name, mechanism)}")
                filled.pop(name, None)
        return cls.fill(filled)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target_epsilon is not None and self.noise_multiplier is not None:
            raise Conflict(
                f"privacy.target_epsilon={self.target_epsilon:g}, "
                f"privacy.noise_multiplier={self.noise_multiplier:g}: one follows from the other; "
                "leave one of them out"
            )
        if self.lifetime_delta is not None and self.lifetime_epsilon is None:
            raise Conflict(
                "privacy.lifetime_delta: has no budget beside it; give privacy.lifetime_epsilon too"
            )
        found = self.capabilities
        if found.private and found.unit != self.unit:
            other = next(each.name for each in records() if each.unit == self.unit)
            raise Conflict(
                f"privacy.unit={self.unit}: privacy.mechanism={self.mechanism} hides a "
                f"{found.unit}; write privacy.unit: {found.unit} or choose {other}"
            )
        self.check_own()
        return self

    @classmethod
    def fill(cls, given: dict[str, Any]) -> dict[str, Any]:
        """What the mechanism puts in where a key was not given."""
        return given

    def check_own(self) -> None:
        """Refuse what cannot hold together under this mechanism."""

    @classmethod
    def reads(cls, name: str) -> bool:
        """Whether the mechanism reads a key: it has it, and not only as one that is never set."""
        return name in cls.model_fields and not never_set(cls.model_fields[name])


class RecordKeys(PrivacyConfig):
    """Keys of mechanisms that clip the gradient of each row."""

    max_grad_norm: Positive = key(1.0, "Clip norm of a row's gradient (dp_sgd, dp_fedsgd).")


def masks_problem(parties: int, dropouts: int, colluders: int) -> str | None:
    """Why masked sums of so many parties cannot tolerate these; None if they can.

    Args:
        parties: how many there are.
        dropouts: of them, how many may be missing.
        colluders: of them, how many may tell the aggregator what they know.

    >>> masks_problem(4, 1, 1)
    >>> "only 2 are sure to be there" in str(masks_problem(3, 1, 1))
    True
    """
    named = f"privacy.tolerated_dropouts={dropouts} privacy.tolerated_colluders={colluders}"
    if dropouts < 0 or colluders < 0:
        return f"{named}: give numbers from 0"
    if parties < 2 or parties - dropouts - colluders < 1:
        return (
            f"{named}: with {parties} parties nobody is left to share the noise; list more parties "
            "in federation.parties, or "
            "tolerate less"
        )
    quorum = masks_quorum(parties, colluders)
    if quorum > parties - dropouts:
        return (
            f"{named}: of {parties} parties {quorum} must sign each sum and only "
            f"{parties - dropouts} are sure to be there; tolerate less or add parties"
        )
    return None


def masks_quorum(parties: int, colluders: int) -> int:
    """How many parties must have signed a set of survivors before anybody opens a seed."""
    return (parties + colluders) // 2 + 1


class SharedNoiseKeys(PrivacyConfig):
    """Keys of mechanisms whose noise the parties can share, because the aggregator sees only
    their total.
    """

    secure_aggregation: Flag = key(
        False,
        "The aggregator sees only the total of the parties, who share its noise (dp_fedsgd, "
        "dp_fedavg, nbafl).",
    )
    tolerated_dropouts: CountOrZero = key(
        0,
        "Parties that may be missing: of secure_aggregation, or of `noise_at: parties` (colluders "
        "too).",
    )
    tolerated_colluders: CountOrZero = key(
        1, "Parties that may tell the aggregator their noise under secure_aggregation."
    )

    def check_parties(self, parties: int) -> None:
        """Refuse numbers with which so many parties could never take the masks off a sum."""
        if self.secure_aggregation and (
            problem := masks_problem(parties, self.tolerated_dropouts, self.tolerated_colluders)
        ):
            raise Conflict(problem)

    def check_unshared(self) -> None:
        """Refuse numbers of shared noise where none is shared."""
        if not self.secure_aggregation and (
            self.tolerated_dropouts or self.tolerated_colluders != 1
        ):
            raise Conflict(
                "privacy.tolerated_dropouts, privacy.tolerated_colluders: are for "
                "privacy.secure_aggregation: true; leave them out"
            )


class UserKeys(SharedNoiseKeys):
    """Keys of mechanisms that add up whole updates of a cohort of users."""

    clip_norm: Positive = key(1.0, "Clip norm of a user's whole update (dp_fedavg).")
    clipping: Literal["fixed", "adaptive"] = key(
        "fixed", "Keep clip_norm, or follow a quantile (dp_fedavg)."
    )
    adaptive: AdaptiveConfig = section(AdaptiveConfig, "Settings of `clipping: adaptive`.")
    clip_each_step: Flag = key(False, "Also project after every local batch (dp_fedavg).")
    sampling: Literal["poisson", "fixed", "everyone"] = key(
        "poisson", "How the cohort of a round is drawn (dp_fedavg)."
    )
    population: Count | None = key(
        None, "Declared number of users; null: those of the simulated table."
    )
    cohort_size: Count | None = key(None, "Users of a round (expected number for poisson).")
    sample_rate: Rate | None = key(
        None, "Share of users of a round, instead of cohort_size (poisson)."
    )
    noise_at: Literal["server", "parties"] = key(
        "server", "Who adds the noise (dp_fedavg); `server` needs trust_aggregator: true."
    )

    @property
    def clips_adaptively(self) -> bool:
        return self.clipping == "adaptive"

    @property
    def users_delta(self) -> float:
        """The delta that is set, else the one that follows from the number of users."""
        return default_delta(self.population) if self.delta is None else self.delta

    @classmethod
    def fill(cls, given: dict[str, Any]) -> dict[str, Any]:
        adaptive, clip_norm = given.get("adaptive") or {}, given.get("clip_norm")
        unset = isinstance(adaptive, dict) and adaptive.get("initial_clip_norm") is None
        if given.get("clipping") == "adaptive" and unset and clip_norm is not None:
            given["adaptive"] = {**adaptive, "initial_clip_norm": clip_norm}
        return super().fill(given)

    def check_users(self) -> None:
        """Refuse what cannot hold together where cohorts of users are drawn, whoever wrote the
        mechanism.
        """
        self._check_noise_site()
        if self.cohort_size is not None and self.sample_rate is not None:
            raise Conflict(
                "privacy.cohort_size, privacy.sample_rate: one follows from the other; leave one "
                "of them out"
            )
        if self.sampling == "everyone" and (self.cohort_size or self.sample_rate):
            raise Conflict(
                "privacy.sampling=everyone: takes no cohort_size or sample_rate; leave them out"
            )
        if self.sampling == "fixed" and self.cohort_size is None:
            raise Conflict(
                "privacy.sampling=fixed: needs the number of users of a round; give "
                "privacy.cohort_size"
            )
        if self.sampling == "poisson" and self.cohort_size is None and self.sample_rate is None:
            raise Conflict(
                "privacy.sampling=poisson: needs privacy.cohort_size or privacy.sample_rate; give "
                "one of them"
            )
        if self.population is not None:
            if self.cohort_size is not None and self.cohort_size > self.population:
                raise Conflict(
                    f"privacy.cohort_size={self.cohort_size}: must be at most "
                    f"privacy.population={self.population}"
                )
            if self.delta is not None and self.delta >= 1 / self.population:
                raise Conflict(
                    f"privacy.delta={self.delta:g}: must be below 1 / privacy.population = "
                    f"{1 / self.population:g}"
                )
        size = self.cohort_size or self.population
        if size is not None and not self.secure_aggregation and self.tolerated_dropouts >= size:
            raise Conflict(
                f"privacy.tolerated_dropouts={self.tolerated_dropouts}: must be below the cohort "
                f"of {size}"
            )

    def _check_noise_site(self) -> None:
        if self.secure_aggregation:
            self._check_masks()
            return
        if self.noise_at == "server" and not self.trust_aggregator:
            raise Conflict(
                "privacy.noise_at=server: the aggregator sees updates without noise; write "
                "privacy.trust_aggregator: true if you trust it, or privacy.noise_at: parties "
                "with privacy.sampling: fixed"
            )
        if self.tolerated_colluders != 1:
            raise Conflict(
                "privacy.tolerated_colluders: is for privacy.secure_aggregation: true; leave it out"
            )
        if self.tolerated_dropouts and self.noise_at == "server":
            raise Conflict(
                "privacy.tolerated_dropouts: is for privacy.noise_at: parties; leave it out"
            )
        if self.noise_at == "parties" and self.sampling == "poisson":
            raise Conflict(
                "privacy.noise_at=parties: a poisson cohort has no known size to share the noise "
                "over; write privacy.sampling: fixed or everyone, or privacy.secure_aggregation: "
                "true"
            )

    def _check_masks(self) -> None:
        """Under masks everybody adds noise in every round, and each holder of users draws among
        its own in secret.
        """
        if self.noise_at == "server":
            raise Conflict(
                "privacy.secure_aggregation=true: the parties share the noise; write "
                "privacy.noise_at: parties"
            )
        if self.sampling == "fixed":
            raise Conflict(
                "privacy.sampling=fixed: nobody may know who is drawn under "
                "privacy.secure_aggregation: true, so each holder draws its own users; write "
                "privacy.sampling: poisson or everyone"
            )


class DpSgdPrivacy(RecordKeys):
    """DP-SGD: the gradient of each row is clipped, and every step adds noise."""

    mechanism: str = DP_SGD.name
    public_tensors: tuple[()] = key((), _PUBLIC_TENSORS)

    @classmethod
    def fill(cls, given: dict[str, Any]) -> dict[str, Any]:
        return super().fill(_with_target(given))


class DpFedSgdPrivacy(RecordKeys, SharedNoiseKeys):
    """DP-FedSGD: one gradient a round, clipped per row and summed over the parties, who can
    share its noise.
    """

    mechanism: str = DP_FEDSGD.name
    public_tensors: tuple[()] = key((), _PUBLIC_TENSORS)

    @classmethod
    def fill(cls, given: dict[str, Any]) -> dict[str, Any]:
        return super().fill(_with_target(given))

    def check_own(self) -> None:
        self.check_unshared()


class DpFedAvgPrivacy(UserKeys):
    """DP-FedAvg: the whole update of each user is clipped, and noise is added to the sum of a
    cohort.
    """

    mechanism: str = DP_FEDAVG.name
    unit: Literal["record", "user"] = key(
        "user", "Whose presence is hidden: one row, or all rows of a user."
    )

    @classmethod
    def fill(cls, given: dict[str, Any]) -> dict[str, Any]:
        return super().fill(_with_target(given))

    def check_own(self) -> None:
        self.check_users()


class NbaflPrivacy(SharedNoiseKeys):
    """NbAFL, whose own settings are in the section `nbafl`."""

    mechanism: str = NBAFL.name
    target_epsilon: None = key(None, _TARGET)
    noise_multiplier: None = key(None, _MULTIPLIER)
    public_tensors: tuple[()] = key((), _PUBLIC_TENSORS)

    def check_own(self) -> None:
        self.check_unshared()


class StatisticsPrivacy(SharedNoiseKeys):
    """Private sums over the tables, no training; the questions are in the section `statistics`.
    Keys of mechanisms that train are left aside, so that the config of a training can be asked
    with.
    """

    mechanism: str = STATISTICS.name
    public_tensors: tuple[()] = key((), _PUBLIC_TENSORS)

    @classmethod
    def fill(cls, given: dict[str, Any]) -> dict[str, Any]:
        return super().fill(_with_target(given))


class NoPrivacy(PrivacyConfig):
    """NOT PRIVATE. Keys of the mechanisms are ignored, so that one word switches privacy off; a
    target epsilon or a noise multiplier is refused, because it contradicts that word.
    """

    mechanism: str = NONE.name
    target_epsilon: None = key(None, _TARGET)
    noise_multiplier: None = key(None, _MULTIPLIER)
    public_tensors: tuple[()] = key((), _PUBLIC_TENSORS)


def _own_class(value: object) -> object:
    if value is None or value is False:
        raise ValueError("must be a mechanism; to train without privacy write the word none")
    if not isinstance(value, str) or not is_import_path(value):
        raise ValueError(
            f"must be one of {', '.join(SECTIONS)}, or package.module:Class of your own"
        )
    return value


class OwnPrivacy(RecordKeys, UserKeys):
    """A mechanism of one's own, which may read every key and has options besides."""

    mechanism: Annotated[str, BeforeValidator(_own_class)] = key("", "package.module:Class")
    options: dict[str, Any] = mapping("Settings for a mechanism of your own.")

    @property
    def capabilities(self) -> Capabilities:
        return replace(capabilities_of(self.mechanism), unit=self.unit)


_KEYS: dict[str, type[PrivacyConfig]] = {
    "rows": DpSgdPrivacy,
    "shared_rows": DpFedSgdPrivacy,
    "users": DpFedAvgPrivacy,
    "uploads": NbaflPrivacy,
    "questions": StatisticsPrivacy,
    "none": NoPrivacy,
}
SECTIONS = {record.name: _KEYS[record.keys] for record in records()}
# Every key of every mechanism: a mechanism of one's own may read them all.
EVERY_KEY: dict[str, FieldInfo] = OwnPrivacy.model_fields


def _mechanism_of(given: Any) -> Any:
    """The mechanism that is written out; else the one whose noise parties can share, if they are
    to, or DP-SGD.
    """
    if isinstance(given, dict):
        shared = given.get("secure_aggregation") is True
        mechanism = given.get("mechanism", CHOSEN if shared else DP_SGD.name)
    else:
        mechanism = getattr(given, "mechanism", DP_SGD.name)
    return _SPELLINGS.get(mechanism, mechanism) if isinstance(mechanism, str) else mechanism


def _section_of(given: Any) -> str:
    mechanism = _mechanism_of(given)
    found = SECTIONS.get(mechanism) if isinstance(mechanism, str) else None
    return (found or OwnPrivacy).__name__


AnyPrivacy = Annotated[
    Annotated[DpSgdPrivacy, Tag("DpSgdPrivacy")]
    | Annotated[DpFedSgdPrivacy, Tag("DpFedSgdPrivacy")]
    | Annotated[DpFedAvgPrivacy, Tag("DpFedAvgPrivacy")]
    | Annotated[NbaflPrivacy, Tag("NbaflPrivacy")]
    | Annotated[StatisticsPrivacy, Tag("StatisticsPrivacy")]
    | Annotated[NoPrivacy, Tag("NoPrivacy")]
    | Annotated[OwnPrivacy, Tag("OwnPrivacy")],
    Discriminator(_section_of),
]


Keys = TypeVar("Keys", bound=PrivacyConfig)


def keys_of(privacy: PrivacyConfig, kind: type[Keys]) -> Keys:
    """The section as one that has the keys of a kind of mechanism; a mechanism asks for it before
    it reads them.

    >>> keys_of(DpSgdPrivacy(max_grad_norm=0.5), RecordKeys).max_grad_norm
    0.5
    """
    if not isinstance(privacy, kind):
        raise ConfigError(
            f"privacy.mechanism={privacy.mechanism}: lacks the settings that this run reads "
            f"({', '.join(kind.__annotations__)}); choose a mechanism that has them"
        )
    return privacy


def idle_keys(mechanism: str) -> list[str]:
    """The keys of the privacy section that a built-in mechanism does not read; none for a foreign
    one.

    >>> "clip_norm" in idle_keys("dp_sgd"), idle_keys("mine.laplace:Laplace")
    (True, [])
    """
    kind = SECTIONS.get(mechanism, OwnPrivacy)
    return [name for name in EVERY_KEY if not kind.reads(name)]


def every_key(privacy: PrivacyConfig) -> dict[str, Any]:
    """The section as plain values with the keys of all mechanisms, as plans and model files of
    every version hold it.

    >>> every_key(DpSgdPrivacy())["clip_norm"], every_key(DpSgdPrivacy())["max_grad_norm"]
    (1.0, 1.0)
    """
    neutral = OwnPrivacy(mechanism="a:A").model_dump(mode="json")
    return {**neutral, **privacy.model_dump(mode="json")}


def left_aside(given: Any) -> list[str]:
    """The keys that somebody set and that `mechanism: none` does not read, for a note to the user.

    >>> left_aside({"mechanism": "none", "max_grad_norm": 0.5, "clip_norm": 1.0})
    ['max_grad_norm']
    """
    mechanism = given.get("mechanism") if isinstance(given, Mapping) else None
    if not isinstance(mechanism, str) or capabilities_of(mechanism).private:
        return []
    return [
        name
        for name in idle_keys(mechanism)
        if name in given and not _says(given[name], EVERY_KEY[name])
    ]


def never_set(field: FieldInfo) -> bool:
    """Whether a section has a key only so that all sections can be read alike."""
    return field.annotation in (type(None), tuple[()])


def _says(value: Any, field: FieldInfo) -> bool:
    """Whether a value is the default of its key."""
    default = field.get_default(call_default_factory=True, validated_data={})
    return _same(value, default.model_dump() if isinstance(default, Section) else default)


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return all(name in default and _same(inner, default[name]) for name, inner in value.items())
    if isinstance(value, list) and isinstance(default, tuple):
        return tuple(value) == default
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def _instead(name: str, mechanism: str) -> str:
    readers = [each for each, kind in SECTIONS.items() if kind.reads(name)]
    found = INSTEAD.get(f"{mechanism}.{name}") or INSTEAD.get(name)
    return found or f"it belongs to {' or '.join(readers) or 'a mechanism of your own'}"


def _with_target(given: dict[str, Any]) -> dict[str, Any]:
    """DP needs noise: target epsilon 4 where neither key is given, an error where the target is
    null and alone.
    """
    if given.get("target_epsilon") is None and given.get("noise_multiplier") is None:
        if "target_epsilon" in given:
            raise Conflict(
                "privacy.target_epsilon=null: DP needs noise; give privacy.target_epsilon or "
                "privacy.noise_multiplier, or write privacy.mechanism: none"
            )
        return {**given, "target_epsilon": DEFAULT_TARGET_EPSILON}
    return given
