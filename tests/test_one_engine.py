"""Every party that trains privately wraps its model with the engine once, and takes every step
through what it gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import homo_dp.train as train
from homo_dp.federation.mechanisms.base import Mechanism
from homo_dp.federation.mechanisms.local_fit import LocalFit, PlainOptimizer
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.models.registry import BuiltModel, build_model
from homo_dp.privacy.gradients.losses import KNOWN_LOSSES
from tests.counted_engine import count, counts_of, environment
from tests.privacy.training_parts import (
    exact_sum,
    flat,
    middle_norm,
    reference_sum,
    training,
)
from tests.processes.parts import PARTIES, Cluster

CONF = Path(__file__).parents[1] / "conf"


class Recurrent(nn.Module):
    """An LSTM over the columns of a row."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.recurrent, self.last = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.last(self.recurrent(rows.unsqueeze(2))[0][:, -1])
        return found


def recurrent(input_shape: Sequence[int], outputs: int) -> nn.Module:
    return Recurrent(outputs)


def without_a_fast_path(input_shape: Sequence[int], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 4), nn.PReLU(), nn.Linear(4, outputs))


SGD = "train.rounds=2,train.local_steps=2,train.batch_size=32"
NETWORK = f"{SGD},privacy.mechanism=dp_sgd,model.factory=tests.test_one_engine:"
RECIPES = {
    "default": ("", "train.rounds=2", "fast"),
    "auto": ("auto", "", "fast"),
    "homo_lr_dpsgd": ("homo_lr_dpsgd", "train.rounds=2", "fast"),
    "homo_softmax_dpsgd": ("homo_softmax_dpsgd", "train.rounds=2", "fast"),
    "homo_nn_dpsgd": ("homo_nn_dpsgd", "train.rounds=2", "fast"),
    "homo_cnn_dpsgd": ("homo_cnn_dpsgd", "train.rounds=1", "fast"),
    "homo_lr_secure": ("homo_lr_secure", "train.rounds=2", "fast"),
    "lstm": ("", NETWORK + "recurrent", "fast"),
    "no fast path": ("", NETWORK + "without_a_fast_path", "hooks"),
    "ghost": ("", f"{SGD},privacy.mechanism=dp_sgd,privacy.grad_sample_mode=ghost", "ghost"),
    "blocks": ("homo_lr_dpsgd", "train.rounds=2,train.physical_batch_size=8", "fast"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_party_is_wrapped_once_and_every_step_is_one_of_its_optimizer(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else steps."""
    file, settings, mode = RECIPES[recipe]
    calls: Counter[str] = Counter()
    owners: dict[str, set[int]] = {"make_private": set(), "step": set()}
    kept: list[Any] = []  # or another object would get the number of one that went

    def note(name: str, owner: Any) -> None:
        if name == "step" and owner._step_skip_queue and owner._step_skip_queue[0]:
            return  # within a batch: it moves nothing
        calls[name] += 1
        owners[name].add(id(owner))
        kept.append(owner)

    count(note, monkeypatch.setattr)
    fits: list[LocalFit] = []
    fit, after_batch = LocalFit.fit, Mechanism.after_batch

    def fitted(self: LocalFit, *given: Any) -> Any:
        if self not in fits:
            fits.append(self)
        return fit(self, *given)

    def batch_done(self: Mechanism, done: LocalFit) -> None:
        calls["batches"] += 1
        after_batch(self, done)

    def no_plain_step(_: PlainOptimizer) -> None:
        pytest.fail("a step without privacy")

    monkeypatch.setattr(LocalFit, "fit", fitted)
    monkeypatch.setattr(Mechanism, "after_batch", batch_done)
    monkeypatch.setattr(PlainOptimizer, "step", no_plain_step)
    monkeypatch.chdir(tmp_path)
    given = ["--config", str(CONF / f"{file}.yaml")] if file else []
    outputs = {
        "output.predictFileName": "p.csv",
        "output.indicatorFileName": "i.json",
        "output.modelFileName": "m.safetensors",
        "privacy.ledger": "l.sqlite",
        "tracking.enabled": "false",
    }
    places = ",".join(f"{key}={value}" for key, value in outputs.items())
    both = ",".join(filter(None, [places, settings]))
    assert train.main(["--quiet", *given, "--params", both]) == 0
    assert len(fits) >= 2
    assert calls["make_private"] == len(owners["make_private"]) == len(fits)
    assert len(owners["step"]) == len(fits)
    assert calls["step"] == calls["batches"] == sum(each.steps_done for each in fits) > 0
    modes = {engine.grad_sample_mode for engine in kept if hasattr(engine, "grad_sample_mode")}
    assert modes == {mode}


MASKED = {"mechanism": "dp_fedsgd", "secure_aggregation": True, "max_grad_norm": 0.8}
MECHANISMS: dict[str, dict[str, dict[str, Any]]] = {
    "dp_sgd": {"privacy": {"mechanism": "dp_sgd"}},
    "masked second moment": {
        "privacy": MASKED,
        "train": {"local_steps": 1, "solver": "second_moment", "row_norm": 3.5},
    },
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_parties_as_processes_do_the_same_and_the_aggregator_needs_no_engine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands themselves, as they are started; each writes what its engine does."""
    folder = tmp_path / "counts"
    for key, value in environment(folder).items():
        monkeypatch.setenv(key, value)
    with Cluster(tmp_path / "cluster", rounds=2) as cluster:
        for section, values in MECHANISMS[name].items():
            cluster.change(AGGREGATOR, section, **values)
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
            keys = cluster.configs[AGGREGATOR]["federation"]["parties"]
            cluster.change(party, "federation", parties=keys)
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
        processes = {name: process.pid for name, process in cluster.processes.items()}
    steps = cluster.rounds * cluster.configs[AGGREGATOR]["train"]["local_steps"]
    for party in PARTIES:
        assert counts_of(folder, processes[party]) == {"make_private": 1, "step": steps}
    assert counts_of(folder, processes[AGGREGATOR]) == {}


# The models that come with the package


def built(name: str, **options: Any) -> BuiltModel:
    from homo_dp.config.model import ModelConfig

    shapes = {"cnn": (1, 8, 8)}
    classes = {"linear_regression": None, "softmax": [0, 1, 2], "cnn": [0, 1, 2], "mlp": [0, 1]}
    kind = "logistic_regression" if name == "softmax" else name
    return build_model(
        ModelConfig(name=kind, **options),  # type: ignore[arg-type]
        shapes.get(name, (6,)),
        classes.get(name, [0, 1]),
    )


BUILT: dict[str, dict[str, Any]] = {
    "logistic_regression": {},
    "softmax": {},
    "linear_regression": {},
    "mlp": {"layers": [5, 4]},
    "cnn": {"channels": [3, 4], "layers": [5]},
}


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("mode", ["auto", "fast", "hooks", "functorch", "ghost"])
@pytest.mark.parametrize("name", BUILT)
def test_clipped_sums_of_each_model_are_those_of_one_row_after_the_other(
    name: str, mode: str
) -> None:
    """In the fast mode, by Opacus' own hooks and the others; half of the rows are clipped."""
    model = built(name, **BUILT[name])
    torch.manual_seed(1)
    features = torch.randn(24, *((1, 8, 8) if name == "cnn" else (6,))) * 2
    outputs = model.architecture.outputs
    labels = torch.randn(24) if name == "linear_regression" else torch.arange(24) % max(2, outputs)
    loss = model.task.loss
    assert loss in KNOWN_LOSSES
    clip_norm = middle_norm(model.module, loss, features, labels)
    expected = flat(reference_sum(model.module, loss, features, labels, clip_norm))
    private = training(
        model.module, loss, features, labels, clip_norm=clip_norm, grad_sample_mode=mode
    )
    assert private.grad_sample_mode == ("fast" if mode == "auto" else mode)
    slack = 2e-4 if mode == "ghost" else 2e-5
    found = exact_sum(private)
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=slack * max(1.0, clip_norm))
    assert 0.3 < private.last_fraction_clipped < 0.7
