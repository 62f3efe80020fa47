"""Levels that a training learns before it starts (``levels: private``): a noisy histogram of each file, a threshold.

What is learnt is the union of what is released of the files. Value texts are no sum, so this is done where all parties
are in one process.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING

from homo_dp.config.schema import Config
from homo_dp.core.errors import DataError
from homo_dp.data.embedded import load_embedded
from homo_dp.data.parties import load_federation
from homo_dp.data.readers import csv_form, read_table
from homo_dp.data.values import as_texts
from homo_dp.federation.sessions.build import noise_source, run_budget
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.ledger import Charge, Ledger
from homo_dp.privacy.ledger.outbox import charge_kept
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.sampling.samplers import PoissonSampler
from homo_dp.statistics.private_levels import LevelsRelease

if TYPE_CHECKING:
    import pandas as pd

Histograms = dict[str, Counter[str]]
"""Column -> value -> how many rows of a file have it; never leaves its party."""


def released_levels(config: Config, asked: Config, release: LevelsRelease) -> tuple[str, dict[str, list[str]]]:
    """The run that asked, and the levels of each private column of ``config``.

    ``asked`` is the same config as statistics read it, with any levels in the place of those to learn.

    Guarantees:
        - a row is in the histograms of one file; its party is charged for their Gaussian event before they are made;
          nothing of them is kept, so a process that is killed in between has lost budget and released nothing.
    """
    run = f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    names = config.data.private_levels
    noise = noise_source(config)
    charges = [_charge(config, run, party, release, noise) for party in load_federation(asked).parties]
    with Ledger(config.privacy.ledger) as ledger, ledger.together():
        charge_kept(ledger, charges, run_budget(config))
    found: dict[str, set[str]] = {name: set() for name in names}
    for histograms in histograms_of(asked, names):
        for name in names:
            found[name].update(release.names(histograms[name], noise))
    for name in names:
        if not found[name]:
            raise DataError(
                f"data.columns.{name}.levels=private: no value passed the threshold of {release.threshold:.0f} rows of "
                "a file; list the levels, drop the column, or raise privacy.statistics_share or target_epsilon"
            )
    return run, {name: sorted(levels) for name, levels in found.items()}


def _charge(config: Config, run: str, party: str, release: LevelsRelease, noise: NoiseSource) -> Charge:
    return Charge(
        run=run,
        dataset=config.data.dataset,
        unit="record",
        relation=PoissonSampler.relation,
        party=party,
        round=1,
        kind="levels",
        event=GaussianDpEvent(release.noise_multiplier),
        delta=config.privacy.delta,
        sigma=release.sigma,
        observer="aggregator",
        noise=noise.label,
    )


def histograms_of(asked: Config, names: list[str]) -> list[Histograms]:
    """The histograms of every file, held-out rows too: parties that one table is split into have one together.

    Guarantees:
        - one row more or less moves one count of each column by at most 1, and nothing else. Counts are of texts, by
          file: which rows are held out follows from what a model sees of them, that is from levels not yet known.
    """
    data = asked.data
    if data.embedded is not None and not data.files:
        frames = iter([load_embedded(data.embedded).frame])
    else:
        frames = (read_table(path, csv_form(data)) for path in dict.fromkeys(data.files.values()))
    missing = {str(text) for text in data.missing_values}
    return [{name: _counts(frame[name], missing) for name in names} for frame in frames]


def _counts(series: pd.Series, missing: set[str]) -> Counter[str]:
    found = Counter[str]()
    for each in as_texts(series).value_counts().to_pylist():
        text = None if each["values"] is None else each["values"].strip()  # as levels are matched
        if text is not None and text not in missing:
            found[text] += each["counts"]
    return found
