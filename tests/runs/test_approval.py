"""Which plans an operator has to approve, and for what an approval counts."""

import time
from pathlib import Path
from threading import Thread

import pytest

from homo_dp.config.load import load_config
from homo_dp.console.options import Screen
from homo_dp.core.errors import InputError
from homo_dp.federation.sessions.plan import PlanRefused
from homo_dp.runs.approval import answer, check_rules, must_ask, wait_for_word
from tests.processes.parts import served


def test_rules_say_which_plans_wait_and_which_mechanisms_are_refused() -> None:
    assert not must_ask(load_config(None, {"party.name": "party_1"}))
    assert not must_ask(load_config(None, served(approve="always")))
    # no cap on epsilon: nothing to be within
    assert must_ask(load_config(None, served(approve="within_caps")))
    assert not must_ask(
        load_config(None, {**served(approve="within_caps"), "party.caps.epsilon": 2.0})
    )
    assert must_ask(load_config(None, {**served(approve="ask"), "party.caps.epsilon": 2.0}))
    own = load_config(None, served(mechanisms=["dp_fedsgd"]))
    with pytest.raises(PlanRefused) as refused:
        check_rules(own, load_config(None, {"privacy.mechanism": "dp_sgd"}))
    assert refused.value.reason == "mechanism"


def test_an_approval_is_for_one_plan_and_a_refusal_ends_it(tmp_path: Path) -> None:
    screen, plan = Screen(quiet=True), {"train": {"rounds": 2}}
    with pytest.raises(InputError, match="no plan waits"):
        answer(tmp_path, "loans", "approve", screen)
    waiting = Thread(
        target=wait_for_word, args=(tmp_path, plan, {"rounds": 2}, "loans", screen), daemon=True
    )
    waiting.start()
    while not (tmp_path / "asked.json").exists():
        time.sleep(0.01)
    answer(tmp_path, "loans", "approve", screen)
    waiting.join(30)
    assert not waiting.is_alive()
    wait_for_word(tmp_path, plan, {}, "loans", screen)  # started again: approved before
    other = Thread(
        target=wait_for_word,
        args=(tmp_path, {"train": {"rounds": 9}}, {}, "loans", screen),
        daemon=True,
    )
    other.start()
    other.join(1)
    assert other.is_alive()  # another plan is another question
    answer(tmp_path, "loans", "approve", screen)
    other.join(30)
    assert not other.is_alive()
    (tmp_path / "refused.json").write_bytes((tmp_path / "approved.json").read_bytes())
    with pytest.raises(PlanRefused, match="refused by this party's operator"):
        wait_for_word(tmp_path, {"train": {"rounds": 9}}, {}, "loans", screen)
