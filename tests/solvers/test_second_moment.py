"""Solvers for linear models: rounds that ask a second moment, what they cost, and that they
learn.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import Update
from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.protocol.round_sums import SUM
from homo_dp.federation.sessions.build import (
    build_fit,
    build_mechanism,
    federation_facts,
    noise_source,
)
from homo_dp.models.registry import build_model
from homo_dp.models.scoring import round_metrics
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.runs.simulation import RunOutcome, Simulation
from homo_dp.solvers.second_moment import TRANSFORM, SecondMoment
from homo_dp.solvers.solver import as_table, as_weights
from homo_dp.solvers.whitening import Whitening
from tests.federation.small import small_config, small_mechanism, zeros

MOMENT = {
    "train.solver": "second_moment",
    "train.row_norm": 3.5,
    "train.learning_rate": 2.0,
    "privacy.max_grad_norm": 0.8,
    "train.server_optimizer": {"name": "fedavgm", "momentum": 0.5},
    "train.averaging": "tail",
}


def ran(folder: Path, **keys: Any) -> tuple[Simulation, RunOutcome]:
    base = {
        "data.embedded": "breast_cancer",
        "data.partition": {"kind": "iid", "parties": 3},
        "privacy.mechanism": "dp_fedsgd",
        "privacy.target_epsilon": 6.0,
        "privacy.ledger": str(folder / "ledger.sqlite"),
        "train.rounds": 12,
        "train.sample_rate": 1.0,
        "train.auto": False,
        "train.evaluate_every": 0,
        "tracking.enabled": False,
    }
    found = Simulation(load_config(None, base | MOMENT | keys), lambda row, numbers: None)
    return found, found.run()


def scores(found: Simulation, outcome: RunOutcome) -> dict[str, float | None]:
    outcome.load_weights()
    return round_metrics(outcome.model.module, outcome.model.task, found.test_tables)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("data", ["breast_cancer", "digits"])
def test_a_moment_then_gradients_learn_within_the_target(
    tmp_path: Path, secure: bool, data: str
) -> None:
    keys = {
        "privacy.secure_aggregation": secure,
        "data.embedded": data,
        "train.row_norm": 3.5 if secure else 4.0,
    }
    found, outcome = ran(tmp_path, **keys)
    party = outcome.statement["parties"]["party_1"]
    assert 5.9 < party["epsilon_pld"] <= 6.0
    rows = found.ledger.rows(outcome.run, "party_1") if found.ledger else []
    assert [row.kind for row in rows] == ["second_moment"] + ["update"] * 12
    assert (scores(found, outcome)["test_acc"] or 0) > 0.8


@pytest.mark.parametrize("secure", [False, True])
def test_the_gradient_solver_learns_with_rows_clipped(tmp_path: Path, secure: bool) -> None:
    keys = {
        "train.solver": "gradient",
        "privacy.max_grad_norm": 3.5,
        "train.learning_rate": 0.5,
        "train.rounds": 30,
    }
    found, outcome = ran(tmp_path, **keys, **{"privacy.secure_aggregation": secure})
    assert outcome.statement["parties"]["party_1"]["epsilon_pld"] <= 6.0
    rows = found.ledger.rows(outcome.run, "party_1") if found.ledger else []
    assert [row.kind for row in rows] == ["update"] * 30
    assert (scores(found, outcome)["test_acc"] or 0) > 0.9


def test_linear_regression_starts_from_least_squares(tmp_path: Path) -> None:
    frame = tmp_path / "table.csv"
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4000, 3, generator=generator) * 2 - 1
    y = x @ torch.tensor([0.5, -0.3, 0.1]) + 0.1
    frame.write_text(
        "a,b,c,y\n"
        + "\n".join(",".join(f"{v:.5f}" for v in (*r, t)) for r, t in zip(x, y, strict=True))
    )
    columns = {name: {"bounds": [-1, 1]} for name in "abc"}
    keys: dict[str, Any] = {
        "model.name": "linear_regression",
        "data.embedded": None,
        "data.files": {"table": str(frame)},
        "data.columns": columns,
        "data.target_bounds": [-1, 1],
        "train.rounds": 2,
        "train.row_norm": 2.0,
        "train.learning_rate": 0.5,
        "train.server_optimizer": "fedavg",
        "train.averaging": "none",
        "privacy.max_grad_norm": 0.2,
    }
    _, outcome = ran(tmp_path, **keys)
    weight = outcome.weights["linear.weight"].reshape(-1)
    assert torch.allclose(weight, torch.tensor([0.5, -0.3, 0.1]), atol=0.05)


def test_a_step_goes_back_to_the_columns_coordinates() -> None:
    config = small_config(
        privacy__mechanism="dp_fedsgd",
        train__local_steps=None,
        train__solver="second_moment",
        train__row_norm=2.0,
        train__learning_rate=1.0,
        train__sample_rate=1.0,
    )
    mechanism = small_mechanism(config, {"a": 100})
    assert isinstance(mechanism, DpFedSgd)
    moment = torch.diag(torch.tensor([4.0, 1.0, 0.25, 1.0], dtype=torch.float64))
    solver = mechanism.solver
    assert isinstance(solver, SecondMoment)
    solver.whitening = Whitening.of(moment, noise=1e-9)
    gradient = {
        "linear.weight": torch.tensor([[200.0, 100.0, 50.0]]),
        "linear.bias": torch.tensor([100.0]),
    }
    turned = as_weights(as_table(gradient) @ solver.found.transform, gradient)
    # a Newton step: S^-1 g
    moved = mechanism.on_receive([Update("a", turned, 1.0)], zeros(), 1).weights
    assert torch.allclose(moved["linear.weight"], torch.tensor([[-0.5, -1.0, -2.0]]), atol=1e-5)
    again = small_mechanism(config, {"a": 100})
    again.restore(mechanism.state())
    assert torch.equal(
        again.broadcast_tensors(2, {})[TRANSFORM], mechanism.broadcast_tensors(2, {})[TRANSFORM]
    )
    assert not mechanism.broadcast_tensors(1, {})


def test_few_rows_count_less_by_noise_than_by_rows() -> None:
    keys = {
        "privacy__mechanism": "dp_fedsgd",
        "train__local_steps": None,
        "train__sample_rate": 1.0,
    }
    mechanism = small_mechanism(small_config(**keys, train__weighting="noise"), {"a": 10, "b": 90})
    assert isinstance(mechanism, DpFedSgd)
    weights = mechanism._party_weights(["a", "b"])
    assert weights["b"] / weights["a"] == pytest.approx(9.0)
    # the same mean where all rows agree: sums of 10 and 90 ones are a mean of 1
    assert (10 * weights["a"] + 90 * weights["b"]) / 100 == pytest.approx(1.0)


def test_a_network_has_no_second_moment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.solver=second_moment"):
        ran(tmp_path, **{"model.name": "mlp"})


def sum_of(features: Tensor, transform: Tensor, asked: int, declared: int) -> tuple[Tensor, float]:
    """What a party adds to a sum before its noise, in columns that the aggregator sent; and the
    sum's clip norm.
    """
    keys = {
        "privacy.mechanism": "dp_fedsgd",
        "privacy.noise_multiplier": 4.0,
        "train.auto": False,
        "train.rounds": 5,
    }
    columns = {
        "train.row_norm": 1.001e-6,
        "train.column_share": 0.1,
        "train.column_passes": 2,
        "train.sample_rate": 1,
    }
    config = load_config(
        None, keys | columns | {"train.solver": "second_moment", "privacy.delta": 1e-7}
    )
    width = features.shape[1]
    mechanism = build_mechanism(
        config, federation_facts(config, {"a": declared}, width + 1), noise_source(config)
    )
    model = build_model(config.model, (width,), (0, 1))
    labels = torch.zeros(len(features)).long()
    fit = build_fit(config, model, Table(features, labels), mechanism.facts.parties["a"])
    fit.begin(dict(model.module.state_dict()) | {TRANSFORM: transform})
    question = mechanism.run.sums[asked]
    return mechanism.run.answer(fit, question).tensors[SUM], question.private_sum.clip_norm


@pytest.mark.parametrize("asked", [2, 3])  # the second look at the columns, and the moment
def test_rounding_in_columns_that_an_aggregator_made_moves_no_other_row(
    asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows cancel in these columns, and one of ones multiplies what is left: 5.8 C where rows
    are rounded by place.
    """
    monkeypatch.setattr(PrivateSum, "release", lambda self, total, noise: total)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(100, generator=generator)
    pairs = 1e6 * torch.exp2(-4 * torch.rand(50, generator=generator))
    transform = torch.zeros(101, 101)
    transform[order[0::2], 96] = transform[order[1::2], 96] = pairs
    transform[100, 0] = 7e-7
    signs = torch.randint(0, 2, (20_000, 50), generator=generator) * 2 - 1
    values = torch.exp2(-10 * torch.rand(20_000, 50, generator=generator)) * signs
    tried = torch.empty(20_000, 100)
    tried[:, order[0::2]], tried[:, order[1::2]] = values, -values
    twice = tried.repeat_interleave(2, 0).double()
    places = (torch.cat([twice, torch.ones(40_000, 1)], 1) @ transform.double())[:, 96].reshape(
        -1, 2
    )
    gaps = places[:, 1] - places[:, 0]
    # as place moves them, one way
    table = tried[torch.stack([gaps.argmax(), gaps.argmin()])].repeat(2500, 1)
    whole, clip_norm = sum_of(table, transform, asked, len(table))
    rest, _ = sum_of(table[1:], transform, asked, len(table))
    assert float((whole - rest).norm()) <= clip_norm
