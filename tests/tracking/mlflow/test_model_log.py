"""The model in MLflow: it scores as the predictions file says, describes itself from public
bounds, and comes back.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from homo_dp import infer
from homo_dp.core.errors import ModelFileError
from homo_dp.data.columns import Label, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.tracking.mlflow.model_log import model_file, save_pyfunc
from homo_dp.tracking.pyfunc import TRUST
from tests.shell import run_command
from tests.tracking.conftest import Trained

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
from tests.tracking.mlflow.parts import COLUMNS, loaded, saved

PIXELS = Encoding((), Label("y", tuple(range(10))), shape=(1, 8, 8), pixel_bounds=(0.0, 16.0))
ROWS = pd.DataFrame(
    {"age": [50.0, None], "smokes": ["yes", "?"], "stage": [1.0, 3.0], "id": [1, 2]}
)


@pytest.mark.parametrize(
    ("label", "classes", "columns", "kind"),
    [
        (Label("y", ("no", "yes")), ["no", "yes"], ["pred_prob", "pred_y"], "logistic_regression"),
        (
            Label("y", (1, 2, 3)),
            [1, 2, 3],
            ["prob_1", "prob_2", "prob_3", "pred_prob", "pred_y"],
            "mlp",
        ),
        (Label("y", None, (0.0, 10.0)), None, ["pred_y"], "linear_regression"),
    ],
)
def test_a_model_of_columns(
    tmp_path: Path, label: Label, classes: list[Any] | None, columns: list[str], kind: str
) -> None:
    path = saved(tmp_path, Encoding(COLUMNS, label), {"name": kind}, classes)
    model = loaded(path, tmp_path)
    scores = model.predict(ROWS)
    assert list(scores.columns) == columns
    assert len(scores) == 2
    assert [column.name for column in model.metadata.signature.outputs.inputs] == columns
    if classes:
        assert set(scores["pred_y"]) <= set(classes)
    if kind == "mlp":
        assert np.allclose(scores[["prob_1", "prob_2", "prob_3"]].sum(axis=1), 1.0)
        assert (scores["pred_prob"] == scores[["prob_1", "prob_2", "prob_3"]].max(axis=1)).all()


def test_the_threshold_is_a_parameter(tmp_path: Path) -> None:
    path = saved(
        tmp_path, Encoding(COLUMNS, Label("y", (0, 1))), {"name": "logistic_regression"}, [0, 1]
    )
    model = loaded(path, tmp_path)
    probability = model.predict(ROWS)["pred_prob"]
    assert (model.predict(ROWS)["pred_y"] == (probability >= 0.3)).all()
    assert (model.predict(ROWS, params={"threshold": 0.0})["pred_y"] == 1).all()


def test_a_model_of_images(tmp_path: Path) -> None:
    path = saved(tmp_path, PIXELS, {"name": "cnn", "channels": [4]}, list(range(10)))
    model = loaded(path, tmp_path)
    assert len(model.predict(np.zeros((5, 1, 8, 8)))) == 5
    assert model.input_example.shape == (1, 1, 8, 8)


def test_nothing_is_pickled(tmp_path: Path) -> None:
    path = saved(
        tmp_path, Encoding(COLUMNS, Label("y", (0, 1))), {"name": "logistic_regression"}, [0, 1]
    )
    save_pyfunc(path, tmp_path / "pyfunc")
    names = {file.name for file in (tmp_path / "pyfunc").rglob("*") if file.is_file()}
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".joblib"))]
    assert (tmp_path / "pyfunc" / "data" / path.name).read_bytes() == path.read_bytes()


def test_a_factory_model_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = Encoding((Numeric("x", 0, 1),), Label("y", (0, 1)))
    path = saved(tmp_path, encoding, {"factory": "tests.models.factories:plain"}, [0, 1])
    with pytest.raises(ModelFileError, match=f"{TRUST}=1"):
        loaded(path, tmp_path)
    monkeypatch.setenv(TRUST, "1")
    (tmp_path / "again").mkdir()
    assert len(loaded(path, tmp_path / "again").predict(pd.DataFrame({"x": [0.5]}))) == 1


FACTORY = '''
import torch

def narrow(input_shape, outputs, width=3):
    """A model of the user's own, in a module beside the data."""
    return torch.nn.Sequential(torch.nn.Linear(input_shape[0], width), torch.nn.Tanh(), torch.nn.Linear(width, outputs))
'''
SCORE = """
import json, sys
import mlflow, pandas as pd

mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/own/1")
print(json.dumps(model.predict(pd.read_csv("out/predict.csv"))["pred_prob"].tolist()))
"""


def test_a_model_of_the_users_own_module_is_trained_registered_and_served(
    tmp_path: Path, empty_store: Path
) -> None:
    """All in processes of their own, as a user has it: the module is found in the folder."""
    shutil.copy(empty_store, tmp_path)
    (tmp_path / "own_models.py").write_text(FACTORY)
    (tmp_path / "score.py").write_text(SCORE)
    uri = f"sqlite:///{tmp_path / empty_store.name}"

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            TRUST: "1",
            "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'another.db'}",
        }
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    keys = (
        "model.factory=own_models:narrow",
        "train.rounds=2",
        "tracking.plots=false",
        "tracking.model_name=own",
    )
    trained = python("-m", "homo_dp.train", "--quiet", "--params", *keys, f"tracking.uri={uri}")
    assert trained.returncode == 0, trained.stderr
    scored = python("score.py", uri)
    assert scored.returncode == 0, scored.stderr
    written = pd.read_csv(tmp_path / "out" / "predict.csv")["pred_prob"]
    assert np.allclose(json.loads(scored.stdout.splitlines()[-1]), written, atol=1e-6)
    infer_keys = f"modelFileName=models:/own/1,tracking.uri={uri}"
    inferred = python("-m", "homo_dp.infer", "--trust-factory", "--params", infer_keys)
    assert inferred.returncode == 0, inferred.stderr
    again = pd.read_csv(tmp_path / "out" / "test_predict.csv")["pred_prob"]
    assert np.allclose(sorted(again), sorted(written), atol=1e-6)


def test_the_logged_model_scores_as_the_run_did(trained: Trained, client: MlflowClient) -> None:
    import mlflow

    mlflow.set_tracking_uri(trained.uri)
    model = mlflow.pyfunc.load_model("models:/screening/1")
    written = pd.read_csv(trained.out / "scores.txt")
    found = model.predict(written)
    assert np.allclose(found["pred_prob"], written["pred_prob"], atol=1e-7)
    assert (found["pred_y"] == written["pred_y"]).all()
    version = client.get_model_version("screening", "1")
    assert {name: version.tags[name] for name in ("delta", "unit", "mechanism", "privacy")} == {
        "delta": "1e-05",
        "unit": "record",
        "mechanism": "dp_sgd",
        "privacy": "private",
    }
    assert 3.9 < float(version.tags["epsilon"]) <= 4
    assert "Adding or removing one record" in version.description
    assert version.run_id == client.get_run(version.run_id).info.run_id
    assert version.status == "READY"


def test_infer_takes_the_address_of_a_registered_model(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    base = ["predictFileName=p.csv", "indicatorFileName=i.json", f"tracking.uri={trained.uri}"]
    items = ["--params", "modelFileName=models:/screening/1", *base]
    assert run_command(infer.main, items, monkeypatch, capsys).code == 0
    indicators = json.loads((trained.out / "numbers.dat").read_text())
    assert json.loads(Path("i.json").read_text())["test_acc"] == indicators["test_acc"]
    wrong = run_command(
        infer.main, ["--params", "modelFileName=models:/other/7", *base], monkeypatch, capsys
    )
    assert wrong.code == 2
    assert "check name and version" in wrong.error_lines[0]


def test_a_path_is_a_path(tmp_path: Path) -> None:
    with model_file(str(tmp_path / "m"), "sqlite:///none.db") as path:
        assert path == str(tmp_path / "m")
