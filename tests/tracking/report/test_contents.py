"""The report: complete, readable from the folder alone, escaped, and honest about a ledger that
was touched.
"""

from __future__ import annotations

import dataclasses
import json
import re
import resource
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import homo_dp.train as train
from homo_dp.privacy.ledger import Ledger
from homo_dp.tracking.report.contents import Checks, report_page
from homo_dp.tracking.report.report_files import checked_by_the_run, plots_of
from homo_dp.tracking.report.run_files import find_record
from tests.shell import run_command
from tests.tracking.conftest import ROUNDS, Trained

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
from tests.tracking.report.parts import Shell, change


def test_it_says_everything_from_the_folder_alone(shell: Shell, folder: Path) -> None:
    for index, path in enumerate(sorted(folder.iterdir())):  # names do not matter, only content
        path.rename(folder / f"file{index}")
    (folder / "notes.txt").write_text("not ours")
    assert shell.report(str(folder)).code == 0
    assert "Do not rely" not in shell.text
    for part in (
        "Adding or removing one record",
        "logistic_regression",
        "3: party_1, party_2, party_3",
        "one record (one row of one party's table)",
        "the aggregator, who sees every message",
        "epsilon (PLD)",
        "epsilon (RDP)",
        f"1 to {ROUNDS}",
        "each unit drawn with probability",
        f"{3 * ROUNDS} rows match their own hashes",
        "added up from the ledger",
        "the whole ledger is not at hand",
        "Limits of the guarantee",
        "only if every person is in one party",
        "Resolved configuration",
        "public: of a bundled set",
    ):
        assert part in shell.text, part


def test_it_is_one_file_that_loads_and_runs_nothing(shell: Shell, folder: Path) -> None:
    shell.report(str(folder), "--plots", "png")
    page = (shell.folder / "report.html").read_text()
    seen: list[tuple[str, dict[str, str | None]]] = []

    class Walker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append((tag, dict(attrs)))

    Walker().feed(page)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in seen}
    images = [attributes for tag, attributes in seen if tag == "img"]
    assert len(images) == 7
    assert all(
        str(image["src"]).startswith("data:image/png;base64,") and image["alt"] for image in images
    )
    assert not re.search(r"https?://", page)
    assert len(list((shell.folder / "png").glob("*.png"))) == 7


def test_with_the_ledger_the_whole_chain_is_checked(shell: Shell, trained: Trained) -> None:
    done = shell.report(str(trained.out))
    assert done.code == 0
    assert "the whole ledger ledger.sqlite is intact" in done.out
    assert shell.report(str(trained.out), "--ledger", "nowhere").code == 2


def test_an_edited_row_is_found(shell: Shell, folder: Path) -> None:
    change(folder / "numbers_ledger.json", lambda rows: rows[4].update(sigma=9.0))
    done = shell.report(str(folder))
    assert done.code == 1
    assert "BAD: row 5 does not match its own hash" in done.out
    assert "BAD" in shell.text
    assert "ok: party_1: epsilon by PLD" in done.out  # each finding stands for itself
    first = shell.text.split("What was trained")[0]
    assert "NOT VERIFIED" in first
    assert "Do not rely on this report" in first


def test_a_missing_extract_is_found(shell: Shell, folder: Path) -> None:
    (folder / "numbers_ledger.json").unlink()
    done = shell.report(str(folder))
    assert done.code == 1
    assert "BAD" in shell.text
    assert "cannot be checked" in shell.text


def test_seeded_noise_is_not_private_whatever_the_indicators_say(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = "privacy.seeded_noise_for_tests=1,train.rounds=1,train.auto=false,tracking.enabled=false"
    assert run_command(train.main, ["--quiet", "--params", keys], monkeypatch, capsys).code == 0
    done = shell.report("out")
    assert done.code == 0, done.out
    assert "NOT PRIVATE: no epsilon is claimed" in shell.text
    assert "no epsilon holds for it" in shell.text
    assert "taken off again" in shell.text
    assert "the whole ledger ledger.sqlite is intact" in shell.text
    change(
        shell.folder / "out" / "indicator.json", lambda value: value["privacy"].update(private=True)
    )
    done = shell.report("out")
    assert done.code == 1
    assert "BAD: row 1 says that its noise was NOT PRIVATE" in done.out


def test_a_ledger_of_the_same_name_here_is_not_taken_for_the_own(
    shell: Shell, folder: Path
) -> None:
    config = folder / "numbers_config.yaml"
    config.write_text(config.read_text().replace("elsewhere.sqlite", "ledger.sqlite"))
    Ledger(shell.folder / "here" / "ledger.sqlite").close()
    shell.monkeypatch.chdir(shell.folder / "here")
    done = shell.report(str(folder))
    assert done.code == 0
    assert "the whole ledger is not at hand" in done.out


def test_a_store_that_is_not_there_is_not_made(shell: Shell) -> None:
    assert "is not a store" in shell.report("0" * 32).error_lines[0]
    assert not list(shell.folder.iterdir())


def test_an_epsilon_that_was_made_smaller_is_found(shell: Shell, folder: Path) -> None:
    change(
        folder / "numbers.dat",
        lambda value: value["privacy"]["parties"]["party_1"].update(epsilon_pld=1.0),
    )
    done = shell.report(str(folder))
    assert done.code == 1
    assert "but 1.0 was stated" in done.out


def test_another_ledger_is_not_taken_for_the_own(
    shell: Shell, trained: Trained, folder: Path
) -> None:
    change(folder / "numbers_ledger.json", lambda rows: rows[-1].update(hash="0" * 64))
    assert shell.report(str(folder), "--ledger", str(trained.folder / "ledger.sqlite")).code == 1


def test_values_are_escaped(shell: Shell, folder: Path) -> None:
    bad = '<script>alert("x")</script>'
    change(folder / "numbers.dat", lambda value: value.update(data=bad, model=bad))
    (folder / "numbers_config.yaml").write_text(
        f"model: {{name: '{bad}'}}\ndata: {{}}\nprivacy: {{}}\ntrain: {{}}\n"
    )
    assert shell.report(str(folder)).code == 0
    assert "<script" not in (shell.folder / "report.html").read_text()
    assert shell.text.count(bad) == 3


def test_the_published_report_has_nothing_local(shell: Shell, folder: Path) -> None:
    assert shell.report(str(folder), "--published").code == 0
    indicators = json.loads((folder / "numbers.dat").read_text())
    assert "LOCAL" not in shell.text
    assert "Quality" not in shell.text
    assert "gradient norms against" not in shell.text
    # whole ones: 0.96 stands in 0.9641 too
    numbers = set(re.findall(r"\d[\d.e+-]*", shell.text.split("Limits")[0]))
    assert f"{indicators['privacy']['epsilon']:.4g}" in numbers
    assert (
        not {
            f"{indicators[name]:.4g}"
            for name in ("train_acc", "test_acc", "test_auc", "train_loss")
        }
        & numbers
    )


def test_a_run_in_mlflow(shell: Shell, trained: Trained, client: MlflowClient) -> None:
    experiment = client.get_experiment_by_name("trained").experiment_id
    runs = client.search_runs([experiment], "tags.privacy = 'private'")
    parent = next(run for run in runs if "party" not in run.data.tags)
    assert shell.report(parent.info.run_id, "--uri", trained.uri).code == 0
    assert "what was released" in shell.text.lower()
    assert shell.report("0" * 32, "--uri", trained.uri).code == 2
    assert shell.report("no/such/folder").code == 2


def test_what_a_mechanism_states_is_listed(folder: Path) -> None:
    record = find_record(folder)
    privacy = {**record.privacy, "nominal_epsilon": 50.0, "nominal_epsilon_is": "the paper's"}
    page = report_page(
        type(record)({**record.indicators, "privacy": privacy}, record.ledger), Checks()
    )
    assert "<th>nominal epsilon</th><td>50</td>" in page
    assert "<td>the paper&#39;s</td>" in page


def test_row_counts_that_the_run_made_public_are_a_limit(folder: Path) -> None:
    record = find_record(folder)
    assert "Row counts were not declared" not in report_page(record, Checks())
    privacy = {**record.privacy, "rows": "counted, and public with this run"}
    counted = type(record)({**record.indicators, "privacy": privacy}, record.ledger)
    assert "Row counts were not declared" in report_page(counted, Checks())


def test_users_of_a_simulation_are_not_called_rows(folder: Path) -> None:
    record = find_record(folder)
    users = {"users": {**record.privacy["parties"]["party_1"], "rows": 400}}
    for unit, said, not_said in (
        ("user", "training users", "training rows"),
        ("record", "training rows", "users</th>"),
    ):
        privacy = {
            **record.privacy,
            "unit": unit,
            "parties": users if unit == "user" else record.privacy["parties"],
        }
        page = report_page(
            type(record)({**record.indicators, "privacy": privacy}, record.ledger), Checks()
        )
        assert f"<th>{said}</th>" in page
        assert not_said not in page


def test_everything_that_a_release_holds_is_said(folder: Path) -> None:
    """The ledger has one row for the weights and what is told with them, as the share of clipped
    updates.
    """
    record = find_record(folder)
    assert "model weights after" in report_page(record, Checks())
    privacy = {**record.privacy, "releases": ["noisy weights and a noisy share, every round"]}
    adaptive = dataclasses.replace(record, indicators={**record.indicators, "privacy": privacy})
    assert "noisy weights and a noisy share, every round" in report_page(adaptive, Checks())


def test_a_run_without_privacy_says_so(folder: Path) -> None:
    record = find_record(folder)
    indicators = {
        **record.indicators,
        "privacy": {**record.privacy, "private": False, "epsilon": None},
        "ledger": None,
    }
    bare = type(record)(indicators, folder=folder)
    page = report_page(bare, Checks(checked_by_the_run(bare), plots_of(bare)))
    assert "NOT PRIVATE" in page
    assert "NO differential-privacy guarantee" in page
    assert "There is no guarantee whose limits" in page


def test_an_aggregator_says_who_answered_and_whose_figures_these_are(shell: Shell) -> None:
    privacy = {
        "private": True,
        "statement": "Each party promised epsilon 4 at delta 1e-05.",
        "mechanism": "mine",
        "unit": "record",
        "epsilon": 4.0,
        "delta": 1e-5,
        "quoted_observer": "aggregator",
        "parties": {"a": {"epsilon_pld": 4.0, "epsilon_rdp": None, "rows": None, "delta": 1e-5}},
        "basis": "an upper bound from the plan",
    }
    rounds = [{"round": 1, "replied": ["a"]}, {"round": 2, "replied": []}]
    heads = {"a": {"count": 7, "hash": "f" * 64}}
    indicators = {
        "run": "r",
        "train_acc": None,
        "privacy": privacy,
        "rounds": rounds,
        "ledger_heads": heads,
    }
    (shell.folder / "out").mkdir()
    (shell.folder / "out" / "i.json").write_text(json.dumps(indicators))
    assert shell.report("out").code == 0
    for part in (
        "upper bound from the plan",
        "on that party's own ledger",
        "f" * 16,
        "each party's own statement",
    ):
        assert part in shell.text, part
    assert "None" not in shell.text
    assert "nothing stops further runs" not in shell.text
    assert "Quality" not in shell.text


def test_what_the_config_says_for_the_officer_is_on_the_page(folder: Path) -> None:
    about = {
        "purpose": "screening",
        "controller": "a <hospital>",
        "retention": "5 years",
        "contact": "dpo",
    }
    spent = {
        "dataset": "patients",
        "runs": 3,
        "epsilon_together": 6.5,
        "delta": 1e-5,
        "lifetime_epsilon": 10.0,
    }

    def edit(value: dict[str, Any]) -> None:
        value["about"] = about
        value["ledger"]["datasets"][0].update(spent)
        value["one_row_per_person"] = "unknown"

    change(folder / "numbers.dat", edit)
    page = report_page(find_record(folder), Checks())
    for text in (
        "screening",
        "a &lt;hospital&gt;",
        "5 years",
        "dpo",
        "torch 2",
        "What this epsilon means",
    ):
        assert text in page
    assert "All 3 runs on patients so far, this one included: epsilon 6.5" in page
    assert "of a lifetime budget of 10." in page
    assert "a person with k rows has up to k times as much" in page


def test_a_signed_report_is_checked_by_its_bytes_and_its_key(
    shell: Shell, folder: Path, tmp_path: Path
) -> None:
    from homo_dp.keys import main as keys

    for name in ("a", "b"):
        assert keys(["new", name, "--dir", str(tmp_path / "keys"), "--quiet"]) == 0
    assert shell.report(str(folder), "--key", str(tmp_path / "keys" / "a.key")).code == 0
    written = tmp_path / "report.html"
    own, other = str(tmp_path / "keys" / "a.pub"), str(tmp_path / "keys" / "b.pub")
    assert "Signed with a key by a" in written.read_text()
    assert shell.report("--check", str(written), "--key", own).code == 0
    assert shell.report("--check", str(written), "--key", other).code == 1
    written.write_text(written.read_text().replace("epsilon", "epsil0n", 1))
    assert shell.report("--check", str(written), "--key", own).code == 1


def test_round_numbers_of_a_foreign_extract_cost_no_memory(folder: Path) -> None:
    """A range over them took 2 GB at 50 million."""
    extract = folder / "numbers_ledger.json"

    def far(rows: list[dict[str, Any]]) -> None:
        rows[-1]["round"] = 500_000_000

    change(extract, far)
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_in_use() + (1 << 30), limits[1]))
    try:
        assert "500000000" in report_page(find_record(folder), Checks(()))
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def memory_in_use() -> int:
    """Bytes of data of this process, as RLIMIT_DATA counts them."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_a_simulation_says_so_at_the_top_and_what_nobody_stated(folder: Path) -> None:
    page = report_page(find_record(folder), Checks())
    top = page.partition("What was trained")[0]
    assert "one process held the rows of all parties" in top
    for name in ("purpose", "data controller", "retention", "contact"):
        assert re.search(rf"<th>{name}</th>\s*<td>not stated</td>", page), name


def test_a_party_names_its_aggregator_the_parties_and_the_source_of_bounds(folder: Path) -> None:
    def edit(value: dict[str, Any]) -> None:
        value["setup"] = {
            "role": "party",
            "transport": "directory",
            "party": "a",
            "aggregator": "0123 4567",
            "parties": 5,
        }
        value["bounds"] = {"source": "codebook", "given_by": "plan"}

    change(folder / "numbers.dat", edit)
    page = report_page(find_record(folder), Checks())
    assert "one process held" not in page
    for text in (
        "the holder of the key 0123 4567",
        "5 in the run; this report is of",
        "codebook; given by the plan of the aggregator",
        "messages went over a shared folder",
    ):
        assert text in page, text


def test_what_the_figures_leave_out_is_explained(folder: Path) -> None:
    def edit(value: dict[str, Any]) -> None:
        value["privacy"] |= {
            "neglected_epsilon": 1e-9,
            "neglected_delta": 2.0,
            "delta_with_neglected": 2.0,
        }

    page = report_page(find_record(folder), Checks())
    assert "rounds it to a public grid" in page
    assert "neglected" not in page.partition("Resolved configuration")[0]
    change(folder / "numbers.dat", edit)
    assert "no guarantee is left" in report_page(find_record(folder), Checks())
