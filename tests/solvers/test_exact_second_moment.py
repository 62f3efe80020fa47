"""Without privacy, steps by an exact second moment: the loss falls from any weights, and no
private run can ask it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError, MessageError
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import PartyFacts, Update, Weights, party_weights
from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.mechanisms.none import PlainAveraging
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.protocol.round_sums import SUM, ExactSum, RoundSum, RoundSums
from homo_dp.federation.sessions.build import build_aggregator, build_fit
from homo_dp.models.registry import build_model
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.moments import as_vector, second_moment
from tests.federation.small import FEATURES, RUN, small_config, small_mechanism, small_party, zeros

PLAIN = {
    "privacy__mechanism": "none",
    "privacy__noise_multiplier": None,
    "train__solver": "second_moment",
    "train__auto": False,
    "train__local_steps": None,
    "train__sample_rate": 1.0,
    "train__rounds": 40,
    "train__learning_rate": 6.0,
    "train__column_share": 0.06,
    "train__weighting": "rows",
}


def narrow_table(rows: int, seed: int, separable: bool) -> Table:
    """Columns that fill all, a hundredth and a ten-thousandth of their bounds, far from the
    middle.
    """
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    scores = values @ torch.tensor([1.0, -2.0, 1.5], dtype=torch.float64)
    noise = torch.rand(rows, generator=generator, dtype=torch.float64)
    labels = scores > 0 if separable else noise < scores.sigmoid()
    features = values * torch.tensor([0.3, 1e-2, 1e-4]) + torch.tensor([0.0, 0.8, -0.7])
    return Table(features.float(), labels.long())


class Run:
    """All messages of a run without a transport: losses after every round, and the weights."""

    def __init__(
        self, tables: dict[str, Table], missing: tuple[str, ...] = (), **keys: Any
    ) -> None:
        self.config = small_config(**(PLAIN | keys))
        rows = {name: len(table.features) for name, table in tables.items()}
        mechanism = self.mechanism = small_mechanism(self.config, rows)
        assert isinstance(mechanism, PlainAveraging)
        model = build_model(self.config.model, (FEATURES,), (0, 1))
        self.fits = {
            name: build_fit(self.config, model, table, mechanism.facts.parties[name])
            for name, table in tables.items()
        }
        weights, asked = zeros(), mechanism.run.sums[1]
        parts = {}
        for name, fit in self.fits.items():
            fit.begin(weights)
            if name not in missing:
                parts[name] = mechanism.run.answer(fit, asked).tensors[SUM]
        if parts:
            weights = mechanism.run.take_sum(asked, parts, weights, 1).weights
        self.losses = []
        weights_of = party_weights(self.config, mechanism.facts)
        for number in range(1, self.config.train.rounds + 1):
            updates = []
            for name, fit in self.fits.items():
                release = fit.fit(mechanism, weights, number, {})
                assert release.event is None
                updates.append(Update(name, release.tensors, weights_of[name]))
            weights = mechanism.on_receive(updates, weights, number).weights
            self.losses.append(self.loss(weights, tables))
        self.weights = weights

    def loss(self, weights: Weights, tables: dict[str, Table]) -> float:
        """Mean loss over all rows, with the penalty of weights in columns of spread 1."""
        rows = torch.cat([table.features for table in tables.values()]).double()
        labels = torch.cat(
            [table.labels for table in tables.values() if table.labels is not None]
        ).double()
        scores = rows @ weights["linear.weight"].double().t() + weights["linear.bias"].double()
        penalty = (
            (weights["linear.weight"].double().reshape(-1) * rows.std(0, correction=0))
            .square()
            .sum()
        )
        found: Tensor = torch.nn.functional.binary_cross_entropy_with_logits(
            scores.reshape(-1), labels
        )
        return float(found + self.config.train.weight_decay * penalty / 2)


@pytest.mark.parametrize("separable", [False, True])
@pytest.mark.parametrize("decay", [0.0, 1e-3])
def test_the_loss_falls_in_every_round_however_narrow_columns_are(
    separable: bool, decay: float
) -> None:
    tables = {"a": narrow_table(400, 0, separable), "b": narrow_table(100, 1, separable)}
    found = Run(tables, train__weight_decay=decay)
    before = [math.log(2), *found.losses[:-1]]
    assert all(now <= then + 1e-6 for now, then in zip(found.losses, before, strict=True)), (
        found.losses
    )
    assert found.losses[-1] < (0.12 if separable else 0.45)


def test_weights_are_those_of_the_penalised_fit() -> None:
    """Newton's method in the columns' own scale finds the same minimum."""
    table = narrow_table(600, 2, separable=False)
    found = Run({"a": table}, train__weight_decay=0.01, train__rounds=200)
    rows = torch.cat([table.features.double(), torch.ones(600, 1, dtype=torch.float64)], dim=1)
    spread = rows.std(0, correction=0)
    scaled = torch.where(spread > 0, (rows - rows.mean(0)) / spread.clamp(min=1e-12), 1.0)
    weights, penalty = (
        torch.zeros(4, dtype=torch.float64),
        torch.tensor([0.01] * 3 + [0.0], dtype=torch.float64),
    )
    assert table.labels is not None
    for _ in range(30):
        chance = (scaled @ weights).sigmoid()
        gradient = scaled.t() @ (chance - table.labels.double()) / 600 + penalty * weights
        curve = (scaled * (chance * (1 - chance)).unsqueeze(1)).t() @ scaled / 600 + penalty.diag()
        weights -= torch.linalg.solve(curve, gradient)
    own = found.weights["linear.weight"].double().reshape(-1) * spread[:3]
    assert torch.allclose(own, weights[:3], atol=1e-3)


def test_a_party_that_missed_the_moment_makes_nothing_diverge() -> None:
    """Its rows lie where nobody else's do: an inverse of the others' moment alone would
    overshoot there.
    """
    wide = Table(torch.rand(200, FEATURES) * 2 - 1, torch.arange(200) % 2)
    tables = {"a": narrow_table(200, 3, separable=False), "b": wide}
    assert max(Run(tables, missing=("b",)).losses) <= math.log(2)
    assert max(Run(tables, missing=("a", "b")).losses) <= math.log(2)


def test_a_constant_column_and_columns_that_say_the_same_stay_finite() -> None:
    table = narrow_table(300, 4, separable=False)
    features = table.features.clone()
    features[:, 1], features[:, 2] = 0.25, features[:, 0]
    found = Run({"a": Table(features, table.labels)})
    assert all(tensor.isfinite().all() for tensor in found.weights.values())
    assert float(found.weights["linear.weight"].abs().max()) < 100


def test_a_restart_goes_on_with_the_same_steps() -> None:
    tables = {"a": narrow_table(100, 5, separable=False)}
    found = Run(tables, train__weight_decay=0.01)
    again = small_mechanism(found.config, {"a": 100})
    again.restore(found.mechanism.state())
    update = [
        Update("a", {name: tensor.double() + 1 for name, tensor in found.weights.items()}, 1.0)
    ]
    steps = [each.on_receive(update, found.weights, 3).weights for each in (found.mechanism, again)]
    assert all(torch.equal(steps[0][name], steps[1][name]) for name in found.weights)


REGRESSION = {
    "model__name": "linear_regression",
    "model__task": "regression",
    "data__target_bounds": [-1, 1],
    "train__learning_rate": 0.5,
}


class Invaded:
    """A run of the real aggregator and an honest party beside one that sends what it likes."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        config = small_config(**(PLAIN | {"train__rounds": 12} | keys))
        rows = {"a": 100, "evil": 100}
        table = narrow_table(100, 0, separable=False)
        if config.model.task == "regression":
            assert table.labels is not None
            table = Table(table.features, table.labels.float())
        self.aggregator = build_aggregator(
            config, RUN, zeros(), small_mechanism(config, rows), None
        )
        self.honest = small_party(config, folder, "a", small_mechanism(config, rows), table=table)

    def ask(self) -> Weights:
        """Open a round; what the honest party answered, which was taken."""
        self.aggregator.start_round()
        (question,) = (each for each in self.aggregator.broadcast() if each.recipient == "a")
        answer = self.honest.handle(question)
        assert answer is not None
        assert answer.kind == "update"
        self.aggregator.receive(answer)
        return dict(answer.tensors)

    def send(self, tensors: Weights) -> None:
        number = self.aggregator.round
        self.aggregator.receive(Message(RUN, number, "evil", "aggregator", "update", tensors))

    def finish(self) -> None:
        self.aggregator.finish_round()
        weights = self.aggregator.weights.values()
        # fedadam takes squares
        assert all(bool(tensor.square().isfinite().all()) for tensor in weights)


def filled(value: float) -> Weights:
    return {
        name: torch.full(tensor.shape, value, dtype=torch.float64)
        for name, tensor in zeros().items()
    }


@pytest.mark.parametrize("keys", [{}, REGRESSION])
def test_numbers_that_no_rows_give_are_refused_and_cost_their_sender_the_round(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    """A gradient of 1e300 made weights infinite, a moment of 1e308 has no eigenvalues: either
    ended the run of all.
    """
    run = Invaded(tmp_path, **keys)
    moment = torch.eye(FEATURES + 1, dtype=torch.float64)
    moment[0, 1] = moment[1, 0] = 1e308
    run.ask()
    for size in (1.0, 1e-300):  # the other is 1e8
        with pytest.raises(MessageError, match="the sum of any table"):
            run.send({SUM: as_vector(moment * size)})
    run.finish()
    run.ask()
    for value in (1e300, -1e30, 1e8):
        with pytest.raises(MessageError, match="holds a number above"):
            run.send(filled(value))
    run.finish()


@pytest.mark.parametrize("server", ["fedavg", "fedavgm", "fedadam"])
@pytest.mark.parametrize("keys", [{}, REGRESSION])
def test_the_longest_numbers_that_are_taken_end_no_run(
    tmp_path: Path, keys: dict[str, Any], server: str
) -> None:
    """The moment takes that of the honest party away, so that steps are as long as they get."""
    run = Invaded(tmp_path, train__server_optimizer={"name": server}, **keys)
    own = second_moment(run.ask()[SUM], FEATURES + 1)
    run.send({SUM: as_vector(1e-11 * torch.eye(FEATURES + 1, dtype=torch.float64) - own)})
    run.finish()
    for _ in range(12):
        run.ask()  # asserts that it takes the weights, and that its answer is taken
        longest = run.aggregator.mechanism.longest_update(run.aggregator.weights)
        assert longest is not None
        run.send(filled(longest))
        run.finish()


def test_a_moment_without_an_inverse_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    table = narrow_table(100, 0, separable=False)
    eigh = torch.linalg.eigh
    with monkeypatch.context() as patch:
        # does not converge
        patch.setattr(torch.linalg, "eigh", lambda matrix: eigh(matrix * math.nan))
        found = Run({"a": table})
    assert not found.mechanism.state()
    assert found.losses == Run({"a": table}, missing=("a",)).losses
    assert found.losses[-1] < math.log(2)
    # 1 over it: infinite
    asked, tiny = found.mechanism.run.sums[1], torch.eye(FEATURES + 1, dtype=torch.float64) * 1e-310
    combined = found.mechanism.run.take_sum(asked, {"a": as_vector(tiny)}, zeros(), 1)
    assert combined.discarded
    assert not found.mechanism.state()


class Unnoised(DpFedSgd):
    """A mechanism that calls itself private and asks a sum without noise."""

    def other_sums(self, party: PartyFacts) -> RoundSums:
        return {1: RoundSum("second_moment", ExactSum(10, longest=10.0), "X^T X")}


def test_a_private_run_cannot_ask_a_sum_without_noise(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="has no noise"):
        _ = RoundSum("second_moment", ExactSum(10, longest=10.0), "X^T X").event
    keys: dict[str, Any] = {"privacy__mechanism": "dp_fedsgd", "train__local_steps": None}
    config = small_config(**keys)
    mechanism = small_mechanism(config, {"a": 20})
    with pytest.raises(PrivacyError, match="has no noise"):
        small_party(config, tmp_path, mechanism=Unnoised(config, mechanism.facts, mechanism.noise))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"train.local_steps": 3}, "train.local_steps"),
        ({"train.optimizer": "adam"}, "train.optimizer"),
        ({"train.grad_clip": 1.0}, "train.grad_clip"),
        ({"train.batch_size": 20}, "train.sample_rate: 1"),
        ({"train.solver": "gradient"}, "dp_fedsgd; leave"),
    ],
)
def test_settings_of_local_steps_are_refused(keys: dict[str, Any], words: str) -> None:
    base = {"privacy.mechanism": "none", "train.solver": "second_moment", "train.auto": False}
    with pytest.raises(ConfigError, match=words):
        load_config(
            None, base | ({} if "train.batch_size" in keys else {"train.sample_rate": 1.0}) | keys
        )
