"""The last rounds of a model by a second moment: scores get the spread and the odds that rows
have.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import Update
from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.mechanisms.train_hooks import Hooks, with_hooks
from homo_dp.federation.sessions.build import build_mechanism, federation_facts, noise_source
from homo_dp.privacy.gradients.losses import binary_logistic
from homo_dp.runs.simulation import Simulation
from homo_dp.solvers.calibration import LONGEST_STEP, SHORTEST, Calibration
from homo_dp.solvers.second_moment import TRANSFORM, SecondMoment
from homo_dp.solvers.whitening import Whitening
from tests.federation.small import small_config
from tests.privacy.test_linear_rows import linear_sum

TRUE = torch.tensor([1.0, -0.5, 0.8, -1.0], dtype=torch.float64)  # of three columns, then the bias


def made_rows(count: int = 20_000) -> tuple[Tensor, Tensor]:
    """Rows with a 1 behind, and their classes by the true weights."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, 4, generator=generator, dtype=torch.float64) + torch.tensor(
        [0.5, 0.0, -0.5, 0.0]
    )
    rows[:, -1] = 1.0
    return rows, (torch.rand(count, generator=generator) < torch.sigmoid(rows @ TRUE)).double()


def found_at(weights: Tensor, rows: Tensor, clip: float = 1.0) -> Calibration:
    columns = torch.eye(4, dtype=torch.float64)
    columns[-1, :-1] = -rows[:, :-1].mean(0)
    moment = (rows @ columns).t() @ (rows @ columns) / len(rows)
    whitening = Whitening.of(moment, 1e-9, columns)
    found = Calibration.of(weights, columns, whitening.transform, whitening.scale, clip)
    assert found is not None
    return found


def gradient(found: Calibration, rows: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """As parties give it, clipped, without noise."""
    each = (torch.sigmoid(rows @ weights) - labels).unsqueeze(1) * (rows @ found.transform)
    clipped: Tensor = each * (found.clip / each.norm(dim=1).clamp(min=1e-12)).clamp(
        max=1.0
    ).unsqueeze(1)
    return clipped.mean(0)


def test_mean_and_spread_of_scores_follow_from_released_numbers() -> None:
    rows, _ = made_rows()
    found = found_at(TRUE, rows)
    scores = rows @ TRUE
    assert found.mean == pytest.approx(float(scores.mean()), abs=1e-6)
    assert found.spread == pytest.approx(float(scores.std()), rel=0.01)
    turned = rows @ found.transform
    assert torch.allclose(
        turned[:, 0], (scores - found.mean) / found.spread / math.sqrt(2), atol=1e-9
    )
    ones = torch.tensor([1 / math.sqrt(2), 0.0, 0.0], dtype=torch.float64)
    assert torch.allclose(turned[:, 1:], ones.expand(len(rows), 3), atol=1e-12)


@pytest.mark.parametrize(("stretch", "shift"), [(2.0, 0.0), (0.5, 0.5), (1.5, -1.0)])
def test_two_rounds_mend_models_that_are_too_sure_or_off(stretch: float, shift: float) -> None:
    rows, labels = made_rows()
    weights = TRUE * stretch
    weights[-1] += shift
    for _ in range(2):
        found = found_at(weights, rows, clip=2.0)
        weights = found.moved(gradient(found, rows, labels, weights), noise=0.0)
    assert torch.allclose(weights / weights[0], TRUE / TRUE[0], atol=0.15)
    assert float(weights[0]) == pytest.approx(1.0, abs=0.15)
    # which way it points is as before, to the last bits
    assert torch.allclose(weights[:3] / weights[0], TRUE[:3] / TRUE[0])


def test_no_step_is_long_and_no_score_changes_its_order() -> None:
    rows, _ = made_rows(100)
    found = found_at(TRUE, rows)
    moved = found.moved(torch.tensor([1e9, -1e9], dtype=torch.float64), noise=0.0)
    assert float(moved[0]) >= SHORTEST * float(TRUE[0]) * (1 - 1e-9)
    after = rows @ moved
    assert abs(float(after.mean() - (rows @ TRUE).mean())) <= LONGEST_STEP + 1e-6
    # noise makes steps shorter
    little = found.moved(torch.tensor([0.01, 0.01], dtype=torch.float64), noise=0.0) - TRUE
    less = found.moved(torch.tensor([0.01, 0.01], dtype=torch.float64), noise=1.0) - TRUE
    assert float(less.norm()) < 0.3 * float(little.norm())


def test_nothing_is_known_of_scores_where_no_column_was_centred() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    assert Calibration.of(TRUE, eye, eye, 1.0, 1.0) is None
    columns = eye.clone()
    columns[-1, :-1] = -0.3
    assert Calibration.of(torch.zeros(4, dtype=torch.float64), columns, columns, 1.0, 1.0) is None


def test_a_row_moves_a_sum_in_coordinates_of_scores_by_the_clip_norm_at_most() -> None:
    rows, labels = made_rows(200)
    rows[0, :3] = 1e6  # far from all others
    found = found_at(TRUE * 30, rows[1:], clip=0.4)
    sums = []
    for first in (0, 1):
        layer = torch.nn.Linear(3, 1)
        with torch.no_grad():
            layer.weight.copy_(TRUE[:3].reshape(1, 3) * 30)
            layer.bias.copy_(TRUE[3:] * 30)
        sums.append(
            linear_sum(
                layer,
                binary_logistic,
                rows[first:, :3].float(),
                labels[first:],
                0.4,
                found.transform.float(),
                declared=200,
            )
        )
    assert 0.01 < float((sums[0] - sums[1]).norm()) <= 0.4


def small(*, outputs: int = 1, **keys: Any) -> DpFedSgd:
    config = small_config(
        privacy__mechanism="dp_fedsgd",
        train__local_steps=None,
        train__solver="second_moment",
        train__row_norm=2.0,
        train__column_share=0.1,
        train__learning_rate=1.0,
        train__sample_rate=1.0,
        train__rounds=6,
        **keys,
    )
    facts = federation_facts(config, {"a": 100}, 4 * outputs, outputs)
    mechanism = build_mechanism(config, facts, noise_source(config))
    assert isinstance(mechanism, DpFedSgd)
    return mechanism


def test_only_the_last_rounds_are_in_coordinates_of_scores_and_a_restart_gives_the_same() -> None:
    mechanism = small(train__calibration_rounds=2)
    solver = mechanism.solver
    assert isinstance(solver, SecondMoment)
    columns = torch.eye(4, dtype=torch.float64)
    columns[-1, :-1] = 0.2
    solver._scaled = columns
    solver.whitening = Whitening.of(torch.eye(4, dtype=torch.float64), 1e-9, columns)
    weights = {"linear.weight": torch.tensor([[1.0, 2.0, 0.0]]), "linear.bias": torch.tensor([0.5])}
    rounds = range(1, 9)  # columns, moment, then six that train
    assert [number for number in rounds if mechanism.run.starts_from_mean(number)] == [7, 8]
    sent = [mechanism.broadcast_tensors(number, weights)[TRANSFORM] for number in (6, 7, 8)]
    assert torch.linalg.matrix_rank(sent[0]) == 4
    assert [int(torch.linalg.matrix_rank(each)) for each in sent[1:]] == [2, 2]
    again = small(train__calibration_rounds=2)
    again.restore(mechanism.state())
    assert torch.equal(again.broadcast_tensors(7, weights)[TRANSFORM], sent[1])
    update = {"linear.weight": torch.tensor([[0.5, 9.0, 9.0]]), "linear.bias": torch.tensor([9.0])}
    taken = mechanism.on_receive([Update("a", update, 1.0)], weights, 6)
    assert taken.whole
    assert torch.allclose(
        taken.weights["linear.weight"][0, 1] / taken.weights["linear.weight"][0, 0],
        torch.tensor(2.0),
    )
    assert not mechanism.on_receive([Update("a", update, 1.0)], weights, 4).whole


@pytest.mark.parametrize("secure", [False, True])
def test_a_whole_run_ends_with_calibrated_weights_and_costs_what_it_did(
    tmp_path: Path, secure: bool
) -> None:
    base = {
        "data.embedded": "breast_cancer",
        "data.partition": {"kind": "iid", "parties": 3},
        "privacy.mechanism": "dp_fedsgd",
        "privacy.target_epsilon": 50.0,
        "privacy.secure_aggregation": secure,
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
        "train.auto": True,
        "train.solver": "second_moment",
        "train.rounds": 8,
        "train.calibration_rounds": 2,
        "train.column_share": 0.06,
        "train.evaluate_every": 0,
        "tracking.enabled": False,
    }
    run = Simulation(load_config(None, base), lambda row, numbers: None)
    injected: list[int] = []
    hooks = Hooks()
    hooks.injectors.append(lambda number, weights: injected.append(number))
    seen: list[Tensor] = []
    weight = dict(run.model.module.named_parameters())["linear.weight"]
    run.on_round = lambda row, numbers: seen.append(weight.detach().clone().reshape(-1))
    with with_hooks(hooks):
        outcome = run.run()
    assert injected == list(range(3, 11))  # the model that is published, too
    assert max(party["epsilon_pld"] for party in outcome.statement["parties"].values()) <= 50.0
    assert len(seen) == 10
    final = outcome.weights["linear.weight"].reshape(-1)
    assert torch.equal(final, seen[-1])  # no mean of models is taken over it
    # the same way
    assert torch.allclose(final / final.norm(), seen[-2] / seen[-2].norm(), atol=1e-5)
    # the mean of those before
    assert not torch.allclose(final / final.norm(), seen[-3] / seen[-3].norm(), atol=1e-3)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"train.solver": "gradient"}, "second_moment"),
        ({"train.solver": "second_moment", "train.auto": False}, "column_share"),
        ({"train.auto": False}, "second_moment"),
        (
            {"train.solver": "second_moment", "train.column_share": 0.1, "train.rounds": 2},
            "below train.rounds",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, {"train.calibration_rounds": 2, **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {"outputs": 3},
        {"model__bias": False},
        {"model__name": "linear_regression", "model__task": "regression"},
    ],
)
def test_only_a_model_of_two_classes_with_a_bias_is_calibrated(keys: dict[str, Any]) -> None:
    # Refused before a round is paid for: the scores of three classes failed in the last one, and
    # those of a regression were moved as if they were log odds.
    assert small(**keys).config.train.calibration_rounds == 0
    with pytest.raises(
        ConfigError, match="calibration_rounds=2: is for two classes and a model with a bias"
    ):
        small(train__calibration_rounds=2, **keys)
