"""NbAFL as users run it: the words of FederatedScope and flower-dp, both ledgers, the sweep."""

import importlib.util
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import homo_dp.train as train
from homo_dp.compat.load import load
from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.nbafl import Formula, noise_constant
from homo_dp.privacy.ledger import Ledger
from tests.federation.nbafl_parts import TRUSTED, closed_form
from tests.shell import run_command

ROOT = Path(__file__).parents[2]


# --- words of other systems, and the sweep


def test_the_numbers_of_the_page() -> None:
    page = (ROOT / "docs" / "nbafl.md").read_text(encoding="utf-8")
    config = load_config(ROOT / "conf" / "nbafl.yaml")
    constant, rounds = noise_constant(0.01), config.train.rounds
    formula = Formula(10, constant, config.nbafl.clip_norm, rounds, rounds, parties=10, rows=143)
    accounted = formula.upload_sigma / (2 * formula.clip_norm)
    assumed = accounted * formula.rows
    figures = [
        f"C = {formula.clip_norm:g}, m = 143, L = T = {rounds}, c = {constant:.4f}",
        f"| {assumed:.2f} | {accounted:.4f} |",
        f"| {assumed / math.sqrt(rounds):.2f} | {accounted / math.sqrt(rounds):.4f} |",
        f"| 10, at delta 0.01 | {closed_form(accounted, rounds, 1e-5):,.0f}, at delta 1e-5 |",
        f"epsilon {closed_form(assumed, rounds, 1e-5):.1f} at delta 1e-5, better than the 10",
    ]
    assert [figure for figure in figures if figure not in page] == []


def test_flower_dps_words_stand_alone_in_an_nbafl_run() -> None:
    words = {
        "epsilon": 0.8,
        "delta": 1e-5,
        "l2_norm_clip": 1.5,
        "num_rounds": 3,
        "min_dataset_size": 10_000,
    }
    config = load(ROOT / "conf" / "nbafl.yaml", words.items()).config
    nbafl = config.nbafl
    assert (nbafl.epsilon, nbafl.delta, nbafl.clip_norm, nbafl.min_dataset_size) == (
        0.8,
        1e-5,
        1.5,
        10_000,
    )
    assert (config.train.rounds, config.privacy.delta) == (3, 1e-5)


def test_flower_dps_words_are_unknown_elsewhere() -> None:
    with pytest.raises(
        ConfigError, match=r"epsilon: unknown key; did you mean privacy\.target_epsilon"
    ):
        load_config(None, {"epsilon": 0.8})


SMALL = {
    "model.name": "logistic_regression",
    "tracking.enabled": "false",
    "output.indicatorFileName": "out/i.json",
}


def run_recipe(
    pairs: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """conf/nbafl.yaml with FederatedScope's `--cfg FILE key value ...`; the privacy part of the
    indicators.
    """
    words = [str(word) for pair in (SMALL | dict(pairs)).items() for word in pair]
    done = run_command(
        train.main, ["--cfg", str(ROOT / "conf" / "nbafl.yaml"), *words], monkeypatch, capsys
    )
    assert done.code == 0, done.err
    return json.loads(Path("out/i.json").read_text())["privacy"], done.out


def test_federatedscopes_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = {
        "nbafl.mu": 0.01,
        "nbafl.constant": 1,
        "nbafl.w_clip": 0.1,
        "nbafl.epsilon": 10,
        "train.rounds": 2,
    }
    privacy, out = run_recipe(pairs, monkeypatch, capsys)
    smallest = min(party["rows"] for party in privacy["parties"].values())
    sigma = 2 * 1 * 0.1 * 2 / (smallest * 10)
    assert privacy["upload_sigma"] == pytest.approx(sigma)
    assert {party["applied_sigma"] for party in privacy["parties"].values()} == {
        privacy["upload_sigma"]
    }
    assert privacy["nominal_epsilon"] == 10
    assert privacy["accounted_epsilon"] == pytest.approx(
        closed_form(sigma / 0.2, 2, 1e-5), rel=1e-6
    )
    assert "zero by formula" in out
    with Ledger("ledger.sqlite") as ledger:
        assert len(ledger.rows()) == 2 * 10


def test_golden_download_noise_end_to_end_with_flower_dps_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {
        "epsilon": 0.8,
        "delta": 1e-5,
        "l2_norm_clip": 1.5,
        "num_rounds": 3,
        "min_dataset_size": 10_000,
    }
    privacy, _ = run_recipe(
        {**words, "nbafl.exposures": 2, "data.partition.parties": 2}, monkeypatch, capsys
    )
    assert privacy["download_sigma"] == 0.0009084009867385104
    assert privacy["epsilon"] == pytest.approx(
        closed_form(privacy["upload_sigma"] / 3, 2, 1e-5), rel=1e-6
    )
    with Ledger("ledger.sqlite") as ledger:
        assert sorted((row.party, row.round) for row in ledger.rows()) == [
            ("party_1", 1),
            ("party_1", 2),
            ("party_2", 1),
            ("party_2", 3),
        ]


def test_a_trusted_aggregator_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = {**TRUSTED, "data.partition.parties": 4, "nbafl.noise_at_upload": "false"}
    privacy, _ = run_recipe({**pairs, "privacy.trust_aggregator": "true"}, monkeypatch, capsys)
    assert privacy["quoted_observer"] == "model_reader"
    assert privacy["observers"]["aggregator"]["epsilon"] is None
    multiplier = privacy["download_sigma"] / (2 * 12)
    assert privacy["accounted_epsilon"] == pytest.approx(closed_form(multiplier, 2, 1e-5), rel=1e-6)
    with Ledger("ledger.sqlite") as ledger:
        rows = ledger.rows()
    assert {row.observer for row in rows} == {"model_reader"}
    assert sorted(row.party for row in rows) == [
        f"party_{number}" for number in (1, 1, 2, 2, 3, 3, 4, 4)
    ]
    assert max(row.epsilon for row in rows) == pytest.approx(privacy["epsilon"], rel=1e-9)


def test_rounds_of_uneven_size_are_charged_as_they_are_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # two parties, then one alone
    pairs = {"data.partition.parties": 3, "train.rounds": 4, "nbafl.exposures": 2}
    trusted = {"nbafl.noise_at_upload": "false", "privacy.trust_aggregator": "true"}
    privacy, _ = run_recipe({**pairs, **trusted}, monkeypatch, capsys)
    with Ledger("ledger.sqlite") as ledger:
        # the last row of a party has its sum
        spent = {row.party: row.epsilon for row in ledger.rows()}
    assert spent == {
        name: pytest.approx(party["epsilon_pld"]) for name, party in privacy["parties"].items()
    }


def test_a_trusted_aggregator_refuses_a_run_over_its_budget_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one_round = 8.0  # an upload costs about 6, the two of a party more than 9
    pairs = {
        "train.rounds": 8,
        "nbafl.exposures": 2,
        "nbafl.noise_at_upload": "false",
        "nbafl.epsilon": 0.02,
    }
    pairs |= {
        "data.partition.parties": 4,
        "privacy.trust_aggregator": "true",
        "privacy.lifetime_epsilon": one_round,
    }
    words = [str(word) for pair in (SMALL | pairs).items() for word in pair]
    done = run_command(
        train.main, ["--cfg", str(ROOT / "conf" / "nbafl.yaml"), *words], monkeypatch, capsys
    )
    assert done.code == 3
    assert "round 1" not in done.err + done.out
    with Ledger("ledger.sqlite") as ledger:
        assert ledger.rows() == []


def test_the_sweep_trains_each_cell_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("nbafl_pipeline", ROOT / "pipelines" / "nbafl.py")
    assert spec is not None
    assert spec.loader is not None
    pipeline = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, pipeline)
    spec.loader.exec_module(pipeline)
    small = {"model.name": "logistic_regression", "train.rounds": 1, "data.partition.parties": 2}
    cells = pipeline.sweep((10.0,), (0.01, 0.76), small)
    assert [(cell.nominal_epsilon, cell.nominal_delta) for cell in cells] == [
        (10.0, 0.01),
        (10.0, 0.76),
    ]
    # the larger delta takes noise away
    assert cells[0].accounted_epsilon < cells[1].accounted_epsilon
    assert all(cell.accounted_epsilon_model_reader < cell.accounted_epsilon for cell in cells)
    assert all(0.3 < cell.accuracy <= 1 for cell in cells)
    pipeline.draw(cells, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
