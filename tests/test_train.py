"""The main job as a user runs it: commands, files and their contract."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import homo_dp.train as train
from homo_dp import infer
from homo_dp.models.files import read_card
from homo_dp.privacy.ledger import Ledger
from tests.shell import CommandLine, Finished, run_command

DATA = Path(__file__).parents[1] / "data"

FLAT = ("loss", "acc", "auc", "ks", "f1", "precision", "recall", "fpr", "tpr", "thresholds")
PARTY_KEYS = {
    "epsilon_pld",
    "epsilon_rdp",
    "delta",
    "noise_multiplier",
    "applied_sigma",
    "steps",
    "sample_rate",
    "rows",
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Shell(CommandLine):
    def train(self, *arguments: str) -> Finished:
        items = ["--params", "tracking.enabled=false"]
        return self.run(train.main, [*items, *arguments])

    def infer(self, *arguments: str) -> Finished:
        return self.run(infer.main, arguments)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def read(path: str) -> dict[str, object]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    loaded: dict[str, object] = json.loads(Path(path).read_text(), parse_constant=refuse)
    return loaded


def test_a_model_below_the_majority_class_and_a_weak_epsilon_say_so(shell: Shell) -> None:
    done = shell.train(
        "train.rounds=1",
        "train.local_steps=1",
        "privacy.target_epsilon=168000",
        "predict.threshold=0.999999",  # so that every row is of the rarer class
    )
    assert done.code == 0, done.err
    assert "strength of the guarantee: weak (epsilon 16" in done.out
    assert "in the worst case this guarantee says little" in done.out
    assert "is not better than always predicting the most frequent class" in done.err


def test_a_run_leaves_all_files(shell: Shell) -> None:
    done = shell.train("train.rounds=3", "train.auto=false")
    assert done.code == 0
    indicators = read("out/indicator.json")
    assert all(f"{part}_{name}" in indicators for part in ("train", "test") for name in FLAT)
    privacy = indicators["privacy"]
    assert isinstance(privacy, dict)
    assert privacy["delta"] < privacy["delta_with_neglected"] < 1.001 * privacy["delta"]
    assert privacy["private"] is True
    assert privacy["secure_mode"] is True
    assert privacy["strength"] == "moderate"
    assert "strength of the guarantee: moderate (epsilon 3.99; strong up to 1" in done.out
    assert privacy["unit"] == "record"
    assert privacy["neighbouring_relation"] == "add_or_remove_one"
    assert 3.9 < privacy["epsilon"] <= 4.0
    assert privacy["observers"]["aggregator"]["epsilon"] == privacy["epsilon"]
    assert privacy["observers"]["model_reader"]["epsilon"] == privacy["epsilon"]
    assert len(privacy["parties"]) == 3
    assert all(set(party) >= PARTY_KEYS for party in privacy["parties"].values())
    rounds = indicators["rounds"]
    assert isinstance(rounds, list)
    assert [
        set(row) >= {"round", "epsilon", "test_loss", "test_acc", "seconds"} for row in rounds
    ] == [True] * 3
    assert rounds[-1]["epsilon"] == privacy["epsilon"]
    local_only = indicators["local_only"]
    assert isinstance(local_only, list)
    assert {"train_acc", "test_thresholds"} <= set(local_only)


def test_predictions_hold_the_test_rows_of_all_parties(shell: Shell) -> None:
    shell.train("train.rounds=1")
    with Path("out/predict.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert next(iter(rows[0])) == "party"
    assert list(rows[0])[-2:] == ["pred_prob", "pred_y"]
    assert {row["party"] for row in rows} == {"party_1", "party_2", "party_3"}
    assert {"id", "mean radius", "y"} <= set(rows[0])
    assert all(0 <= float(row["pred_prob"]) <= 1 and row["pred_y"] in "01" for row in rows)


def test_every_round_of_every_party_is_on_the_ledger(shell: Shell) -> None:
    shell.train("train.rounds=2", "train.auto=false")
    with Ledger("ledger.sqlite") as ledger:
        ledger.verify()
        assert sorted((row.party, row.round) for row in ledger.rows()) == sorted(
            (f"party_{party}", number) for party in (1, 2, 3) for number in (1, 2)
        )
    assert len(json.loads(Path("out/indicator_ledger.json").read_text())) == 6


def test_the_resolved_config_trains_again(shell: Shell) -> None:
    shell.train("train.rounds=1", "train.learning_rate=0.5")
    again = shell.train("train.rounds=1", "--config", "out/indicator_config.yaml")
    assert again.code == 0
    assert "learning_rate: 0.5" in Path("out/indicator_config.yaml").read_text()


def test_a_count_that_is_not_declared_is_said_to_be_public_or_refused(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """Sample rate, steps and noise follow from it."""
    files = f"data.files.a={DATA / 'breast_cancer_party_1_train.csv'},data.columns_from=breast_cancer,train.rounds=1"
    plain = ("--params", files, "train.local_steps=1")
    assert shell.train(*plain).code == 0
    assert "data.rows of a: not declared" in caplog.text
    caplog.clear()
    for word in ("data.counts=public", "data.rows.a=120"):
        assert shell.train(*plain, word).code == 0
    assert "not declared" not in caplog.text
    refused = shell.train(*plain, "data.counts=declared")
    assert refused.code == 2
    assert "data.rows of a: not declared" in refused.err
    assert "data.counts: public" in refused.err
    assert shell.train(*plain, "data.counts=declared", "privacy.mechanism=none").code == 0


def test_the_two_seeds_of_a_run_do_not_repeat_its_noise(shell: Shell) -> None:
    weights = []
    for name in ("a", "b"):
        shell.train("train.rounds=1", f"modelFileName={name}.safetensors")
        weights.append(Path(f"{name}.safetensors").read_bytes())
    assert weights[0] != weights[1]


def test_primihubs_command_string_runs_unchanged(shell: Shell) -> None:
    old = "predictFileName:STRING:0:p.csv,indicatorFileName:STRING:0:i.json,modelFileName:STRING:0:m.bin"
    assert shell.train("train.rounds=1", "--params", old).code == 0
    assert all(Path(name).exists() for name in ("p.csv", "i.json", "m.bin"))
    scored = "modelFileName:STRING:0:m.bin,predictFileName:STRING:0:tp.csv,indicatorFileName:STRING:0:ti.json"
    assert shell.infer("--params", scored).code == 0
    assert read("ti.json")["test_acc"] == read("i.json")["test_acc"]


def test_scoring_reads_labels_by_the_classes_of_the_model(shell: Shell) -> None:
    shell.train("train.rounds=2", "data.classes=[1, 0]")
    done = shell.infer("--params", "modelFileName=out/model.safetensors")
    assert done.code == 0
    assert "test rows of breast_cancer (partition iid over 3 parties" in done.out
    assert read("out/test_indicator.json")["test_acc"] == read("out/indicator.json")["test_acc"]


def test_without_test_rows_no_older_predictions_stay(shell: Shell) -> None:
    shell.train("train.rounds=1")
    with Path("out/predict.csv").open() as file:
        header = file.readline()
    assert shell.train("train.rounds=1", "data.test_fraction=0").code == 0
    assert Path("out/predict.csv").read_text() == header
    assert read("out/indicator.json")["test_acc"] is None


def test_not_private_is_written_everywhere(shell: Shell) -> None:
    done = shell.train("train.rounds=2", "privacy.mechanism=none")
    assert "NOT PRIVATE" in done.out
    privacy = read("out/indicator.json")["privacy"]
    assert isinstance(privacy, dict)
    assert privacy["private"] is False
    assert privacy["secure_mode"] is False
    assert privacy["epsilon"] is None
    assert "NOT PRIVATE" in privacy["statement"]
    assert not Path("ledger.sqlite").exists()


def test_seeded_noise_is_not_private(shell: Shell) -> None:
    shell.train("train.rounds=1", "privacy.seeded_noise_for_tests=1")
    privacy = read("out/indicator.json")["privacy"]
    assert isinstance(privacy, dict)
    assert privacy["private"] is False
    assert privacy["secure_mode"] is False


def test_a_dry_run_touches_nothing(shell: Shell, tmp_path: Path) -> None:
    done = shell.train("--dry-run")
    assert done.code == 0
    assert "noise to signal" in done.out
    assert "refused" not in done.out
    assert (
        "would be refused: lifetime_epsilon=1"
        in shell.train("privacy.lifetime_epsilon=1", "--dry-run").out
    )
    assert list(tmp_path.iterdir()) == []


def test_json_summary_stands_alone(shell: Shell) -> None:
    done = shell.train("train.rounds=1", "--json")
    assert json.loads(done.out)["privacy"]["private"] is True


def test_quiet_says_nothing(shell: Shell) -> None:
    done = shell.train("train.rounds=1", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_the_lifetime_budget_refuses_the_second_run(shell: Shell) -> None:
    budget = "privacy.lifetime_epsilon=6,privacy.lifetime_delta=1e-5"
    assert shell.train("train.rounds=1", "--params", budget).code == 0
    before = Path("out/indicator.json").read_bytes()
    planned = shell.train("train.rounds=1", "--params", budget, "--dry-run")
    assert planned.code == 0
    assert "the run would be refused: lifetime_epsilon=6" in planned.out
    refused = shell.train("train.rounds=1", "--params", budget)
    assert refused.code == 3
    assert len(refused.error_lines) == 1
    assert "lifetime" in refused.err
    assert Path("out/indicator.json").read_bytes() == before


def test_a_party_with_a_new_name_has_no_new_lifetime_budget(shell: Shell) -> None:
    table = Path(__file__).parents[1] / "data" / "breast_cancer_party_1_train.csv"
    budget = "privacy.lifetime_epsilon=6,privacy.lifetime_delta=1e-5,data.name=hospital"
    first, renamed = (f"data.files.{name}={table},data.test_fraction=0.2" for name in ("a", "b"))
    assert shell.train("train.rounds=1", "--params", budget, "--params", first).code == 0
    refused = shell.train("train.rounds=1", "--params", budget, "--params", renamed)
    assert refused.code == 3
    assert "dataset=hospital" in refused.err


def test_a_continued_model_says_that_epsilons_add(shell: Shell) -> None:
    shell.train("train.rounds=1")
    done = shell.train(
        "train.rounds=1", "train.init_from=out/model.safetensors", "modelFileName=out/second"
    )
    assert done.code == 0
    assert "adds to" in done.out
    first, second = (read_card(name).privacy for name in ("out/model.safetensors", "out/second"))
    together = f"together at most epsilon {first['epsilon'] + second['epsilon']:.4g} at delta 2e-05"
    assert together in second["statement"]
    assert together in done.out
    assert read("out/indicator.json")["privacy"] == {
        key: value for key, value in second.items() if key not in ("data", "run")
    }


def test_a_model_is_not_continued_with_another_split_of_the_same_rows(shell: Shell) -> None:
    """The rows of its training would be among the test rows."""
    shell.train("train.rounds=1", "data.partition.parties=2")
    continued = ["train.rounds=1", "train.init_from=out/model.safetensors", "modelFileName=second"]
    refused = shell.train(*continued)
    assert refused.code == 2
    recorded = 'data.partition={"alpha": 0.5, "kind": "iid", "parties": 2}'
    assert f"another split of breast_cancer ({recorded})" in refused.error_lines[-1]
    assert not Path("second").exists()
    assert shell.train(*continued, "data.partition.parties=2").code == 0


def test_a_model_without_privacy_is_not_made_private_by_continuing_it(shell: Shell) -> None:
    shell.train("train.rounds=1", "privacy.mechanism=none")
    before = Path("out/indicator.json").read_bytes()
    continued = [
        "train.rounds=1",
        "train.init_from=out/model.safetensors",
        "modelFileName=out/second",
    ]
    refused = shell.train(*continued)
    assert refused.code == 2
    assert (
        "was trained without privacy on the same data (data.name=breast_cancer)"
        in refused.error_lines[-1]
    )
    assert Path("out/indicator.json").read_bytes() == before
    assert not Path("ledger.sqlite").exists() or not Ledger("ledger.sqlite").rows()
    assert shell.train(*continued, "privacy.not_private=true").code == 0
    assert read_card("out/second").privacy["private"] is False
    other = shell.train(*continued, "data.name=another")
    assert other.code == 0
    assert "a model of other data (breast_cancer)" in other.out
    chain = ["train.init_from=out/second", "modelFileName=out/third", "train.rounds=1"]
    assert shell.train(*chain).code == 2, (
        "the rows of the first run are in the third model, whatever came between"
    )


def test_declared_rows_decide_the_rate_and_others_are_said_to_be_public(shell: Shell) -> None:
    shell.train("train.rounds=1", "train.auto=false", "data.rows.party_1=200")
    indicators = read("out/indicator.json")
    privacy = indicators["privacy"]
    assert isinstance(privacy, dict)
    assert privacy["parties"]["party_1"]["sample_rate"] == 50 / 200
    assert "public with this run" in privacy["rows"]
    shell.train("train.rounds=1")
    assert read("out/indicator.json")["privacy"]["rows"].startswith("public: of a bundled set")  # type: ignore[index]


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "homo_dp.train",
        "--params",
        "tracking.enabled=false,train.rounds=2000",
    ]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        shown = []
        for line in process.stderr:
            shown.append(line)
            if line.startswith("round 1/"):
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130, shown
    assert "the model so far is in" in shown[-1]
    assert not Path("out/indicator.json").exists(), "that name is for a finished run"
    indicators = read("out/indicator_interrupted.json")
    done = indicators["rounds_done"]
    assert isinstance(done, int)
    assert 1 <= done < 2000
    with Ledger("ledger.sqlite") as ledger:
        ledger.verify()
        spent = ledger.rows()[-1].epsilon
    privacy = indicators["privacy"]
    assert isinstance(privacy, dict)
    assert privacy["epsilon"] >= spent


def test_a_run_that_is_refused_does_not_say_that_it_replaces_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("out/predict.csv").write_text("kept")
    done = run_command(
        train.main,
        ["--params", "data.files.a=missing.csv,tracking.enabled=false"],
        monkeypatch,
        capsys,
    )
    assert done.code == 2
    assert "replaces" not in done.out + done.err
    quick = "train.rounds=1,train.local_steps=1,tracking.enabled=false"
    done = run_command(train.main, ["--params", quick], monkeypatch, capsys)
    assert "replaces out/predict.csv" in done.out
