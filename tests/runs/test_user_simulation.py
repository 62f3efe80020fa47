"""Runs over users as somebody starts them: recipes, files, both observers, and nothing about who
was in a cohort.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import homo_dp.train as train
from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.models.files import load_model
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.outputs import write_outputs
from homo_dp.runs.simulation import RoundRow, RunOutcome
from homo_dp.runs.user_simulation import UserSimulation
from homo_dp.tracking.indicators import published
from tests.shell import Finished, run_command

CONF = Path(__file__).parents[2] / "conf"
PARTIES = {"privacy.noise_at": "parties", "privacy.sampling": "fixed"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def simulated(
    keys: dict[str, Any], recipe: str = "dp_fedavg.yaml"
) -> tuple[RunOutcome, list[RoundRow], UserSimulation]:
    told: list[RoundRow] = []

    def on_round(row: RoundRow, parties: Any) -> None:
        assert set(parties) <= {"users"}  # nothing by user
        told.append(row)

    simulation = UserSimulation(load_config(CONF / recipe, {"train.rounds": 4, **keys}), on_round)
    return simulation.run(), told, simulation


def indicators(path: str = "out/indicator.json") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(path).read_text())
    return loaded


@pytest.mark.parametrize("recipe", ["dp_fedavg.yaml", "dp_fedavg_adaptive.yaml"])
def test_recipes(
    recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", str(CONF / recipe), "--params", "tracking.enabled=false"]
    done: Finished = run_command(train.main, arguments, monkeypatch, capsys)
    assert done.code == 0, done.err
    assert "party  users  steps" in done.out
    found = indicators()
    privacy = found["privacy"]
    assert (privacy["unit"], privacy["mechanism"], privacy["private"]) == (
        "user",
        "dp_fedavg",
        True,
    )
    assert 3.98 <= privacy["epsilon"] <= 4.0
    assert privacy["observers"]["aggregator"]["epsilon"] is None
    assert (
        privacy["observers"]["model_reader"]["epsilon"]
        == privacy["epsilon"]
        == found["rounds"][-1]["epsilon"]
    )
    assert found["test_acc"] > 0.9  # 0.93 without noise
    assert all(row["clip_norm"] > 0 and row["applied_sigma"] > 0 for row in found["rounds"])
    assert all(("unclipped_share" in row) is ("adaptive" in recipe) for row in found["rounds"])
    assert all(0 <= row["fraction_clipped"] <= 1 for row in found["rounds"] if "adaptive" in recipe)
    rows = Ledger("ledger.sqlite").rows()
    assert [(row.party, row.round, row.kind, row.observer, row.unit) for row in rows] == [
        ("aggregator", number, "model", "model_reader", "user") for number in range(1, 51)
    ]
    assert [row.sigma for row in rows] == [row["applied_sigma"] for row in found["rounds"]]


def test_dry_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for population in ("400", "null"):
        arguments = [
            "--config",
            str(CONF / "dp_fedavg.yaml"),
            "--dry-run",
            "--params",
            f"privacy.population={population}",
        ]
        done = run_command(train.main, arguments, monkeypatch, capsys)
        assert done.code == 0
        assert "readers of the model only" in done.out
        assert "party  users  steps" in done.out
    assert not Path("ledger.sqlite").exists()


def test_a_dry_run_knows_what_the_unit_of_the_mechanism_has_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mechanism of one's own says its unit itself; the config's default is another."""
    keys = {
        "privacy.mechanism": "tests.own_user_mechanism:Louder",
        "privacy.unit": None,
        "train.rounds": 1,
    }
    simulated({**keys, "privacy.lifetime_epsilon": 50.0})
    words = [f"{key}={'null' if value is None else value}" for key, value in keys.items()]
    arguments = [
        "--config",
        str(CONF / "dp_fedavg.yaml"),
        "--params",
        *words,
        "privacy.lifetime_epsilon=50",
    ]
    done = run_command(train.main, [*arguments, "--dry-run", "--json"], monkeypatch, capsys)
    assert 0 < json.loads(done.out)["parties"]["users"]["remaining budget"] < 50


def test_noise_at_parties_is_charged_for_every_user_and_gives_both_epsilons() -> None:
    outcome, _, _ = simulated({**PARTIES, "privacy.trust_aggregator": False})
    observers = outcome.statement["observers"]
    assert (
        observers["model_reader"]["epsilon"]
        < observers["aggregator"]["epsilon"]
        == outcome.statement["epsilon"]
        <= 4
    )
    rows = Ledger("ledger.sqlite").rows()
    assert [(row.party, row.round, row.kind, row.observer) for row in rows] == [
        ("users", number, "update", "aggregator") for number in range(1, 5)
    ]
    assert outcome.statement["parties"]["users"]["applied_sigma"] == rows[-1].sigma
    assert rows[-1].epsilon == outcome.statement["epsilon"]


def test_too_many_missing_parties_discard_every_round_and_charge_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # nine of ten never reply
    keys = {**PARTIES, "privacy.population": 4000, "privacy.tolerated_dropouts": 20}
    outcome, told, simulation = simulated(keys)
    assert all(row["discarded"] == 1.0 for row in told)
    assert "discarded" in caplog.text
    assert len(Ledger("ledger.sqlite").rows()) == 4
    first = simulation._build().module.state_dict()
    assert all(torch.equal(first[name], tensor) for name, tensor in outcome.weights.items())
    assert outcome.statement["epsilon"] > 0


def table_of_users(path: Path) -> list[str]:
    """A CSV of 30 users with names that occur nowhere else."""
    names = [f"zebra{number:03d}x" for number in range(30)]
    generator = torch.Generator().manual_seed(0)
    lines = ["id,who,a,b,y"]
    for row in range(300):
        a, b = (2 * torch.rand(2, generator=generator) - 1).tolist()
        lines.append(f"{row},{names[row % 30]},{a:.4f},{b:.4f},{int(a + b > 0)}")
    path.write_text("\n".join(lines) + "\n")
    return names


def keys_of_users(file: Path) -> dict[str, Any]:
    return {
        "data.embedded": None,
        "data.files": str(file),
        "data.user_column": "who",
        "data.columns.a.bounds": [-1, 1],
        "data.columns.b.bounds": [-1, 1],
        "privacy.population": None,
    }


@pytest.mark.parametrize(
    "site", [{"privacy.noise_at": "server"}, PARTIES], ids=["server", "parties"]
)
def test_no_output_says_who_was_in_a_cohort(site: dict[str, str], tmp_path: Path) -> None:
    names = table_of_users(tmp_path / "visits.csv")
    outcome, told, simulation = simulated(
        {**keys_of_users(Path("visits.csv")), "privacy.cohort_size": 8, **site}
    )
    written = write_outputs(outcome, simulation.ledger)
    held_out = {name for name in names if name in written.files["predictions"].read_text()}
    # whole users, each by a hash of its own name: about a fifth of them
    assert 1 <= len(held_out) <= 14
    public = json.dumps(published(indicators())).encode()
    contents = [path.read_bytes() for path in written.files.values()] + [
        json.dumps(told).encode(),
        public,
    ]
    contents.append(Path("ledger.sqlite").read_bytes())
    assert not any(
        name.encode() in content for name in set(names) - held_out for content in contents
    )
    # nor does any number of a round depend on the size of its cohort, but for its seconds
    assert {key for row in told for key in row} <= {
        *(
            "round",
            "epsilon",
            "epsilon_pld",
            "epsilon_rdp",
            "seconds",
            "clip_norm",
            "applied_sigma",
        ),
        *(key for row in told for key in row if key.startswith("test_")),
    }
    assert "population" in outcome.statement


@pytest.mark.parametrize("others", ["u{}", "{}.0"], ids=["words", "numbers with a point"])
def test_one_user_more_in_the_table_changes_no_update_of_another(
    tmp_path: Path, others: str
) -> None:
    """What one user adds to the sum is clipped; what it would change in the batches of others is
    not. A user whose name was no number took the `.0` from nobody's name, and so shuffled all.
    """
    table = tmp_path / "visits.csv"
    names = table_of_users(table)
    text = table.read_text()
    for number, name in enumerate(names[1:]):
        text = text.replace(name, others.format(number + 7000))
    table.write_text(text)
    lines = table.read_text().splitlines(keepends=True)
    (tmp_path / "fewer.csv").write_text("".join(line for line in lines if names[0] not in line))
    sums = []
    for file in (table, tmp_path / "fewer.csv"):
        keys = {
            "privacy.sampling": "everyone",
            "privacy.cohort_size": None,
            "train.batch_size": 2,
            "train.rounds": 1,
        }
        split = {"data.test_fraction": None, "data.test_file": str(table)}
        _, _, simulation = simulated({**keys, **keys_of_users(file), **split})
        start = {
            name: torch.zeros_like(tensor)
            for name, tensor in simulation.model.module.state_dict().items()
        }
        # the first user has the first row
        rest = torch.arange(len(simulation.users) - 29, len(simulation.users))
        sums.append(simulation._training().run(simulation.user_mechanism, rest, start, 1).updates)
    torch.testing.assert_close(sums[0], sums[1])


def test_parties_are_users_where_there_is_no_user_column() -> None:
    keys = {
        "data.embedded": "digits",
        "data.partition.parties": 60,
        "privacy.population": 60,
        "privacy.cohort_size": 30,
        "privacy.noise_multiplier": 0.3,
        "privacy.target_epsilon": None,
        "train.learning_rate": 1.0,
        "train.rounds": 15,
    }
    _, told, simulation = simulated(keys)
    assert len(simulation.users) == 60
    assert told[-1]["test_acc"] > 0.6


def test_a_population_below_the_users_of_the_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="below the 400 users"):
        simulated({"privacy.population": 399})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"privacy.cohort_size": 500}, "cohort_size=500: must be at most privacy.population=400"),
        ({"privacy.delta": 0.01}, "delta=0.01 must be in"),
        (
            {
                **PARTIES,
                "privacy.sampling": "everyone",
                "privacy.cohort_size": None,
                "privacy.tolerated_dropouts": 400,
            },
            "tolerated_dropouts=400: must be below the cohort of 400",
        ),
    ],
)
def test_what_a_counted_population_does_not_allow_is_one_line(
    keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        simulated({"privacy.population": None, **keys})
    assert isinstance(refusal.value, ConfigError | PrivacyError)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_population_that_was_counted_is_said_to_be_public() -> None:
    outcome, _, _ = simulated({"privacy.population": None, "train.rounds": 1})
    assert "declare privacy.population" in outcome.statement["rows"]


def test_a_run_over_its_budget_is_refused_before_the_first_round() -> None:
    keys = {"privacy.lifetime_epsilon": 3.0, "data.name": "visits"}
    with pytest.raises(BudgetExceeded, match="lifetime_epsilon=3"):
        simulated(keys)
    assert Ledger("ledger.sqlite").rows() == []


def test_a_second_run_uses_the_same_lifetime_budget() -> None:
    keys = {"privacy.lifetime_epsilon": 6.0, "data.name": "visits"}
    simulated(keys)
    with pytest.raises(BudgetExceeded, match="over all runs"):
        simulated(keys)


def test_an_interrupted_run_counts_what_it_spent() -> None:
    def stop(row: RoundRow, parties: Any) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    config = load_config(CONF / "dp_fedavg.yaml", {"train.rounds": 4})
    outcome = UserSimulation(config, stop).run()
    assert outcome.interrupted
    assert len(outcome.rounds) == 2 == len(Ledger("ledger.sqlite").rows())
    assert 0 < outcome.statement["epsilon"] < 4


def test_seeded_noise_is_marked_and_repeats() -> None:
    first, second = (simulated({"privacy.seeded_noise_for_tests": 5})[0] for _ in range(2))
    assert not first.statement["private"]
    assert first.statement["epsilon"] is None
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_a_mechanism_of_ones_own_is_one_file() -> None:
    keys = {
        "privacy.mechanism": "tests.own_user_mechanism:Louder",
        "privacy.unit": "user",
        "privacy.target_epsilon": None,
        "privacy.noise_multiplier": 1.0,
    }
    outcome, _, _ = simulated(keys)
    assert outcome.statement["mechanism"] == "louder"
    assert outcome.statement["epsilon"] > 0


@pytest.mark.parametrize(
    ("mechanism", "keys", "words"),
    [
        ("Louder", {"privacy.noise_at": "parties"}, "a poisson cohort has no known size"),
        ("Louder", {"privacy.sampling": "everyone"}, "takes no cohort_size"),
        ("LargeDelta", {}, r"delta=0\.0025 must be in \(0, 1/400\)"),
    ],
)
def test_a_mechanism_of_ones_own_keeps_the_rules_of_cohorts(
    mechanism: str, keys: dict[str, Any], words: str
) -> None:
    own = {"privacy.mechanism": f"tests.own_user_mechanism:{mechanism}", "privacy.unit": "user"}
    with pytest.raises(ValueError, match=words):
        simulated({**own, **keys})


def test_hooks_of_ones_own_are_called_for_every_user_of_a_simulation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Users that are trained together skip the hooks: only those may be whose effect that
    training has by itself.
    """
    keys = {"privacy.mechanism": "tests.own_user_mechanism:StayingPut", "privacy.unit": "user"}
    with caplog.at_level("INFO"):
        _, _, simulation = simulated({**keys, "train.rounds": 1})
    weights = simulation._build().module.state_dict()
    total = simulation._training().run(simulation.user_mechanism, torch.arange(5), weights, 1)
    assert total.replies == 5
    assert not total.updates.any()
    assert "one at a time" in caplog.text


def test_an_integer_buffer_of_ones_own_model_is_refused_unless_declared_public_and_then_stays() -> (
    None
):
    keys = {
        "model.factory": "tests.own_user_mechanism:scaled",
        "train.server_optimizer.name": "fedadam",
    }
    with pytest.raises(ConfigError, match=r"buffer version .* list it in privacy\.public_tensors"):
        simulated(keys)
    outcome, _, simulation = simulated({**keys, "privacy.public_tensors": ["version"]})
    assert outcome.weights["version"].equal(torch.tensor(3))
    assert float(outcome.weights["scale"]) != 1.0
    written = write_outputs(outcome, simulation.ledger)
    saved = load_model(written.files["model"], trust_factory=True)
    assert saved.module.state_dict()["version"].equal(torch.tensor(3))
