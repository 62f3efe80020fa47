"""What every tracked run says of itself: its settings, and what somebody who looks for it would filter by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homo_dp import __version__
from homo_dp.config.load import flatten
from homo_dp.runs.code_version import commit_tags

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.federation.mechanisms.base import Mechanism


def run_params(config: Config) -> dict[str, str]:
    """The resolved config, flattened, without what is not set."""
    return {key: str(value) for key, value in flatten(config).items() if value is not None}


def source_tags(config: Config, mechanism: str) -> dict[str, str]:
    """Mechanism, data and code."""
    return {"mechanism": mechanism, "version": __version__, "data.name": config.data.dataset, **commit_tags()}


def run_tags(config: Config, run: str, mechanism: Mechanism, *, private: bool) -> dict[str, str]:
    """The tags of one training, or of a process's part in it."""
    what = {"run": run, "unit": mechanism.unit, "privacy": "private" if private else "NOT PRIVATE"}
    return what | source_tags(config, mechanism.name)
