"""The questions of NIST SP 800-226: every answer says what it rests on, and a weaker run says
so.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from homo_dp.tracking.report.nist import NOT_COVERED, hazards
from homo_dp.tracking.report.run_files import Record

PARTY = {"role": "party", "transport": "directory", "party": "a", "parties": 3}
AGGREGATOR = {"role": "aggregator", "transport": "nats", "parties": 3}
SIMULATION = {"role": "simulation"}


def answers(
    facts: Mapping[str, Any] = MappingProxyType({"setup": PARTY}),
    ledger: tuple[Mapping[str, Any], ...] = (),
    **privacy: Any,
) -> dict[str, str]:
    stated = {"unit": "record", "epsilon": 2.0, "delta": 1e-5, "secure_mode": True, **privacy}
    table = hazards(Record({"run": "r", "privacy": stated, "rounds": [], **facts}, ledger))
    assert all(len(row) == 3 and all(row) for row in table.rows)
    return {str(row[0]): str(row[1]) for row in table.rows}


def test_what_is_not_covered_is_said() -> None:
    assert sum(NOT_COVERED in answer for answer in answers().values()) >= 3


def test_a_weaker_run_gets_a_weaker_answer() -> None:
    sound, weak = (
        answers(),
        answers(secure_mode=False, epsilon=None, quoted_observer="model_reader"),
    )
    assert "cryptographic" in sound["Randomness and floating point"]
    assert "predictable" in weak["Randomness and floating point"]
    assert "trusted with updates" in weak["Trust model"]
    assert "no finite epsilon" in weak["Epsilon and delta, and how they were chosen"]


def test_answers_follow_from_the_roles_of_the_run() -> None:
    simulated, party, aggregator = (
        answers({"setup": setup}) for setup in (SIMULATION, PARTY, AGGREGATOR)
    )
    assert "trusted with the rows of all parties" in simulated["Trust model"]
    assert "there were no keys" in simulated["Keys, ledgers, access"]
    assert "in one process" in simulated["Data exposure after collection"]
    for apart in (party, aggregator):
        assert "signed and encrypted" in apart["Keys, ledgers, access"]
        assert "rows stay where they are" in apart["Data exposure after collection"]
    assert "this party's config" in party["Keys, ledgers, access"]
    assert "each at its party" in aggregator["Keys, ledgers, access"]
    assert "not known here" in aggregator["Composition over time"]
    assert "not stated" in answers({})["Keys, ledgers, access"]


def test_masks_are_a_trust_in_the_other_parties() -> None:
    assert "trusts nobody else" in answers()["Trust model"]
    masked = answers(secure_aggregation="on")["Trust model"]
    assert "masked totals" in masked
    assert "each party trusts the others" in masked


def test_what_nobody_stated_is_not_stated() -> None:
    silent = answers({"setup": PARTY, "bounds": {"source": "not stated"}})
    assert "not stated" in silent["Data exposure after collection"]
    assert "not stated" in silent["Preprocessing"]
    told = answers(
        {"setup": PARTY, "bounds": {"source": "codebook"}, "about": {"retention": "5 y"}}
    )
    assert "5 y" in told["Data exposure after collection"]
    assert "codebook" in told["Preprocessing"]


def test_delta_is_compared_with_the_rows_that_are_known() -> None:
    question = "Epsilon and delta, and how they were chosen"
    assert "1 / rows" not in answers()[question]
    assert "delta is below 1 / rows" in answers(parties={"a": {"rows": 100}})[question]
    # a party's report is of its own rows alone
    assert "1 / rows of this party" in answers(parties={"a": {"rows": 100}})[question]
    assert "delta is NOT below 1 / rows" in answers(parties={"a": {"rows": 10**6}})[question]


def test_amplification_is_claimed_only_where_the_ledger_has_sampled_events() -> None:
    assert "no amplification" in answers(parties={"a": {"sample_rate": 1.0}})["Sampling"]
    drawn = {"a": {"sample_rate": 0.25}}
    assert "names the event" in answers(parties=drawn)["Sampling"]
    gaussian = {"event": {"type": "GaussianDpEvent", "noise_multiplier": 1.0}}
    sampled = {"event": {"type": "PoissonSampledDpEvent", "event": gaussian["event"]}}
    assert "no amplification" in answers(ledger=(gaussian,), parties=drawn)["Sampling"]
    assert "names the event" in answers(ledger=(sampled,), parties=drawn)["Sampling"]
