"""Valid inputs of each reader, from which mutated ones are made."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from homo_dp.federation.sessions.crash_state import write_state
from homo_dp.models.architecture import Architecture
from homo_dp.models.files import ModelCard, save_model

_EVENT = {"type": "GaussianDpEvent", "noise_multiplier": 2.0}
_ROW = {
    "row": 1,
    "run": "r",
    "dataset": "d",
    "unit": "record",
    "relation": "add_or_remove_one",
    "party": "a",
    "round": 1,
    "kind": "update",
    "event": _EVENT,
    "delta": 1e-5,
    "epsilon": 2.0,
    "epsilon_pld": 2.0,
    "epsilon_rdp": 2.1,
    "sigma": 2.0,
    "noise": "secure noise",
    "previous_hash": "0",
    "hash": "1",
}
_INDICATORS: dict[str, Any] = {
    "test_acc": 0.9,
    "run": "r",
    "ledger": {
        "head": "1",
        "releases": 1,
        "datasets": [{"dataset": "d", "epsilon_sum": 2.0, "epsilon_this_run": 2.0}],
    },
    "privacy": {
        "private": True,
        "mechanism": "dp_sgd",
        "unit": "record",
        "epsilon": 2.0,
        "delta": 1e-5,
        "statement": "x",
        "parties": {"a": {"rows": 9, "epsilon_pld": 2.0, "epsilon_rdp": 2.1}},
        "notes": ["n"],
        "releases": ["w"],
        "observers": {"aggregator": {"epsilon": 2.0}},
        "quoted_observer": "aggregator",
    },
    "rounds": [{"round": 1, "replied": ["a"], "test_acc": 0.5, "epsilon": 2.0}],
    "local_only": ["test_acc"],
}
_TASK = {
    "component_params": {
        "roles": {"server": "s", "client": ["a", "b"]},
        "common_params": {
            "model": "HFL_logistic_regression",
            "method": "DPSGD",
            "learning_rate": "optimal",
            "alpha": 1,
        },
        "role_params": {"a": {"data_set": "x"}, "s": {"metric_path": "m.json"}},
    }
}
_YAML = b"""model: {name: mlp, layers: [8, 4]}
data:
  files: {a: a.csv, b: b.csv}
  columns: &all {x: {bounds: [0, 1]}, 'y z': {levels: [yes, "no", 3]}}
privacy: {mechanism: dp_sgd, target_epsilon: 2, delta: 1e-5}
train: {rounds: 3, schedule: cosine}
"""
_PARAMS = (
    b"train.rounds=3,data.use=[a, 'b c'] data.columns.'m r'.bounds=[1, 2] BatchSize:INT32:0:5 "
    b"label:STRING:0:x y"
)


def seeds() -> dict[str, bytes]:
    """One valid input for each target."""
    indicators, rows = json.dumps(_INDICATORS).encode(), json.dumps([_ROW]).encode()
    charge = {
        "event": json.dumps(_EVENT),
        "sigma": 1.0,
        "replied": ["a"],
        "missing": [],
        "discarded": False,
    }
    facts = {"round": 1, "applied_sigma": 1.0, "charge": charge, "plan": {"train": {}}, "rounds": 3}
    images = io.BytesIO()
    np.savez(images, x=np.zeros((3, 4, 4), dtype=np.uint8), y=np.array([0, 1, 0]))
    with tempfile.TemporaryDirectory() as folder:
        state, model = Path(folder) / "state", Path(folder) / "model"
        write_state(state, {"weights.w": torch.ones(2)}, facts, point="fuzz")
        card = ModelCard(Architecture("logistic_regression", (2,), 1), (0, 1), "y")
        save_model(model, {"linear.weight": torch.zeros(1, 2), "linear.bias": torch.zeros(1)}, card)
        kept, saved = state.read_bytes(), model.read_bytes()
    return {
        "yaml": _YAML,
        "json": json.dumps(_TASK).encode(),
        "params": _PARAMS,
        "indicators": indicators,
        "heads": json.dumps({"a": {"count": 1, "hash": "b" * 64}}).encode(),
        "state": kept,
        "run_state": kept,
        "model": saved,
        "rows": b'\n{"round": 1, "missing": []}\n{"round": 2}',
        "folder": indicators + b"\0" + rows,
        "idx": b"\0\0\x08\x03" + bytes([0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(8),
        "npz": images.getvalue(),
        "cells": b"\t-999\n-999\ta\t1\t2020-02-03\t7.0\n0.3\t1\t2.0\t\t8.0\n\t01\t0.5\tNA\tx",
        "csv": b"id,age,city,y\n1,30,Bern,0\n2,41,Basel,1\n",
    }
