"""`homo-dp convert`: a file of another system, written as a configuration of ours."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from homo_dp.compat.load import load
from homo_dp.config.load import load_config
from homo_dp.convert import main
from homo_dp.core.errors import ConfigError
from tests.compat.primihub.test_task_file import FILES, TASK
from tests.compat.test_book_chapter import CONF

THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "task.json": (json.dumps(TASK), FILES),
    "conf.json": (json.dumps(CONF), {}),
    "scope.yaml": (
        "federate: {client_num: 4, total_round_num: 2}\ndata: {type: toy}\n"
        "train: {optimizer: {lr: 0.5}}\nnbafl: {use: true, w_clip: 2}\n",
        {},
    ),
    "flower.yaml": (
        "num_rounds: 4\nclip_norm: 2\nnum_sampled_clients: 3\n"
        "privacy: {mechanism: dp_fedavg, trust_aggregator: true}\n",
        {},
    ),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, (text, _) in THEIRS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("name", "over"), [(name, over) for name, (_, over) in THEIRS.items()])
def test_what_is_written_is_the_configuration_that_the_file_stands_for(
    place: Path, name: str, over: dict[str, Any]
) -> None:
    assert main([name, "-o", "ours.yaml", "--quiet"]) == 0
    assert load_config("ours.yaml", over) == load(name, over).config


def test_notes_are_comments_and_the_screen_shows_only_yaml(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conf.json"]) == 0
    text = capsys.readouterr().out
    assert "# lambda=0.1: multiplies the sum of k=8 updates" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("#")) <= 100
    assert yaml.safe_load(text)["privacy"]["mechanism"] == "dp_fedavg"


def test_what_is_still_to_be_given_is_said_and_no_error(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["task.json"]) == 0
    text = " ".join(capsys.readouterr().out.replace("#", "").split())
    assert "to be given: data.files.Bob: the file of data_set train_client1 is not known" in text
    assert "to be given: PrimiHub scales features by statistics" in text


def test_a_configuration_without_its_tables_is_refused_instead_of_training_on_others(
    place: Path,
) -> None:
    assert main(["task.json", "-o", "ours.yaml", "--quiet"]) == 0
    with pytest.raises(ConfigError, match=r"data\.files\.\w+=null: must be a file path"):
        load_config("ours.yaml")


def test_a_task_that_scores(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = json.loads(json.dumps(TASK))
    task["component_params"]["common_params"]["process"] = "predict"
    (place / "predict.json").write_text(json.dumps(task))
    assert main(["predict.json"]) == 0
    assert "homo_dp.infer --config" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ours.yaml", "train: {rounds: 3}", "is a configuration of homo_dp; use it as it is"),
        ("odd.yaml", "steps: 3", "is recognised as a config of none of PrimiHub"),
        ("list.yaml", "- a", "must hold sections"),
        ("broken.json", "{", "is not valid JSON"),
        ("task.py", "config = {}", "python -m homo_dp.primihub --task_code=task.py"),
        ("vertical.yaml", "federate: {}\nvertical: {use: true}", "not split over parties"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_next_step(
    place: Path, name: str, text: str, said: str
) -> None:
    (place / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        main([name])


def test_no_file_is_replaced(place: Path) -> None:
    (place / "mine.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        main(["conf.json", "-o", "mine.yaml"])
    assert (place / "mine.yaml").read_text() == "mine"
