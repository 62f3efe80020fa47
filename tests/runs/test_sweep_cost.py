"""What the cells of a sweep cost together."""

import json
from pathlib import Path

import pytest

from homo_dp.privacy.accounting.accountants import rdp_epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.runs.sweep_cost import price


def test_the_price_is_that_of_all_cells_together(tmp_path: Path) -> None:
    event = {"noise_multiplier": 2.0, "type": "GaussianDpEvent"}
    for name in "ab":
        row = {
            "run": name,
            "dataset": "d",
            "unit": "record",
            "relation": "replace_one",
            "event": event,
            "delta": 1e-5,
        }
        rows = [{**row, "party": "a"}] * 3 + [{**row, "party": "b"}]
        (tmp_path / name).write_text(json.dumps(rows))
    results = [
        {"private": True, "epsilon": 1.0, "files": {"ledger": str(tmp_path / name)}}
        for name in "ab"
    ]
    paid = price(results)
    assert paid.epsilon == rdp_epsilon({to_json(GaussianDpEvent(2.0)): 6}, 1e-5)
    assert "all 2 runs together" in paid.words[0]
    assert "(dataset d, record, replace_one)" in paid.words[0]
    assert "before looking" in paid.words[1]
    assert price([]).words == ()
    assert "NOT PRIVATE" in price([{"private": False}]).words[0]
    assert price([{"private": True, "files": {}}]).epsilon is None


def test_a_model_that_cells_start_from_is_named(tmp_path: Path) -> None:
    event = {"noise_multiplier": 2.0, "type": "GaussianDpEvent"}
    row = {
        "dataset": "d",
        "unit": "record",
        "relation": "add_or_remove_one",
        "event": event,
        "delta": 1e-5,
    }
    for name in "ab":
        (tmp_path / name).write_text(
            json.dumps([{**row, "run": name, "party": party} for party in "pq"])
        )
    results = [
        {"private": True, "before": {}, "files": {"ledger": str(tmp_path / name)}} for name in "ab"
    ]
    paid = price(results)
    all_of_it = {to_json(GaussianDpEvent(2.0)): 2}
    assert paid.epsilon == pytest.approx(rdp_epsilon(all_of_it, 1e-5), rel=1e-9)
    assert "all 2 runs together" in paid.words[0]
    again = price([{**result, "before": {"init_from": "m.safetensors"}} for result in results])
    assert any("m.safetensors" in text and "not in" in text for text in again.words)


def test_cells_that_protect_other_neighbours_have_no_price_together(tmp_path: Path) -> None:
    row = {"dataset": "d", "unit": "user", "party": "aggregator", "delta": 1e-5}
    gaussian = {"noise_multiplier": 2.0, "type": "GaussianDpEvent"}
    poisson = {"event": gaussian, "sampling_probability": 0.1, "type": "PoissonSampledDpEvent"}
    fixed = {
        "event": gaussian,
        "sample_size": 10,
        "source_dataset_size": 100,
        "type": "SampledWithoutReplacementDpEvent",
    }
    for name, relation, event in (("a", "add_or_remove_one", poisson), ("b", "replace_one", fixed)):
        (tmp_path / name).write_text(
            json.dumps([{**row, "run": name, "relation": relation, "event": event}])
        )
    paid = price([{"private": True, "files": {"ledger": str(tmp_path / name)}} for name in "ab"])
    assert paid.epsilon is None
    assert [text.startswith("all 1 runs together") for text in paid.words] == [True, True, False]
