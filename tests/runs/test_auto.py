"""Settings by rule: what is left open is filled in from public facts, what is set stays, and
plans see numbers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from homo_dp.config.load import config_from, dump_yaml, load_config
from homo_dp.config.schema import Config
from homo_dp.config.yaml_text import parse_yaml
from homo_dp.core.errors import ConfigError, ModelFileError
from homo_dp.data.public_facts import declared_encoding, planned_rows
from homo_dp.models.files import read_card, save_model
from homo_dp.models.scoring import round_metrics
from homo_dp.runs.auto import Settled, chosen_mechanism, is_auto, public_facts, settled, with_model
from homo_dp.runs.dry_run import plan_of
from homo_dp.runs.outputs import model_card
from homo_dp.runs.simulation import Simulation

ROOT = Path(__file__).parents[2]


def settle(**keys: Any) -> Settled:
    config = load_config(None, {name.replace("__", "."): value for name, value in keys.items()})
    return settled(config, declared_encoding(config), planned_rows(config)[0])


def test_the_default_recipe_leaves_its_settings_to_the_rules() -> None:
    assert load_config(ROOT / "conf" / "auto.yaml") == Config()
    assert is_auto(load_config(ROOT / "conf" / "auto.yaml"))
    assert not is_auto(load_config(ROOT / "conf" / "homo_lr_dpsgd.yaml"))


@pytest.mark.parametrize(
    "keys",
    [
        {"train.rounds": 5},
        {"train.batch_size": 10},
        {"train.learning_rate": 0.1},
        {"train.momentum": 0.5},
        {"train.local_epochs": 2},
        {"train.solver": "sgd"},
        {"train.weighting": "uniform"},
        {"privacy.max_grad_norm": 0.7},
    ],
)
def test_rules_fill_in_around_what_a_user_sets(keys: dict[str, Any]) -> None:
    config = load_config(None, keys)
    assert is_auto(config)
    found = settle(**{name.replace(".", "__"): value for name, value in keys.items()})
    for key, value in keys.items():
        section, _, name = key.partition(".")
        assert getattr(getattr(found.config, section), name) == value
        assert f"{name} {value}" in found.notes[0].partition("; as given: ")[2]
    assert found.config.train.auto is False  # it is settled now


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"train.auto": False}, "train.auto: false"),
        ({"privacy.mechanism": "nbafl"}, "no rules for privacy.mechanism: nbafl"),
        ({"model.factory": "tests.models.factories:dense"}, "no rules for a model of your own"),
    ],
)
def test_where_the_rules_are_off_the_first_line_says_why(keys: dict[str, Any], why: str) -> None:
    config = load_config(None, keys)
    assert not is_auto(config)
    assert chosen_mechanism(config) == config.privacy.mechanism
    found = settled(config, declared_encoding(load_config(None)), {"a": 100})
    assert found.config.train == config.train
    (line,) = found.notes
    assert line.startswith(f"algorithm: {config.privacy.mechanism}, 20 rounds; settings as given")
    assert why in line


def test_more_rounds_keep_the_solver_of_the_rules() -> None:
    ours, asked = settle(), settle(train__rounds=30)
    assert asked.config.train.rounds == 30
    assert asked.config.train.solver == ours.config.train.solver == "second_moment"
    assert asked.config.privacy.mechanism == ours.config.privacy.mechanism == "dp_fedsgd"
    assert asked.config.train.learning_rate == ours.config.train.learning_rate
    assert settle(train__solver="gradient").config.train.row_norm is not None


@pytest.mark.parametrize(
    ("keys", "mechanism", "why"),
    [
        ({"train.learning_rate": 0.25}, "dp_fedsgd", "of the given train.learning_rate"),
        ({"privacy.max_grad_norm": 0.5}, "dp_fedsgd", "of the given privacy.max_grad_norm"),
        ({"train.momentum": 0.5}, "dp_sgd", "several steps in a round by train.momentum"),
        ({"train.local_steps": 3}, "dp_sgd", "several steps in a round by train.local_steps"),
    ],
)
def test_a_setting_that_forces_another_algorithm_is_named(
    keys: dict[str, Any], mechanism: str, why: str
) -> None:
    found = settle(**{name.replace(".", "__"): value for name, value in keys.items()})
    assert (found.config.privacy.mechanism, found.config.train.solver) == (mechanism, "sgd")
    assert why in found.notes[1]


def test_steps_are_as_long_as_the_given_rounds_and_clip_norm_need() -> None:
    """The path of all steps together is the rule's, and the update of one is rate times clip."""
    few = settle(train__solver="sgd", train__rounds=20).config
    many = settle(train__solver="sgd", train__rounds=200).config
    assert few.train.learning_rate == pytest.approx(10 * many.train.learning_rate)
    short = settle(train__rounds=20, privacy__max_grad_norm=0.1).config
    long = settle(train__rounds=20, privacy__max_grad_norm=1.0).config
    assert short.train.learning_rate == pytest.approx(10 * long.train.learning_rate)


def test_a_given_rate_is_the_whole_step() -> None:
    """With momentum 0.9 of the aggregator it would be ten times as much."""
    assert settle(train__learning_rate=0.25).config.train.server_optimizer.name == "fedavg"
    named = settle(train__learning_rate=0.25, train__server_optimizer="fedavgm").config
    assert named.train.server_optimizer.name == "fedavgm"
    solved = settle(train__learning_rate=0.25, train__solver="second_moment").config
    assert solved.train.server_optimizer.name == "fedavgm"


@pytest.mark.parametrize("model", ["logistic_regression", "mlp"])
@pytest.mark.parametrize("given", [{"train.momentum": 0.9}, {"train.optimizer": "adam"}])
def test_momentum_of_parties_takes_the_place_of_the_aggregators(
    given: dict[str, Any], model: str, tmp_path: Path
) -> None:
    """Both together pass the minimum: the test loss was 1.1 to 2.1, and 0.69 at the start."""
    keys = {"model.name": model, "privacy.target_epsilon": 1.0, **given}
    ledger = {"privacy.ledger": str(tmp_path / "ledger.sqlite"), "tracking.enabled": False}
    found = settle(**{name.replace(".", "__"): value for name, value in keys.items()})
    assert found.config.train.server_optimizer.name == "fedavg"
    run = Simulation(load_config(None, keys | ledger), lambda row, numbers: None)
    outcome = run.run()
    outcome.load_weights()
    metrics = round_metrics(outcome.model.module, outcome.model.task, run.test_tables)
    assert (metrics["test_loss"] or 1) < 0.5


def test_momentum_zero_of_parties_leaves_that_of_the_aggregator() -> None:
    found = settle(train__momentum=0.0, train__solver="sgd").config
    assert found.train.server_optimizer.name == "fedavgm"


def test_a_mechanism_that_is_written_out_stays() -> None:
    found = settle(privacy__mechanism="dp_sgd").config
    assert found.privacy.mechanism == "dp_sgd"
    assert found.train.sample_rate == 1.0
    assert found.train.local_steps == 1


def test_a_settled_config_is_ordinary_numbers() -> None:
    found = settle().config
    assert found.train.auto is False
    again = config_from(parse_yaml(dump_yaml(found)))
    assert again == found
    assert not is_auto(again)


def test_rules_know_counts_and_columns_only() -> None:
    config = load_config(None, {})
    encoding = declared_encoding(config)
    small, large = ({"a": count, "b": count} for count in (50, 50_000))
    assert settled(config, encoding, small).config != settled(config, encoding, large).config
    assert (
        settled(config, encoding, {"a": 100, "b": None}).config
        == settled(config, encoding, {"a": 100, "b": 100}).config
    )


def test_pixels_keep_their_one_scale() -> None:
    found = settle(data__embedded="digits", data__label="y", train__solver="second_moment").config
    assert found.train.column_share == 0
    assert settle(train__solver="second_moment").config.train.column_share > 0


def test_a_dry_run_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    planned = plan_of(load_config(None, {"privacy.ledger": str(tmp_path / "ledger.sqlite")}))
    text = "\n".join(planned.auto)
    assert "train.auto: dp_fedsgd, solver second_moment, rounds 16" in text
    assert "to expect: generated tables of this kind" in text
    assert any("second moment" in release for release in planned.releases)


def by_rows(rows: int, **keys: Any) -> Config:
    config = load_config(None, {name.replace("__", "."): value for name, value in keys.items()})
    return settled(config, declared_encoding(config), {"a": rows, "b": rows}).config


def test_curves_are_taken_where_rows_and_epsilon_are_enough_for_them() -> None:
    assert by_rows(50_000).data.curves is True
    few = by_rows(50)
    assert few.data.curves is None
    assert "curves" not in few.data.model_fields_set
    assert by_rows(50_000, privacy__target_epsilon=0.001).data.curves is None
    # they would be learnt by heart
    assert by_rows(50, privacy__mechanism="none").data.curves is None
    assert by_rows(5000, privacy__mechanism="none").data.curves is True
    assert by_rows(50_000, train__solver="gradient").data.curves is True


@pytest.mark.parametrize(
    "keys",
    [
        {"model.name": "logistic_regression"},
        {"model.name": "mlp"},
        {"data.curves": False},
        {"train.auto": False},
        {"train.solver": "sgd", "train.auto": True},
        {"train.auto": True, "train.learning_rate": 0.1},
        {"privacy.mechanism": "dp_sgd"},
        {"data.embedded": "digits", "data.label": "y"},  # pixels: alike
    ],
)
def test_curves_are_not_taken_where_somebody_chose_otherwise(keys: dict[str, Any]) -> None:
    assert not by_rows(
        50_000, **{name.replace(".", "__"): value for name, value in keys.items()}
    ).data.curves


def test_there_is_nothing_to_bend_in_flags_and_levels() -> None:
    columns = {"flag": {"bounds": [0, 1]}, "sex": {"levels": ["f", "m"]}}
    assert by_rows(50_000, data__columns=columns, data__rows={"a": 1}).data.curves is None


def test_rules_count_curves_as_numbers_and_say_so() -> None:
    found = settled(load_config(None, {}), declared_encoding(load_config(None, {})), {"a": 50_000})
    assert found.config.train.row_norm == pytest.approx((90 / 3 + 1) ** 0.5)
    (note,) = (note for note in found.notes if "curves" in note)
    assert note.startswith("train.auto: squares and roots of 30 numbers beside them (data.curves)")
    stated = load_config(None, {"data.curves": True, "model.name": "logistic_regression"})
    again = settled(stated, declared_encoding(stated), {"a": 50_000})
    assert again.config.train == found.config.train
    assert again.config.data.curves is True
    assert not any("beside them" in note for note in again.notes)


def test_a_model_that_is_continued_keeps_its_curves_or_their_absence(tmp_path: Path) -> None:
    for curves in (False, True):
        first, second = str(tmp_path / f"first-{curves}"), str(tmp_path / "second")
        ledger = {"privacy.ledger": str(tmp_path / "ledger.sqlite"), "tracking.enabled": False}
        train(load_config(None, {**ledger, "data.curves": curves, "output.modelFileName": first}))
        for more in ({}, {"train.rounds": 2}, {"model.name": "logistic_regression"}):
            keys = {**ledger, "train.init_from": first, "output.modelFileName": second, **more}
            train(load_config(None, keys))
            assert read_card(second).encoding == read_card(first).encoding
            assert bool(read_card(second).encoding.get("curves")) is curves
            assert plan_of(load_config(None, keys)).refused is None
    with pytest.raises(ModelFileError, match=r"trained with data\.curves; leave data\.curves out"):
        train(load_config(None, {**ledger, "train.init_from": first, "data.curves": False}))


def train(config: Config) -> None:
    outcome = Simulation(config, lambda row, numbers: None).run()
    save_model(config.output.modelFileName, outcome.weights, model_card(outcome))


@pytest.mark.parametrize("mechanism", [None, "dp_sgd", "none"])
def test_runs_by_rule_learn(tmp_path: Path, mechanism: str | None) -> None:
    keys: dict[str, Any] = {
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
        "train.evaluate_every": 0,
    }
    keys |= {} if mechanism is None else {"privacy.mechanism": mechanism}
    run = Simulation(load_config(None, keys), lambda row, numbers: None)
    outcome = run.run()
    outcome.load_weights()
    metrics = round_metrics(outcome.model.module, outcome.model.task, run.test_tables)
    assert (metrics["test_acc"] or 0) > 0.88
    if mechanism != "none":
        assert outcome.statement["parties"]["party_1"]["epsilon_pld"] <= 4.0


def test_without_privacy_skewed_columns_are_fitted_as_well_as_with_it(tmp_path: Path) -> None:
    """Most values are at one end of their bounds, as amounts are: 150 steps with momentum 0.9
    stop far from the fit.
    """
    rng = np.random.default_rng(0)
    columns = [f"x{number}" for number in range(8)]
    values = np.exp(rng.standard_normal((6000, 8)))
    scores = (values - values.mean(0)) / values.std(0) @ rng.standard_normal(8)
    labels = rng.random(6000) < 1 / (1 + np.exp(-scores))
    pd.DataFrame(values, columns=columns).assign(y=labels.astype(int)).to_csv(
        tmp_path / "a.csv", index=False
    )
    found = {}
    for mechanism in ("none", "dp_fedsgd"):
        keys = {
            "data.files.a": str(tmp_path / "a.csv"),
            "data.label": "y",
            "data.classes": [0, 1],
            "data.columns": {name: {"bounds": [0, 60]} for name in columns},
            "data.counts": "public",
            "privacy.mechanism": mechanism,
            "privacy.ledger": str(tmp_path / "ledger.sqlite"),
            "train.evaluate_every": 0,
        }
        keys |= {"privacy.target_epsilon": 8.0} if mechanism != "none" else {}
        run = Simulation(load_config(None, keys), lambda row, numbers: None)
        run.run().load_weights()
        tables = [party.train for party in run.federation.parties.values()]
        found[mechanism] = (
            round_metrics(run.model.module, run.model.task, tables)["test_loss"] or 9.0
        )
    assert found["none"] < found["dp_fedsgd"] + 0.02, found  # the old steps: 0.507 and 0.389


def test_images_get_fixed_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = rng.integers(0, 60, (60, 16, 16), dtype=np.uint8)
    images[labels == 1, :, ::2] += 150  # stripes
    np.savez(tmp_path / "a.npz", x=images, y=labels)
    keys = {
        "data.files.a": str(tmp_path / "a.npz"),
        "data.classes": [0, 1],
        "privacy.target_epsilon": 50.0,
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
        "train.evaluate_every": 0,
    }
    config = load_config(None, keys)
    assert with_model(config).model.name == "scattering2"
    assert with_model(load_config(None, {**keys, "model.name": "mlp"})).model.name == "mlp"
    assert any("model scattering2" in note for note in plan_of(config).auto)
    named = plan_of(load_config(None, {**keys, "model.name": "logistic_regression"}))
    assert any("left out, images get scattering2" in note for note in named.auto)
    run = Simulation(config, lambda row, numbers: None)
    outcome = run.run()
    assert set(outcome.weights) == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize(
    "keys",
    [
        {"train.solver": "second_moment", "model.name": "mlp"},
        {"train.solver": "gradient", "privacy.mechanism": "dp_sgd"},
        {"train.solver": "gradient", "train.auto": False},
    ],
)
def test_solvers_refuse_what_they_cannot_do(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"train.solver"):
        load_config(None, keys)


def test_places_for_values_that_are_not_declared_do_not_count() -> None:
    columns = {
        "age": {"bounds": [0, 100]},
        "sex": {"levels": ["f", "m"]},
        "site": {"levels": ["a", "b"], "missing": "a"},
    }
    config = load_config(None, {"data.columns": columns, "data.rows": {"a": 1}})
    encoding = declared_encoding(config)
    assert encoding.width == 1 + 4 + 3  # one for a missing value, one for any other
    assert public_facts(config, encoding, {"a": 1}).width == 1 + 2 + 2


def test_rules_fill_in_around_rounds_that_calibrate() -> None:
    chosen = by_rows(5000, train__calibration_rounds=1).train
    assert (chosen.calibration_rounds, chosen.solver) == (1, "second_moment")
    assert chosen.column_share > 0
    none = by_rows(5000, train__calibration_rounds=0).train
    assert none.calibration_rounds == 0
    with pytest.raises(ConfigError, match=r"needs train\.solver: second_moment"):
        by_rows(10, train__calibration_rounds=1)  # too few rows for a moment
    with pytest.raises(ConfigError, match=r"needs train\.solver: second_moment"):
        by_rows(5000, train__calibration_rounds=1, train__learning_rate=0.1)
