"""An aggregator that says whatever it likes was privately estimated: a real party takes what its
plan asks for, and refuses all else before a row is read again.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.config.schema import Config
from homo_dp.core.errors import MessageError
from homo_dp.data.parties import load_federation
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.crash_state import PartyFiles
from homo_dp.federation.sessions.party_session import PartyDuty, PartySession
from homo_dp.federation.sessions.plan_schema import PlanRefused
from homo_dp.federation.sessions.stages import Found, read_found, stage_of
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose, from_json
from homo_dp.runs import party_process
from tests.federation.queues import Post
from tests.processes.hostile import PARTY, RUN, Hostile, job, plan_of, weights_of
from tests.processes.parts import ledger_rows

ROWS = 400
OWN: dict[str, Any] = {
    "data.counts": "private",
    "party.caps.epsilon": 8.0,
    "party.caps.columns": 60,
    "privacy.delta": 1e-5,
}
TABLE = "id,x,w,y\n" + "".join(f"{n},{n % 90 - 45},{'ab'[n % 2]},{n % 2}\n" for n in range(ROWS))
GOOD: dict[str, Any] = {
    "levels": {"w": ["a", "b"]},
    "bounds": {"x": [-50.0, 60.0]},
    "rows": {PARTY: 390},
}


def asked(**overrides: Any) -> Config:
    """A job that estimates categories, a count and bounds."""
    columns = {"x": {"bounds": [-1e6, 1e6]}, "w": {"levels": "private"}}
    keys = {"data__scaling": "private", "data__counts": "private", "privacy__target_epsilon": 8.0}
    return job(columns, privacy__delta=1e-5, **(keys | overrides))


def message(kind: str, number: int, tensors: Any = None, **info: Any) -> Message:
    return Message(RUN, number, AGGREGATOR, PARTY, kind, tensors or {}, info)


def findings(**changes: Any) -> Message:
    return message("findings", 0, found=GOOD | changes)


@pytest.fixture
def hostile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Hostile:
    return Hostile(tmp_path, monkeypatch, capsys)


def first_training_round(config: Config) -> Message:
    stage = stage_of(config, {PARTY: None}, Found(**GOOD), RUN)
    return message("weights", 1 + len(stage.estimates), weights_of(stage.config))


def test_a_run_goes_on_with_what_was_estimated(hostile: Hostile) -> None:
    config = asked()
    heard = hostile.hear(TABLE, config, OWN, found=[findings(), first_training_round(config)])
    assert heard.error is None
    rows = ledger_rows(hostile.folder / "1" / "ledger.sqlite")
    kinds = [row.kind for row in rows]
    assert kinds[0] == "level_names"
    assert kinds[1] == "rows"
    assert kinds[-1] == "update"
    assert epsilon(compose(*(from_json(row.event) for row in rows)), 1e-5).quoted <= 8.0


BAD: dict[str, dict[str, Any]] = {
    "outside": {"bounds": {"x": [-2e6, 60.0]}},
    "turned": {"bounds": {"x": [60.0, -50.0]}},
    "equal": {"bounds": {"x": [0.0, 0.0]}},
    "tiny": {"bounds": {"x": [0.0, 1e-320]}},
    "text": {"bounds": {"x": ["a", "b"]}},
    "another column": {"bounds": {"x": [-1.0, 1.0], "w": [0.0, 1.0]}},
    "no bounds": {"bounds": {}},
    "many categories": {"levels": {"w": [f"c{n}" for n in range(1000)]}},
    "too wide for the cap": {"levels": {"w": [f"c{n}" for n in range(200)]}},
    "no categories": {"levels": {"w": []}},
    "twice": {"levels": {"w": ["a", "a"]}},
    "no text": {"levels": {"w": [{"a": 1}]}},
    "unprintable": {"levels": {"w": ["a\n"]}},
    "long": {"levels": {"w": ["x" * 65]}},
    "of a number": {"levels": {"w": ["a"], "x": ["1"]}},
    "a count of 10^18": {"rows": {PARTY: 10**18}},
    "a count beyond delta": {"rows": {PARTY: 10**5}},
    "a negative count": {"rows": {PARTY: -1}},
    "of a stranger": {"rows": {"b": 5}},
    "a setting that prices": {"settings": {"train.rounds": 100.0}},
    "a noise multiplier": {"settings": {"privacy.noise_multiplier": 0.01}},
    "a clip norm beyond the cap": {"settings": {"privacy.max_grad_norm": 1e30}},
    "a learning rate beyond the cap": {"settings": {"train.learning_rate": 1e30}},
    "more": {"epsilon": 100.0},
    "deep": {"levels": {"w": [[[[[[[[[[[[[["a"]]]]]]]]]]]]]]}},
}


@pytest.mark.parametrize("name", BAD)
def test_findings_that_the_plan_does_not_ask_for_are_refused_before_a_row_is_read(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config, places = asked(), list[Any]()

    def counted(*given: Any, **keys: Any) -> Any:
        places.append(given)
        return load_federation(*given, **keys)

    monkeypatch.setattr(party_process, "load_federation", counted)
    sent = [findings(**BAD[name]), first_training_round(config)]
    heard = hostile.hear(TABLE, config, OWN, found=sent)
    assert heard.error is not None
    # numbers of settings are held against caps with the parts of the training
    assert len(places) <= (2 if name.endswith("beyond the cap") else 1)
    assert heard.words[-1] in ("estimates", "columns_cap", "privacy", "plan"), heard.error
    kinds = [row.kind for row in ledger_rows(hostile.folder / "1" / "ledger.sqlite")]
    assert "update" not in kinds


def test_a_refusal_of_findings_is_the_same_whatever_the_rows_are(hostile: Hostile) -> None:
    sent = [findings(**BAD["outside"])]
    tables = TABLE, "id,x,w,y\n1,1,zz,0\n", "id,x,w,y\n"
    heard = [hostile.hear(table, asked(), OWN, found=sent) for table in tables]
    assert [each.words for each in heard] == [["estimates"]] * 3


def test_a_million_categories_are_refused_by_their_number_alone() -> None:
    """A message of so many does not reach a party: its header is larger than any may be."""
    many = {"levels": {"w": [f"c{n}" for n in range(1_000_000)]}}
    with pytest.raises(PlanRefused, match="has over 100000 values"):
        read_found(asked(), {PARTY: None}, GOOD | many)


@pytest.mark.parametrize("kind", ["weights", "finished"])
def test_nothing_of_the_training_is_answered_before_findings(hostile: Hostile, kind: str) -> None:
    config = asked()
    early = first_training_round(config)
    numbers = weights_of(stage_of(config, {PARTY: None}).reading)
    if kind == "finished":
        early = message("finished", early.round - 1, numbers)
    heard = hostile.hear(TABLE, config, OWN, found=[early])
    assert "no message from the aggregator" in str(heard.error)  # it gave up waiting
    rows = ledger_rows(hostile.folder / "1" / "ledger.sqlite")
    assert "update" not in [row.kind for row in rows]
    assert len(rows) == early.round - (kind == "weights")
    assert not (hostile.folder / "1" / "out" / "model").exists()


# The session of a party that is handed one message after the other


def session_of(hostile: Hostile, config: Config) -> tuple[PartySession, Post]:
    """A party whose rounds of estimates were all answered."""
    process, folder = hostile.process(TABLE, OWN)
    post = Post()
    build = partial(process._build, folder)
    duty = PartyDuty(PARTY, RUN, process.ledger, None, build, None, lambda text: None)
    session = PartySession(duty, post.end(PARTY), PartyFiles(folder.path))
    session.take(message("plan", 0, plan=plan_of(config)))
    stage = stage_of(config, {PARTY: None})
    for number in stage.estimates:
        session.take(message("weights", number, weights_of(stage.reading)))
    assert [kind for kind, _ in said(post)] == ["update"] * len(stage.estimates)
    return session, post


def said(post: Post) -> list[tuple[str, Any]]:
    """Kind and error code of what the party has sent since."""
    end, found = post.end(AGGREGATOR), []
    while (sent := end.receive(0.0)) is not None:
        end.done(sent)
        found.append((sent.kind, sent.info.get("reason")))
    return found


def test_other_findings_later_are_refused_and_the_first_ones_stay(hostile: Hostile) -> None:
    config = asked()
    session, post = session_of(hostile, config)
    session.take(findings())
    session.take(findings())  # the same again changes nothing
    session.take(findings(bounds={"x": [-1.0, 1.0]}))
    assert said(post) == [("refused", "plan_changed")]
    session.take(first_training_round(config))
    assert said(post) == [("update", None)]
    assert session.party is not None
    block = session.party.mechanism.config.data.columns["x"]
    assert block.bounds == (-50.0, 60.0)


def test_rounds_of_estimates_are_over_once_findings_are_there(hostile: Hostile) -> None:
    """Asked again by other numbers they would be another answer at no charge."""
    config = asked()
    session, post = session_of(hostile, config)
    session.take(findings())
    stage = stage_of(config, {PARTY: None})
    numbers = weights_of(stage.reading)["numbers"]
    codes = []
    for number in stage.estimates:
        with contextlib.suppress(MessageError):
            session.take(message("weights", number, {"numbers": torch.ones_like(numbers)}))
        codes += said(post)
    assert {kind for kind, _ in codes} == {"refused"}
    assert len(codes) == len(stage.estimates)


def test_a_round_of_training_waits_for_the_findings(hostile: Hostile) -> None:
    config = asked()
    session, post = session_of(hostile, config)
    session.take(first_training_round(config))
    assert said(post) == []
    session.take(findings())
    assert said(post) == [("update", None)]


def test_a_party_that_was_started_again_goes_on_from_its_findings(hostile: Hostile) -> None:
    config = asked()
    session, post = session_of(hostile, config)
    session.take(findings())
    again = PartySession(session.duty, post.end(PARTY), session.state)
    assert isinstance(again.state, PartyFiles)
    plan = again.state.plan()
    assert plan is not None
    again._agree(plan, again.state.found())
    again.take(first_training_round(config))
    assert said(post) == [("update", None)]
