"""What the aggregator believes of parties: the newest ledger head, and no refusal that is out of
date.
"""

from pathlib import Path

import opacus  # noqa: F401  (takes seconds that no round of these tests should wait for)
import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message, encode
from homo_dp.federation.sessions.build import build_mechanism, federation_facts, noise_source
from homo_dp.federation.sessions.ledger_heads import LedgerHeads
from homo_dp.federation.sessions.members import MOST_ROWS
from tests.federation.queues import SmallRun
from tests.federation.small import RUN, small_config


def test_the_head_after_the_last_round_is_kept_too(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "ab")
    run.start("a")
    run.start("b")
    run.aggregate()
    run.join()
    kept = LedgerHeads(tmp_path / "heads.json")
    for party in "ab":
        assert kept.newest(party) == run.of("update", party)[-1].info["ledger_head"]


# in round 1 no ledger head tells that it is old: the update does
@pytest.mark.parametrize("moment", [1, 2])
def test_an_old_refusal_does_not_keep_a_party_out_that_came_back(
    tmp_path: Path, moment: int
) -> None:
    """Whoever carries messages can deliver one again: that a party once refused must not end the
    run.
    """
    run = SmallRun(tmp_path, small_config(train__rounds=3), "ab")
    old = Message(
        RUN, 0, "b", AGGREGATOR, "refused", {}, {"reason": "epsilon_cap", "ledger_head": None}
    )
    original = run.members.transport.send

    def send(message: Message) -> None:
        if message.kind == "weights" and message.round == moment:
            run.post.box(AGGREGATOR).put(encode(old))
        original(message)

    run.members.transport.send = send  # type: ignore[method-assign]
    run.start("a")
    run.start("b")
    session = run.aggregate()
    run.join()
    assert [row["replied"] for row in session.rows] == [["a", "b"]] * 3
    assert session.members.refusals == {}


@pytest.mark.parametrize("rows", [0, 1001, 1 << 53])
def test_a_count_that_no_plan_can_have_costs_its_sender_the_run_and_nobody_else(
    tmp_path: Path, rows: int
) -> None:
    """In the plan, a count of 0 made it invalid at every party, and one above 1 / delta ended
    the aggregator.
    """
    run = SmallRun(tmp_path, small_config(), "abe", min_parties=2, round_timeout=0.5)
    run.members.most_rows = 1000
    # the last of them end the wait, however slow it is
    for name, count in (("e", rows), ("a", 1000), ("b", 1)):
        head = {"count": 0, "hash": ""}
        run.post.end(name).send(
            Message(RUN, 0, name, AGGREGATOR, "join", {}, {"rows": count, "ledger_head": head})
        )
    run.members.open(run.rules)
    assert run.members.rows == {"a": 1000, "b": 1}
    told = [message.info for message in run.of("status", AGGREGATOR) if message.recipient == "e"]
    assert told[-1] == {"state": "refused", "reason": "rows"}


def test_sums_hold_the_most_rows_that_a_party_may_declare() -> None:
    """Else one party's count would end the run of all where its sums are planned; the noise is
    the least of a run.
    """
    keys = {
        "privacy.mechanism": "dp_fedsgd",
        "privacy.delta": 1e-12,
        "privacy.target_epsilon": 100.0,
    }
    config = load_config(None, {**keys, "train.rounds": 1, "train.sample_rate": 1.0})
    facts = federation_facts(config, {"a": MOST_ROWS, "b": 100, "c": 100}, 31)
    assert (
        build_mechanism(config, facts, noise_source(config))
        .run.planned(facts.parties["b"])
        .noise_multiplier
        < 0.2
    )


def test_a_party_whose_count_is_refused_says_what_to_change(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "a")
    session = run.party_session("a")
    session.duty.declared_rows = 0
    run.members.tell("a", 0, "refused", "rows")
    with pytest.raises(ConfigError, match=r"data\.rows\.a=0: .* delta"):
        session.run()
