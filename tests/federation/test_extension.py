"""A mechanism of the user's own: docs/extend.md as it stands, and the contract's checks on
classes that break it.
"""

import ast
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)
from safetensors import safe_open

import homo_dp.train as train
from homo_dp.config.capabilities import Capabilities
from homo_dp.config.mechanisms import REGISTRY
from homo_dp.core.errors import ConfigError, MessageError
from homo_dp.federation.mechanisms.base import (
    Combined,
    Mechanism,
    PartyFacts,
    PartyPlan,
    Release,
    Update,
    Weights,
)
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.messages import NUMBER, Message
from homo_dp.federation.sessions.build import (
    build_aggregator,
    build_mechanism,
    federation_facts,
    mechanism_class,
)
from homo_dp.privacy.accounting.events import from_json
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.noise.source import SeededNoise
from tests.federation.small import RUN, small_config, small_party, weights_message, zeros
from tests.shell import Finished, run_command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
HERE = "tests.federation.test_extension"


# --- mechanisms


class Good(Mechanism):
    """Gaussian noise on weights that are squashed into [-1, 1]: 4 coordinates, so replacing a
    row moves them by 4.
    """

    capabilities = Capabilities(name="good")
    sigma = 2.0

    def plan(self, party: PartyFacts) -> PartyPlan:
        return PartyPlan(
            noise_multiplier=self.sigma,
            sigma=self.sigma,
            clip_norm=1.0,
            relation="replace_one",
            delta=self.config.delta,
            rounds=party.rounds,
            events={"aggregator": GaussianDpEvent(0.5), "model_reader": GaussianDpEvent(0.5)},
            releases=("squashed weights",),
            noise_to_signal=1.0,
        )

    def after_fit(self, fit: LocalFit) -> Release:
        noised = {
            name: t.tanh() + self.noise.normal(t.shape, self.sigma)
            for name, t in fit.weights().items()
        }
        return Release(noised, GaussianDpEvent(0.5), self.sigma, "replace_one")


class NoEvent(Good):
    capabilities = replace(Good.capabilities, name="no_event")

    def after_fit(self, fit: LocalFit) -> Release:
        return Release(fit.weights(), None, 2.0, "replace_one")


class NoPlannedEvent(Good):
    def plan(self, party: PartyFacts) -> PartyPlan:
        return PartyPlan(**{**super().plan(party).__dict__, "events": {}})


class NothingPlanned(Good):
    def plan(self, party: PartyFacts) -> PartyPlan:
        events = {"aggregator": GaussianDpEvent(0.5), "model_reader": NoOpDpEvent()}
        return PartyPlan(**{**super().plan(party).__dict__, "events": events})


class NothingReleased(Good):
    event: Any = NoOpDpEvent()

    def after_fit(self, fit: LocalFit) -> Release:
        return Release(super().after_fit(fit).tensors, self.event, 2.0, "replace_one")


class NothingTwice(NothingReleased):
    event = ComposedDpEvent([NoOpDpEvent(), SelfComposedDpEvent(GaussianDpEvent(0.5), 0)])


class LargeDelta(Good):
    def plan(self, party: PartyFacts) -> PartyPlan:
        return PartyPlan(**{**super().plan(party).__dict__, "delta": 1 / party.rows})


class Trusting(Good):
    """Would have the figure of the model's readers quoted, whatever the party's own config says."""

    def plan(self, party: PartyFacts) -> PartyPlan:
        return PartyPlan(**{**super().plan(party).__dict__, "trusts_aggregator": True})


class Forgetful(Good):
    def after_fit(self, fit: LocalFit) -> Release:
        super().after_fit(fit)
        return None  # type: ignore[return-value]


class Unfinished(Mechanism):
    capabilities = Capabilities(name="unfinished")


class SaysNothing(Good):
    capabilities = None  # type: ignore[assignment]


class NoNoise(Good):
    def after_fit(self, fit: LocalFit) -> Release:
        return Release(fit.weights(), GaussianDpEvent(0.5), 0.0, "replace_one")


class CheaperPlan(Good):
    def after_fit(self, fit: LocalFit) -> Release:
        return Release(super().after_fit(fit).tensors, GaussianDpEvent(0.4), 2.0, "replace_one")


class OtherRelation(Good):
    def after_fit(self, fit: LocalFit) -> Release:
        return Release(
            super().after_fit(fit).tensors, GaussianDpEvent(0.5), 2.0, "add_or_remove_one"
        )


class OtherTensors(Good):
    def after_fit(self, fit: LocalFit) -> Release:
        more = {**super().after_fit(fit).tensors, "rows": torch.ones(1)}
        return Release(more, GaussianDpEvent(0.5), 2.0, "replace_one")


class TalksTooMuch(Good):
    def after_fit(self, fit: LocalFit) -> Release:
        info = {"local_loss": 0.25}
        return Release(
            super().after_fit(fit).tensors, GaussianDpEvent(0.5), 2.0, "replace_one", info=info
        )


class TalksAsDeclared(TalksTooMuch):
    message_fields = {"update": {"local_loss": NUMBER}}  # noqa: RUF012 (read only)


class SaysNotPrivate(Good):
    capabilities = replace(Good.capabilities, private=False)


class LeftToTheAggregator(Good):
    """Good at parties and at the aggregator, which forgets the event or the noise where told to."""

    ledger_keeper = "aggregator"
    outcome: tuple[Any, float] = (GaussianDpEvent(0.5), 2.0)

    def after_fit(self, fit: LocalFit) -> Release:
        return Release(fit.weights(), None, 0.0, "replace_one")

    def on_receive(
        self, updates: Sequence[Update], current: Weights, round_number: int
    ) -> Combined:
        noised = {
            name: t + self.noise.normal(t.shape, 2.0) for name, t in updates[0].tensors.items()
        }
        return Combined(noised, *self.outcome)


class ForgetsTheEvent(LeftToTheAggregator):
    outcome = (None, 2.0)


class ForgetsTheNoise(LeftToTheAggregator):
    outcome = (GaussianDpEvent(0.5), 0.0)


class CostsMoreThanPlanned(LeftToTheAggregator):
    outcome = (GaussianDpEvent(0.4), 2.0)


# --- the page

Shell = Callable[..., Finished]


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """Runs homo_dp.train in a folder of its own, from which modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments: str) -> Finished:
        return run_command(
            train.main, ["--params", "tracking.enabled=false", *arguments], monkeypatch, capsys
        )

    return run


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def test_the_page_runs_as_it_stands(shell: Shell, tmp_path: Path) -> None:
    code = block("python")
    assert len(code.splitlines()) <= 65
    (tmp_path / "my_mechanisms.py").write_text(code)
    words = shlex.split(block("sh"))
    assert words[:3] == ["python", "-m", "homo_dp.train"]
    done = shell(*words[3:])
    assert done.code == 0, done.err
    privacy = json.loads(Path("out/indicator.json").read_text())["privacy"]
    assert (privacy["mechanism"], privacy["private"], privacy["secure_mode"]) == (
        "laplace_upload",
        True,
        True,
    )
    assert 99.5 <= privacy["epsilon"] <= 100
    with Ledger("ledger.sqlite") as ledger:
        rows = ledger.rows()
    multiplier = privacy["parties"]["party_1"]["noise_multiplier"]
    assert len(rows) == 9
    assert {from_json(row.event) for row in rows} == {LaplaceDpEvent(multiplier)}
    assert [row.sigma for row in rows] == pytest.approx(
        [2**0.5 * multiplier * 2 * 3] * len(rows), rel=1e-12
    )


def test_the_pages_mechanism_adds_the_noise_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean absolute value of n Laplace draws: b, with standard error b / sqrt(n); seed 0, five
    errors: below 1e-6.
    """
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(block("python"), "docs/extend.md", "exec"), space)
    kind: type[Mechanism] = space["LaplaceUpload"]
    page = ModuleType("page")
    page.__dict__.update(space)
    monkeypatch.setitem(sys.modules, "page", page)
    settings: dict[str, Any] = {
        "privacy.target_epsilon": 1.0,
        "privacy.options": {"clip_norm": 3.0},
    }
    config = small_config(
        privacy__mechanism="page:LaplaceUpload", privacy__noise_multiplier=None, **settings
    )
    mechanism = kind(config, federation_facts(config, {"a": 20}, 4), SeededNoise(0))

    class Trained:
        facts = mechanism.facts.parties["a"]

        def weights(self) -> Weights:
            return {"w": torch.full((20_000,), 1.0), "b": torch.full((20_000,), -1.0)}

    release = mechanism.after_fit(Trained())  # type: ignore[arg-type]
    scale = release.sigma / 2**0.5
    assert scale == pytest.approx(mechanism.plan(Trained.facts).noise_multiplier * 6)
    noise = torch.cat(
        [release.tensors["w"] - 3 / 40_000, release.tensors["b"] + 3 / 40_000]
    ).double()
    assert abs(float(noise.abs().mean()) - scale) < 5 * scale / 200
    assert abs(float(noise.median())) < 5 * scale / 200


# --- the checks


def own(kind: type[Mechanism], **overrides: Any) -> Mechanism:
    config = small_config(
        privacy__mechanism=f"{HERE}:{kind.__name__}", privacy__noise_multiplier=None, **overrides
    )
    return build_mechanism(config, federation_facts(config, {"a": 20}, 4), SeededNoise(0))


def test_a_good_one_is_charged(tmp_path: Path) -> None:
    mechanism = own(Good)
    party = small_party(mechanism.config, tmp_path, mechanism=mechanism)
    assert party.handle(weights_message()) is not None
    assert party.ledger is not None
    assert [from_json(row.event) for row in party.ledger.rows()] == [GaussianDpEvent(0.5)]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (NoEvent, PrivacyError, "names no event"),
        (NothingReleased, PrivacyError, "stands for no release"),
        (NothingTwice, PrivacyError, "stands for no release"),
        (Forgetful, PrivacyError, "after_fit returned NoneType"),
        (NoNoise, PrivacyError, "noise above zero"),
        (CheaperPlan, PrivacyError, "the plan of good says"),
        (OtherRelation, PrivacyError, "relation=add_or_remove_one"),
        (OtherTensors, MessageError, "unknown .'rows'"),
        (TalksTooMuch, MessageError, "may not carry info 'local_loss'"),
    ],
)
def test_a_bad_release_does_not_leave_and_is_charged_as_planned(
    tmp_path: Path, kind: type[Mechanism], error: type[Exception], words: str
) -> None:
    """Rows were touched, and whether that failed may depend on them: the party pays, and says
    one word.
    """
    mechanism = own(kind)
    party = small_party(mechanism.config, tmp_path, mechanism=mechanism)
    with pytest.raises(error, match=words):
        party.handle(weights_message())
    assert party.ledger is not None
    assert [from_json(row.event) for row in party.ledger.rows()] == [
        party.plan.events["aggregator"]
    ]
    answer = party.handle(weights_message())
    assert answer is not None
    assert (answer.kind, answer.info, answer.tensors) == ("refused", {"reason": "skipped"}, {})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NoPlannedEvent, "its plan names no event"),
        (NothingPlanned, "stands for no release"),
        (Trusting, r"privacy\.trust_aggregator=false: the plan of good trusts"),
        (LargeDelta, r"delta=0\.05 must be in \(0, 1/20\)"),
    ],
)
def test_a_bad_plan_is_refused_before_data_is_touched(
    tmp_path: Path, kind: type[Mechanism], words: str
) -> None:
    mechanism = own(kind)
    with pytest.raises(PrivacyError, match=words):
        small_party(mechanism.config, tmp_path, mechanism=mechanism)


def test_declared_numbers_may_travel(tmp_path: Path) -> None:
    mechanism = own(TalksAsDeclared)
    answer = small_party(mechanism.config, tmp_path, mechanism=mechanism).handle(weights_message())
    assert answer is not None
    assert answer.info["local_loss"] == 0.25


def test_noise_left_to_the_aggregator_needs_the_partys_trust(tmp_path: Path) -> None:
    mechanism = own(LeftToTheAggregator)
    with pytest.raises(PrivacyError, match=r"privacy\.trust_aggregator=false"):
        small_party(mechanism.config, tmp_path, mechanism=mechanism)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ForgetsTheEvent, "its round names no event"),
        (ForgetsTheNoise, "noise above zero"),
        (CostsMoreThanPlanned, "the plan of good says"),
    ],
)
def test_an_aggregator_publishes_nothing_that_it_should_have_noised(
    tmp_path: Path, kind: type[Mechanism], words: str
) -> None:
    for used, refused in ((LeftToTheAggregator, False), (kind, True)):
        mechanism = own(used, privacy__trust_aggregator=True)
        ledger = Ledger(tmp_path / f"{used.__name__}.sqlite")
        aggregator = build_aggregator(mechanism.config, RUN, zeros(), mechanism, ledger)
        aggregator.start_round()
        aggregator.receive(Message(RUN, 1, "a", "aggregator", "update", zeros()))
        if refused:
            with pytest.raises(PrivacyError, match=words):
                aggregator.finish_round()
            assert not aggregator.weights["linear.weight"].any()
        else:
            aggregator.finish_round()
            assert aggregator.weights["linear.weight"].any()
        assert len(ledger.rows()) == (0 if refused else 1)


def test_one_that_calls_itself_not_private_needs_the_configs_word() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.not_private: true"):
        own(SaysNotPrivate)
    assert own(SaysNotPrivate, privacy__not_private=True).name == "good"


def test_users_are_not_promised_what_hides_a_record() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.unit=user: .*:Good hides a record"):
        own(Good, privacy__unit="user")
    assert own(Good, privacy__unit="user", privacy__not_private=True).capabilities.unit == "record"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no.such.module:Class", "cannot be loaded"),
        (f"{HERE}:NoSuchClass", "cannot be loaded"),
        (
            "collections:OrderedDict",
            "is not a subclass of homo_dp.federation.mechanisms.base.Mechanism",
        ),
        (f"{HERE}:Unfinished", "does not define after_fit, plan"),
        (f"{HERE}:SaysNothing", "has no record of capabilities"),
    ],
)
def test_what_is_no_mechanism_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mechanism_class(name)


@pytest.mark.parametrize("code", ["class Half(", "1 / 0"])
def test_a_module_that_cannot_be_imported_is_one_line(
    code: str, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / f"broken_{len(code)}.py").write_text(code)
    done = shell(f"privacy.mechanism=broken_{len(code)}:Half")
    assert done.code == 2
    assert f"privacy.mechanism=broken_{len(code)}:Half: cannot be loaded" in done.error_lines[0]


def test_no_event_on_the_command_line(shell: Shell) -> None:
    refused = shell("train.rounds=1", f"privacy.mechanism={HERE}:NoEvent")
    assert refused.code == 2
    assert refused.error_lines == [
        "error: mechanism=no_event: its release names no event; name one, or set "
        "privacy.not_private"
    ]
    assert not Path("out").exists() or not list(Path("out").iterdir())


def test_marked_not_private_all_outputs_say_so(shell: Shell) -> None:
    done = shell("train.rounds=1", f"privacy.mechanism={HERE}:NoEvent", "privacy.not_private=true")
    assert done.code == 0, done.err
    assert "NOT PRIVATE" in done.out
    privacy = json.loads(Path("out/indicator.json").read_text())["privacy"]
    assert (privacy["private"], privacy["epsilon"]) == (False, None)
    assert "NOT PRIVATE" in privacy["statement"]
    assert [figure["epsilon"] for figure in privacy["observers"].values()] == [None, None]
    assert {party["epsilon_pld"] for party in privacy["parties"].values()} == {None}
    with safe_open("out/model.safetensors", framework="pt") as file:
        assert "NOT PRIVATE" in " ".join((file.metadata() or {}).values())
    if Path("ledger.sqlite").exists():
        with Ledger("ledger.sqlite") as ledger:
            assert ledger.rows() == []


def test_a_budget_stops_a_foreign_mechanism_too(shell: Shell) -> None:
    done = shell("train.rounds=3", f"privacy.mechanism={HERE}:Good", "privacy.target_epsilon=5")
    assert done.code == 3
    assert "would pass the budget epsilon=5" in done.err


# --- nothing private to our own mechanisms

# Where mechanisms are named on purpose: their own files, their records and sections of keys, words of
# other systems, the attacks that build one, the keys that clients of Flower stand for, and the job
# that asks statistics, which is one mechanism with files of its own.
NAMED = (
    *("federation/mechanisms/", "config/", "compat/", "primihub.py", "api/clients.py"),
    *("evidence/statistics_attack.py", "evidence/update_attacks.py"),
    *("api/statistics.py", "commands/stats.py", "statistics/", "runs/statistics"),
    "federation/sessions/plan_schema.py",  # a section of plans is called statistics
    "__init__.py",  # of the package: homo_dp.Statistics is what homo_dp.stats returns
)


def test_no_other_code_knows_a_mechanism_by_name() -> None:
    classes = {where.partition(":")[2] for _, where in REGISTRY.values()}
    names = set(REGISTRY) - {"none"} | classes
    package, found = ROOT / "homo_dp", []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).as_posix()
        if place.startswith(NAMED):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in names:
                found.append(f"{place}:{node.lineno}")
            if isinstance(node, ast.Name) and node.id in classes:
                found.append(f"{place}:{node.lineno}")
    assert found == []
