"""The whole configuration: all sections, and the checks that concern several of them."""

import os
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import model_validator

from homo_dp.config.base import Conflict, Section, section
from homo_dp.config.data import ColumnConfig, DataConfig, ImageConfig, PartitionConfig
from homo_dp.config.federation import FederationConfig, PartyConfig, TransportConfig
from homo_dp.config.metrics import MetricsConfig
from homo_dp.config.model import IMAGE_FEATURES, ModelConfig
from homo_dp.config.nbafl import NbaflConfig
from homo_dp.config.output import OutputConfig, PredictConfig, ReportConfig, TrackingConfig
from homo_dp.config.privacy import (
    AdaptiveConfig,
    AnyPrivacy,
    DpSgdPrivacy,
    PrivacyConfig,
    SharedNoiseKeys,
    UserKeys,
    default_delta,
)
from homo_dp.config.rules import check_rules, solved_plainly
from homo_dp.config.statistics import StatisticsConfig
from homo_dp.config.train import (
    AveragingConfig,
    ScheduleConfig,
    ServerOptimizerConfig,
    TrainConfig,
)

__all__ = [
    "AdaptiveConfig",
    "AveragingConfig",
    "ColumnConfig",
    "Config",
    "DataConfig",
    "FederationConfig",
    "ImageConfig",
    "MetricsConfig",
    "ModelConfig",
    "NbaflConfig",
    "OutputConfig",
    "PartitionConfig",
    "PartyConfig",
    "PredictConfig",
    "PrivacyConfig",
    "ScheduleConfig",
    "ServerOptimizerConfig",
    "StatisticsConfig",
    "TrackingConfig",
    "TrainConfig",
    "TransportConfig",
]


LINEAR_MODELS = ("logistic_regression", "linear_regression", *IMAGE_FEATURES)


class Config(Section):
    """A run, fully described."""

    model: ModelConfig = section(ModelConfig, "What is trained.")
    data: DataConfig = section(DataConfig, "Tables, columns, parties.")
    privacy: AnyPrivacy = section(DpSgdPrivacy, "The guarantee.")
    nbafl: NbaflConfig = section(NbaflConfig, "NbAFL's own settings.")
    statistics: StatisticsConfig = section(StatisticsConfig, "Questions of `homo-dp stats`.")
    metrics: MetricsConfig = section(MetricsConfig, "What is released about how good the model is.")
    train: TrainConfig = section(TrainConfig, "Rounds, steps, optimisers.")
    federation: FederationConfig = section(FederationConfig, "The aggregator's rules.")
    party: PartyConfig = section(PartyConfig, "A party process.")
    transport: TransportConfig = section(TransportConfig, "How messages travel.")
    tracking: TrackingConfig = section(TrackingConfig, "MLflow.")
    predict: PredictConfig = section(PredictConfig, "Scoring.")
    output: OutputConfig = section(OutputConfig, "Files of a run.")
    report: ReportConfig = section(ReportConfig, "Words for the privacy report.")

    @property
    def private(self) -> bool:
        """Whether outputs may call themselves private: DP is on and nothing in the config says
        otherwise.
        """
        seeded = self.privacy.seeded_noise_for_tests is not None
        return self.privacy.capabilities.private and not seeded and not self.privacy.not_private

    @property
    def delta(self) -> float:
        """The delta that is set, else the one that follows from declared counts."""
        if self.privacy.delta is not None:
            return self.privacy.delta
        if self.privacy.unit == "user":
            privacy = self.privacy
            return privacy.users_delta if isinstance(privacy, UserKeys) else default_delta(None)
        return default_delta(max(self.data.rows.values(), default=None))

    @property
    def lifetime_delta(self) -> float:
        """The delta of the lifetime budget."""
        return self.privacy.lifetime_delta or self.delta

    def with_delta(self, counts: Iterable[int | None] = ()) -> Self:
        """The config with its delta written out.

        Args:
            counts: row counts of parties that are declared or public, or the number of users; they
                decide only where no delta is set. Without any, those of the config decide.
        """
        known = [count for count in counts if count is not None]
        by_rule = self.privacy.delta is None and known
        delta = default_delta(max(known)) if by_rule else self.delta
        privacy = self.privacy.model_copy(update={"delta": delta})
        return self.model_copy(update={"privacy": privacy})

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_outputs()
        self._check_delta()
        parties = len(self.federation.parties) or len(self.data.files)
        # a party's own config may name one file, and its peers only in federation.parties
        if isinstance(self.privacy, SharedNoiseKeys) and (self.federation.parties or parties > 1):
            self.privacy.check_parties(parties)
        check_rules(self, self.privacy.capabilities)
        if self.data.scaling == "private" and self.data.image is not None:
            raise Conflict(
                "data.scaling=private: is for columns of numbers; pixels have data.image.scale"
            )
        self._check_metrics()
        self._check_stopping()
        self._check_solver()
        if (
            self.privacy.lifetime_epsilon is not None
            and self.data.name is None
            and self.data.embedded is None
        ):
            raise Conflict(
                "privacy.lifetime_epsilon: is kept by the declared name of the data; give data.name"
            )
        files = (
            {}
            if self.data.one_table or self.party.name or self.federation.parties
            else self.data.files
        )
        least = self.federation.min_parties
        if files and least is not None and least > len(files):
            raise Conflict(
                f"federation.min_parties={least}: must be at most the {len(files)} parties of "
                "data.files"
            )
        return self

    def _check_metrics(self) -> None:
        """Metrics are released within the budget of a mechanism that solves its noise together
        with them.
        """
        release, privacy = self.metrics.release, self.privacy
        if release == "public" and not self.data.public_test:
            raise Conflict(
                "metrics.release=public: the test table must be public; write data.public_test: "
                "true"
            )
        if self.metrics.per_party and release != "noised":
            raise Conflict(
                f"metrics.per_party: metrics.release={release} releases no figures of parties; "
                "write noised"
            )
        if (
            self.metrics.per_party
            and isinstance(privacy, SharedNoiseKeys)
            and privacy.secure_aggregation
        ):
            raise Conflict(
                "metrics.per_party: secure aggregation shows the total of all parties alone; leave "
                "one of them out"
            )

    def _check_stopping(self) -> None:
        """Stopping and the choice of the best round go by figures that anybody may see: the choice
        would leak exact ones.
        """
        train = self.train
        asked = "train.early_stopping" if train.early_stopping is not None else "train.keep=best"
        if train.early_stopping is None and train.keep == "last":
            return
        if self.metrics.release == "noised" and self.metrics.every is None:
            raise Conflict(f"{asked}: needs several releases to compare; give metrics.every")
        if self.metrics.release != "noised" and not self.data.public_test:
            raise Conflict(
                f"{asked}: goes by metrics that are released or of public rows, never by local "
                "ones; write metrics.release: noised and metrics.every, or data.public_test: "
                "true"
            )
        if self.metrics.release != "noised" and train.evaluate_every == 0:
            raise Conflict(
                f"{asked}: needs figures of rounds before the last; raise train.evaluate_every"
            )

    def _check_solver(self) -> None:
        """Solvers of linear models need one, and full settings name a norm."""
        solver, linear = (
            self.train.solver,
            self.model.name in LINEAR_MODELS and self.model.factory is None,
        )
        if solver in ("auto", "sgd"):
            return
        plain = solved_plainly(self, self.privacy.capabilities)
        if not linear:
            raise Conflict(
                f"train.solver={solver}: is for {' and '.join(LINEAR_MODELS)}; leave it out"
            )
        if not self.train.auto and self.train.row_norm is None and not plain:
            raise Conflict(
                f"train.solver={solver}: needs train.row_norm, or train.auto to choose it"
            )
        if plain and self.train.grad_clip is not None:
            raise Conflict(
                f"train.solver={solver}: parties take no step that train.grad_clip could cut; "
                "leave it out"
            )
        if plain and not self.train.auto and self.train.sample_rate != 1:
            raise Conflict(
                f"train.solver={solver}: takes all rows without privacy; write train.sample_rate: 1"
            )

    def _check_outputs(self) -> None:
        paths = {f"output.{name}": path for name, path in self.output if isinstance(path, str)} | {
            "privacy.ledger": self.privacy.ledger
        }
        tests = self.data.test_file
        tables = {f"data.files.{party}": path for party, path in self.data.files.items()}
        if tests is not None:
            tables |= {"data.test_file": tests} if isinstance(tests, str) else _test_files(tests)
        seen = {os.path.realpath(path): name for name, path in tables.items()}
        for name, path in paths.items():
            place = os.path.realpath(path)
            if place in seen:
                raise Conflict(
                    f"{name}={path}: is the same file as {seen[place]}; give each a path of its own"
                )
            seen[place] = name

    def _check_delta(self) -> None:
        delta = self.privacy.delta
        if delta is None:  # the rule keeps below it
            return
        if self.privacy.unit == "record" and self.privacy.capabilities.private:
            for party, rows in self.data.rows.items():
                if delta >= 1 / rows:
                    raise Conflict(
                        f"privacy.delta={delta:g}: must be below 1 / "
                        f"data.rows.{party} = {1 / rows:g}; lower it"
                    )


def _test_files(files: Mapping[str, str]) -> dict[str, str]:
    return {f"data.test_file.{party}": path for party, path in files.items()}
