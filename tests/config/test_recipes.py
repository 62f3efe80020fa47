"""The recipes in conf/ load, and say what they are there to say; docs/config.md is what the
schema says.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.privacy import RecordKeys, keys_of
from homo_dp.config.schema import Config
from homo_dp.data.public_facts import public_shape
from homo_dp.federation.sessions.plan import agree, make_plan

ROOT = Path(__file__).parents[2]
BY_HAND = {"train.auto": False}


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_loads(path: Path) -> None:
    load_config(path)


def test_the_recipe_of_dp_sgd_is_the_defaults_without_rules() -> None:
    assert load_config(ROOT / "conf" / "homo_lr_dpsgd.yaml") == load_config(None, BY_HAND)
    assert load_config(ROOT / "conf" / "auto.yaml") == Config()


@pytest.mark.parametrize(
    "over",
    [
        {"data.files.a": "a.csv", "data.files.b": "b.csv"},
        {"data.files": "table.csv", "data.party_column": "ward"},
        {"data": {"file": "table.csv"}},
        {"data.embedded": "digits"},
        {
            "data.embedded": "users",
            "privacy.mechanism": "dp_fedavg",
            "privacy.trust_aggregator": True,
            "privacy.sample_rate": 0.1,
        },
    ],
)
def test_the_recipe_of_dp_sgd_is_the_defaults_on_other_data_too(over: dict[str, object]) -> None:
    found = load_config(ROOT / "conf" / "homo_lr_dpsgd.yaml", over)
    assert found == load_config(None, {**over, **BY_HAND})


def test_what_one_says_about_columns_is_all_there_is_without_a_recipe() -> None:
    over = {
        "data.files.a": "a.csv",
        "data.columns": {"mean radius": {"bounds": [5, 30]}},
        "data.rows.a": 100,
    }
    config = load_config(None, over)
    assert config.data.columns_from is None
    assert public_shape(config)[0] == (1,)


def test_a_party_without_a_recipe_takes_the_columns_of_the_aggregator() -> None:
    asked = load_config(None, {"data.columns_from": "digits", "federation.run": "r"})
    party = load_config(None, {"data.files.a": "a.csv", "federation.run": "r"})
    assert agree(party, make_plan(asked, {}, {})).data.columns_from == "digits"


def test_plain_is_not_private() -> None:
    assert not load_config(ROOT / "conf" / "homo_lr_plain.yaml").private


def test_primihub_numbers() -> None:
    # PrimiHub python/primihub/FL/model/logistic_regression/homo_lr_dpsgd.py, dictionary `config`
    config = load_config(ROOT / "conf" / "primihub_homo_lr.yaml")
    assert (
        config.privacy.delta,
        config.privacy.noise_multiplier,
        keys_of(config.privacy, RecordKeys).max_grad_norm,
    ) == (1e-3, 2.0, 1.0)
    assert (config.train.batch_size, config.train.rounds, config.train.local_steps) == (50, 100, 1)
    assert (config.train.weight_decay, config.train.schedule.kind) == (1e-4, "optimal")
    files = {
        "data.files.host": "h.csv",
        "data.files.guest": "g.csv",
        "data.test_file.host": "t.csv",
    }
    over = load_config(ROOT / "conf" / "primihub_homo_lr.yaml", files)
    assert (over.data.columns_from, over.data.embedded, over.data.partition) == (
        "breast_cancer",
        None,
        None,
    )


def test_config_and_cli_import_nothing_heavy() -> None:
    code = (
        "import sys, homo_dp.console.options, homo_dp.config.load, homo_dp.config.params, "
        "homo_dp.config.reference\nheavy = {'torch', 'pandas', 'numpy', 'mlflow', 'opacus', "
        "'dp_accounting', 'sklearn', 'scipy', 'rich', 'matplotlib', "
        "'pyarrow'}\nprint(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
