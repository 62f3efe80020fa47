"""Whether a party's rules let a plan in at once, and the operator's word where they do not.

In the run's folder: `asked.json` (what the plan would give away, and its digest), then
`approved.json` or `refused.json` with that digest. A plan that changes has another digest, and is
asked about anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from homo_dp.config.schema import Config
from homo_dp.console.options import Screen
from homo_dp.core.errors import InputError
from homo_dp.core.files import read_regular, write_whole
from homo_dp.core.strict_json import json_digest
from homo_dp.core.untrusted_text import LARGEST_TEXT, Foreign
from homo_dp.federation.sessions.plan_schema import PlanJson, PlanRefused

ASKED: Final = "asked.json"
# the declared count among what is given away, or "no"
ROWS_TOLD: Final = "rows told to the aggregator"
_WORDS: Final = {"approve": "approved.json", "refuse": "refused.json"}
_LOOK: Final = 0.5  # seconds between looks for the operator's word


def check_rules(own: Config, agreed: Config) -> None:
    """Refuse a plan whose mechanism the party's rules do not name."""
    rules = own.party.serve
    if (
        rules is not None
        and rules.mechanisms is not None
        and agreed.privacy.mechanism not in rules.mechanisms
    ):
        raise PlanRefused(
            "mechanism",
            f"party.serve.mechanisms: the plan's privacy.mechanism={agreed.privacy.mechanism} is "
            f"none of {', '.join(rules.mechanisms)}",
        )


def must_ask(own: Config) -> bool:
    """Whether a plan that caps and budget allow still waits for the operator."""
    rules = own.party.serve
    if rules is None or rules.approve == "always":
        return False
    return rules.approve == "ask" or own.party.caps.epsilon is None


def wait_for_word(
    folder: Path, plan: PlanJson, values: Mapping[str, Any], run: str, screen: Screen
) -> None:
    """Wait until the operator approves this plan; PlanRefused if it is refused. Nobody is told
    anything meanwhile.
    """
    digest = json_digest(plan)
    if _word(folder, digest) is None:
        asked = {"run": run, "plan": digest, "since": time.time(), "given_away": dict(values)}
        write_whole(
            folder / ASKED, json.dumps(asked, default=str).encode(), "question to the operator"
        )
        screen.line(
            f"run {run}: its plan waits for `homo-dp party approve {run}` (or `refuse {run}`)"
        )
    while (word := _word(folder, digest)) is None:
        time.sleep(_LOOK)
    (folder / ASKED).unlink(missing_ok=True)
    if word == "refuse":
        raise PlanRefused("operator", f"run={run}: its plan was refused by this party's operator")
    screen.line(f"run {run}: its plan was approved")


def answer(folder: Path, run: str, word: str, screen: Screen) -> None:
    """The operator's word on the plan that waits: says what it would give away, and keeps the
    answer.
    """
    asked = read_question(folder)
    if asked is None:
        raise InputError(f"run={run}: no plan waits in {folder}; `homo-dp status` lists the runs")
    rows = [[name, value] for name, value in asked["given_away"].items()]
    screen.table(f"what run {run} would give away", ["", "value"], rows)
    kept = {"plan": asked["plan"], "time": time.time()}
    write_whole(folder / _WORDS[word], json.dumps(kept).encode(), "answer of the operator")
    screen.line(f"run {run}: {'approved' if word == 'approve' else 'refused'}")
    screen.summary({"run": run, "word": word, "given_away": asked["given_away"]})


def read_question(folder: Path) -> dict[str, Any] | None:
    """What waits for the operator in a run's folder; None if nothing does."""
    found = _read(folder / ASKED)
    if found is None or not isinstance(found.get("plan"), str):
        return None
    return found if isinstance(found.get("given_away"), dict) else None


def _word(folder: Path, digest: str) -> str | None:
    for word in ("refuse", "approve"):
        found = _read(folder / _WORDS[word])
        if found is not None and found.get("plan") == digest:
            return word
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = Foreign(str(path), "it is left out").json(read_regular(path, LARGEST_TEXT))
    except (OSError, InputError):
        return None
    return found if isinstance(found, dict) else None
