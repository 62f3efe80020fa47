"""The whole configuration: all sections, and the checks that concern several of them."""

import os
from collections.abc import Mapping
from typing import Self

from pydantic import model_validator

from homo_dp.config.base import Conflict, Section, section
from homo_dp.config.data import ColumnConfig, DataConfig, ImageConfig, PartitionConfig
from homo_dp.config.federation import FederationConfig, PartyConfig, TransportConfig
from homo_dp.config.model import ModelConfig
from homo_dp.config.output import OutputConfig, PredictConfig, TrackingConfig
from homo_dp.config.privacy import AdaptiveConfig, AnyPrivacy, DpSgdPrivacy, NbaflConfig, PrivacyConfig
from homo_dp.config.train import AveragingConfig, ScheduleConfig, ServerOptimizerConfig, TrainConfig

__all__ = [
    "MECHANISM_SECTIONS",
    "AdaptiveConfig",
    "AveragingConfig",
    "ColumnConfig",
    "Config",
    "DataConfig",
    "FederationConfig",
    "ImageConfig",
    "ModelConfig",
    "NbaflConfig",
    "OutputConfig",
    "PartitionConfig",
    "PartyConfig",
    "PredictConfig",
    "PrivacyConfig",
    "ScheduleConfig",
    "ServerOptimizerConfig",
    "TrackingConfig",
    "TrainConfig",
    "TransportConfig",
]


MECHANISM_SECTIONS = ("nbafl",)  # settings of one mechanism in a section of its own, under the mechanism's name


class Config(Section):
    """A run, fully described."""

    model: ModelConfig = section(ModelConfig, "What is trained.")
    data: DataConfig = section(DataConfig, "Tables, columns, parties.")
    privacy: AnyPrivacy = section(DpSgdPrivacy, "The guarantee.")
    nbafl: NbaflConfig = section(NbaflConfig, "NbAFL's own settings.")
    train: TrainConfig = section(TrainConfig, "Rounds, steps, optimisers.")
    federation: FederationConfig = section(FederationConfig, "The aggregator's rules.")
    party: PartyConfig = section(PartyConfig, "A party process.")
    transport: TransportConfig = section(TransportConfig, "How messages travel.")
    tracking: TrackingConfig = section(TrackingConfig, "MLflow.")
    predict: PredictConfig = section(PredictConfig, "Scoring.")
    output: OutputConfig = section(OutputConfig, "Files of a run.")

    @property
    def private(self) -> bool:
        """Whether outputs may call themselves private: DP is on and nothing in the config says otherwise."""
        seeded = self.privacy.seeded_noise_for_tests is not None
        return self.privacy.mechanism != "none" and not seeded and not self.privacy.not_private

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_outputs()
        self._check_delta()
        mechanism = self.privacy.mechanism
        if mechanism in ("dp_sgd", "dp_fedsgd", "dp_fedavg", "none") and self.nbafl != NbaflConfig():
            raise Conflict(f"nbafl: is not used by privacy.mechanism={mechanism}; write privacy.mechanism: nbafl")
        if mechanism == "dp_fedsgd":
            self._check_one_step()
        if mechanism == "nbafl" and not self.nbafl.noise_at_upload and not self.privacy.trust_aggregator:
            raise Conflict(
                "nbafl.noise_at_upload=false: the aggregator sees weights without noise; "
                "write privacy.trust_aggregator: true if you trust it"
            )
        if mechanism == "nbafl" and not self.nbafl.noise_at_upload and not self.nbafl.noise_at_download:
            raise Conflict("nbafl.noise_at_upload, nbafl.noise_at_download: both false leaves no noise; turn one on")
        if self.privacy.lifetime_epsilon is not None and self.data.name is None and self.data.embedded is None:
            raise Conflict("privacy.lifetime_epsilon: is kept by the declared name of the data; give data.name")
        files = {} if self.data.one_table or self.party.name or self.federation.parties else self.data.files
        least = self.federation.min_parties
        if files and least is not None and least > len(files):
            raise Conflict(f"federation.min_parties={least}: must be at most the {len(files)} parties of data.files")
        return self

    def _check_one_step(self) -> None:
        """Under dp_fedsgd a round is one gradient, and the aggregator takes the step."""
        train = self.train
        if (train.local_steps or 1) != 1 or (train.local_epochs or 1.0) != 1.0:
            raise Conflict(
                "train.local_steps, train.local_epochs: a round of dp_fedsgd is one step; leave them out and raise "
                "train.rounds"
            )
        if train.optimizer != "sgd" or train.momentum or train.proximal_mu:
            raise Conflict(
                "train.optimizer, train.momentum, train.proximal_mu: parties take no step under dp_fedsgd; use "
                "train.server_optimizer: fedavgm or fedadam"
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
                raise Conflict(f"{name}={path}: is the same file as {seen[place]}; give each a path of its own")
            seen[place] = name

    def _check_delta(self) -> None:
        if self.privacy.unit == "record" and self.privacy.mechanism != "none":
            for party, rows in self.data.rows.items():
                if self.privacy.delta >= 1 / rows:
                    raise Conflict(
                        f"privacy.delta={self.privacy.delta:g}: must be below 1 / data.rows.{party} = {1 / rows:g}; "
                        "lower it"
                    )


def _test_files(files: Mapping[str, str]) -> dict[str, str]:
    return {f"data.test_file.{party}": path for party, path in files.items()}
