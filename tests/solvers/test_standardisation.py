"""Means and spreads of columns: what a row can move, what follows from the sums, and that wide
bounds cost nothing.
"""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import PartyFacts
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.round_sums import RoundSum, share_noise
from homo_dp.federation.sessions.build import federation_facts
from homo_dp.models.scoring import round_metrics
from homo_dp.privacy.gradients.losses import binary_logistic
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.runs.simulation import RunOutcome, Simulation
from homo_dp.solvers.second_moment import TRANSFORM, SecondMoment
from homo_dp.solvers.standardisation import (
    COLUMNS,
    MOST_SCALE,
    ROOM,
    WHOLE,
    Standardisation,
)

ROW_NORM = 2.0


class Silence(SeededNoise):
    """No noise, so that sums can be compared."""

    def __init__(self) -> None:
        super().__init__(0)

    def normal(self, shape: Any, std: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)


def config_of(**keys: Any) -> Config:
    base = {
        "privacy.mechanism": "dp_fedsgd",
        "privacy.target_epsilon": 4.0,
        "train.solver": "second_moment",
        "train.row_norm": ROW_NORM,
        "train.column_share": 0.1,
        "train.auto": False,
    }
    return load_config(
        None, base | {name.replace("__", "."): value for name, value in keys.items()}
    )


def round_of(
    width: int, rows: int, outputs: int = 1, levels: tuple[int, ...] = (), **keys: Any
) -> Standardisation:
    config = config_of(**keys)
    parameters = outputs * (width + config.model.bias)
    return Standardisation(
        config,
        federation_facts(config, {"a": rows}, parameters, outputs, dict.fromkeys(levels, 0.0)),
        None,
    )


def fit_of(features: Tensor, labels: Tensor, outputs: int = 1, bias: bool = True) -> LocalFit:
    model, facts = (
        nn.Linear(features.shape[1], outputs, bias=bias),
        PartyFacts("a", len(features), 1, 1, 1.0),
    )
    return LocalFit(
        model, binary_logistic, features, labels, facts, config_of().train, torch.Generator()
    )


def answered(
    found: Standardisation, features: Tensor, labels: Tensor, outputs: int = 1, bias: bool = True
) -> Tensor:
    return silent(
        found.passes[0],
        found.row_sum(fit_of(features, labels, outputs, bias), found.passes[0], None),
    )


def silent(asked: RoundSum, total: Tensor) -> Tensor:
    """The released sum, were there no noise."""
    return asked.private_sum.release(total, Silence())


def looked_closer(found: Standardisation, features: Tensor, columns: Tensor) -> Tensor:
    """Columns after all passes but the first."""
    fit = fit_of(features, torch.zeros(len(features)).long())
    for asked in found.passes[1:]:
        columns = found.closer({"a": silent(asked, found.row_sum(fit, asked, columns))}, columns)
    return columns


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("value", [1.0, -1.0, 1e6, -1e30, math.inf, math.nan, 0.0])
def test_a_row_moves_the_sum_by_at_most_the_clip_norm(value: float, outputs: int) -> None:
    features, labels = torch.rand(20, 4) * 2 - 1, torch.zeros(20).long()
    features[3], labels[3] = value, 1
    found = round_of(4, 20, outputs)
    kept = torch.arange(20) != 3
    apart = answered(found, features, labels, outputs) - answered(
        found, features[kept], labels[kept], outputs
    )
    private_sum = found.passes[0].private_sum
    assert private_sum.clip_norm == WHOLE * ROW_NORM
    assert float(apart.norm()) <= private_sum.clip_norm * (1 + 1e-9) + private_sum.grid.step * 10


@pytest.mark.parametrize("value", [1.0, 1e6, math.inf, 0.0])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_a_row_moves_later_passes_by_at_most_the_clip_norm_in_any_columns(
    value: float, scale: float
) -> None:
    features = torch.rand(300, 4) * 2 - 1
    features[3] = value
    columns = (torch.rand(5, 5, dtype=torch.float64) * 2 - 1) * scale
    found = round_of(4, 300, train__column_passes=3)
    private_sum = found.passes[1].private_sum
    totals = [
        silent(
            found.passes[1],
            found.row_sum(fit_of(rows, torch.zeros(len(rows)).long()), found.passes[1], columns),
        )
        for rows in (features, features[torch.arange(300) != 3])
    ]
    apart = float((totals[0] - totals[1]).norm())
    assert apart <= private_sum.clip_norm * (1 + 1e-9) + private_sum.grid.step * 10
    assert apart > 0.5 * private_sum.clip_norm or scale == 1.0 or value in (0.0, math.inf)


def test_what_noise_hides_in_one_pass_the_next_ones_find() -> None:
    """Values fill a hundredth and a thousandth of their bounds, or one point; a level stays as
    it is.
    """
    generator, count = torch.Generator().manual_seed(3), 4000
    narrow = 0.7 + torch.randn(count, 2, generator=generator) * torch.tensor([0.01, 0.001])
    level = (torch.rand(count, 1, generator=generator) < 0.2).float()
    features = torch.cat([narrow, torch.full((count, 1), -0.3), level], 1)
    found = round_of(4, count, levels=(3,), privacy__target_epsilon=8.0, train__column_passes=3)
    first = found.take({"a": answered(found, features, torch.arange(count) % 2)}).transform
    rows = torch.cat([features.double(), torch.ones(count, 1).double()], 1)
    spreads = [
        (rows @ columns / columns[-1, -1]).std(0)
        for columns in (first, looked_closer(found, features, first))
    ]
    assert float(spreads[0][1]) < 0.1
    assert float(spreads[1][0]) == pytest.approx(1.0, rel=0.3)
    assert float(spreads[1][1]) > 0.5
    assert float(spreads[1][3]) == pytest.approx(0.4, rel=0.05)
    last = looked_closer(found, features, first)
    assert float(last.abs().max()) <= 2 * MOST_SCALE  # the constant column, and its centre
    assert torch.equal(looked_closer(found, features, torch.eye(5).double()), torch.eye(5).double())


def test_numbers_get_mean_0_and_spread_1_levels_are_centred_only() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 4000
    narrow = -0.9 + 0.01 * torch.randn(count, generator=generator)  # bounds a hundred times as wide
    even = torch.rand(count, generator=generator) * 2 - 1
    level = (torch.rand(count, generator=generator) < 0.1).float()
    features = torch.stack([narrow, even, level], 1)
    found = round_of(3, count, levels=(2,), privacy__target_epsilon=1e4)  # hardly any noise
    scales = found.take({"a": answered(found, features, torch.arange(count) % 2)})
    rows = torch.cat([features.double(), torch.ones(count, 1).double()], 1) @ scales.transform
    rows = rows / rows[0, -1]  # the bias is 1 again
    assert torch.allclose(rows.mean(0)[:3], torch.zeros(3).double(), atol=0.01)
    assert rows[:, 1].std() == pytest.approx(1.0, rel=0.05)
    assert rows[:, 0].std() == pytest.approx(1.0, rel=0.3)
    assert rows[:, 2].std() == pytest.approx(0.3, rel=0.05)


def test_rows_are_about_as_long_as_the_moment_takes() -> None:
    count = 2000
    features = torch.rand(count, 6, generator=torch.Generator().manual_seed(1)) * 0.1
    found = round_of(6, count, privacy__target_epsilon=1e4)
    transform = found.take({"a": answered(found, features, torch.arange(count) % 2)}).transform
    rows = torch.cat([features.double(), torch.ones(count, 1).double()], 1) @ transform
    assert float(rows.square().sum(1).mean().sqrt()) == pytest.approx(ROW_NORM / ROOM, rel=0.05)


@pytest.mark.parametrize(
    ("chance", "epsilon", "odds"), [(0.05, 1e3, math.log(0.05 / 0.95)), (0.05, 0.01, 0.0)]
)
def test_the_start_is_the_odds_unless_they_drown(
    chance: float, epsilon: float, odds: float
) -> None:
    count = 2000
    features, labels = torch.zeros(count, 2), (torch.arange(count) < chance * count).long()
    found = round_of(2, count, privacy__target_epsilon=epsilon)
    assert float(found.take({"a": answered(found, features, labels)}).odds) == pytest.approx(
        odds, abs=0.05
    )


def test_odds_of_several_classes_and_none_of_a_number() -> None:
    count = 3000
    # half 0, half 2, no 1
    features, labels = torch.zeros(count, 2), torch.arange(count) % 6 // 3 * 2
    found = round_of(2, count, 3, privacy__target_epsilon=1e3)
    odds = found.take({"a": answered(found, features, labels, 3)}).odds
    assert odds[0] == pytest.approx(float(odds[2]), abs=0.05)
    assert odds[1] < odds[0] - 3
    number = round_of(2, count, model__name="linear_regression", data__target_bounds=[0, 1])
    total = answered(number, features, torch.rand(count))
    assert total.numel() == 6
    assert float(number.take({"a": total}).odds) == 0.0


@pytest.mark.parametrize("outputs", [1, 3])
def test_rare_classes_keep_the_columns_own_scale_at_noise_that_even_ones_do_not(
    outputs: int,
) -> None:
    """Noise of a mean is about 0.1 here: half of p (1 - p) of even classes, and twice that of
    rare ones.
    """
    count = 1000
    features = torch.rand(count, 2, generator=torch.Generator().manual_seed(2)) * 0.1
    found = round_of(2, count, outputs, privacy__target_epsilon=0.4)
    scales = {}
    for name, every in (("even", 2), ("rare", 30)):
        labels = (torch.arange(count) % every == 0).long()
        scales[name] = found.take({"a": answered(found, features, labels, outputs)}).transform
    noise = found.passes[0].private_sum.total_sigma / count
    assert 0.06 < noise < 0.2
    assert not torch.equal(scales["even"], torch.eye(3, dtype=torch.float64))
    assert torch.equal(scales["rare"], torch.eye(3, dtype=torch.float64))


def test_without_a_bias_nothing_is_centred() -> None:
    found = round_of(2, 1000, model__bias=False, privacy__target_epsilon=1e4)
    features = torch.full((1000, 2), 0.5)
    transform = found.take(
        {"a": answered(found, features, torch.arange(1000) % 2, bias=False)}
    ).transform
    assert transform.shape == (2, 2)
    assert float((features.double() @ transform).norm(dim=1)[0]) == pytest.approx(
        ROW_NORM / ROOM, rel=0.05
    )


def test_where_a_row_stands_does_not_move_the_moment() -> None:
    """Coordinates from an aggregator whose products with rows are rounding alone, times as much
    as a party accepts.
    """
    width, count = 40, 1501
    config = config_of()
    facts = federation_facts(config, {"a": count}, width + 1)
    generator = torch.Generator().manual_seed(0)
    row = torch.rand(width, generator=generator) * 2 - 1
    column = (torch.rand(width, generator=generator) * 2 - 1) * 1e6
    for _ in range(3):
        column -= (
            column.double() @ row.double() / (row.double() @ row.double()) * row.double()
        ).float()
    transform = torch.zeros(width + 1, width + 1)
    transform[:width, 0] = column.clamp(-1e6, 1e6)
    features = row.repeat(count, 1)
    totals = []
    for kept in (features, features[1:], features[2:]):
        moment = SecondMoment(config, facts, None, lambda: 1.0)
        fit = fit_of(kept, torch.zeros(len(kept)).long())
        fit.start = {TRANSFORM: transform}
        totals.append(silent(moment.asked, moment.row_sum(fit, moment.asked)))
    for one, other in itertools.pairwise(totals):
        assert float((one - other).norm()) <= ROW_NORM**2


def test_a_share_of_given_noise_is_a_share_of_what_the_rounds_make() -> None:
    config = config_of(
        privacy__target_epsilon=None, privacy__noise_multiplier=3.0, train__moment_share=0.2
    )
    noise = share_noise(config, 10, 0.1)
    assert 1 / noise**2 / (10 / 3.0**2) == pytest.approx(0.1 / 0.7)


def test_shares_leave_something_for_the_rounds() -> None:
    with pytest.raises(ConfigError, match=r"train.column_share"):
        config_of(train__column_share=0.5, train__moment_share=0.6)


def wide_table(folder: Path) -> dict[str, Any]:
    """Two numbers that fill a hundredth of their bounds, and say all that there is to know."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=6000), "b": rng.normal(size=6000), "c": rng.uniform(-1, 1, 6000)}
    )
    frame["y"] = (rng.uniform(size=6000) < 1 / (1 + np.exp(-2 * frame.a + 2 * frame.b + 2))).astype(
        int
    )
    frame.to_csv(folder / "table.csv", index=False)
    return {
        "data.files": {"table": str(folder / "table.csv")},
        "data.partition": {"kind": "iid", "parties": 3},
        "data.columns": {
            "a": {"bounds": [-20, 300]},
            "b": {"bounds": [-300, 20]},
            "c": {"bounds": [-1, 1]},
        },
        "data.label": "y",
        "data.classes": [0, 1],
        "data.test_fraction": 0.2,
        "privacy.target_epsilon": 1.0,
        "privacy.ledger": str(folder / "ledger.sqlite"),
        "train.evaluate_every": 0,
        "tracking.enabled": False,
    }


def ran(keys: dict[str, Any]) -> tuple[Simulation, RunOutcome, float]:
    found = Simulation(load_config(None, keys), lambda row, numbers: None)
    outcome = found.run()
    outcome.load_weights()
    return (
        found,
        outcome,
        round_metrics(outcome.model.module, outcome.model.task, found.test_tables)["test_auc"]
        or 0.0,
    )


@pytest.mark.parametrize("passes", [None, 3])
@pytest.mark.parametrize("secure", [False, True])
def test_wide_bounds_cost_nothing(tmp_path: Path, secure: bool, passes: int | None) -> None:
    """AUC without privacy is 0.93; without scales of columns the same run stays at about 0.8."""
    asked = {} if passes is None else {"train.column_passes": passes}
    found, outcome, area = ran(
        wide_table(tmp_path) | {"privacy.secure_aggregation": secure} | asked
    )
    assert outcome.statement["parties"]["party_1"]["epsilon_pld"] <= 1.0
    rows = found.ledger.rows(outcome.run, "party_1") if found.ledger else []
    count = passes or 1
    assert [row.kind for row in rows][: count + 2] == [COLUMNS] * count + [
        "second_moment",
        "update",
    ]
    assert area > 0.9
