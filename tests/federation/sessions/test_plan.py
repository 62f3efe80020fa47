"""The plan: what a party takes from it, what it never takes, and what it refuses before a row is
touched.
"""

from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.data.public_encoding import public_encoding
from homo_dp.federation.mechanisms.base import PartyFacts
from homo_dp.federation.sessions.plan import (
    PlanRefused,
    agree,
    begun_without,
    check_encoding,
    check_price,
    difference,
    epsilon_cap,
    facts_for_aggregator,
    facts_for_party,
    make_plan,
)
from homo_dp.federation.sessions.plan_schema import read_plan
from tests.federation.small import small_mechanism

ENCODING = {"columns": [1], "label": "y", "id": "id"}


def plan_of(**overrides: Any) -> dict[str, Any]:
    return make_plan(config(**overrides), {"a": 100, "b": None}, ENCODING)


def config(**overrides: Any) -> Config:
    return load_config(None, {name.replace("__", "."): value for name, value in overrides.items()})


def refusal(own: Config, plan: dict[str, Any]) -> str:
    with pytest.raises(PlanRefused) as caught:
        agree(own, plan)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_the_job_comes_from_the_plan_and_the_rest_stays_the_partys_own() -> None:
    own = config(
        privacy__ledger="mine.sqlite",
        privacy__lifetime_epsilon=9.0,
        party__caps__epsilon=20.0,
        output__modelFileName="mine.safetensors",
        train__physical_batch_size=7,
        train__rounds=99,
    )
    agreed = agree(
        own,
        plan_of(train__rounds=5, model__name="mlp", model__layers=[4], privacy__target_epsilon=3.0),
    )
    assert (agreed.train.rounds, agreed.model.name, agreed.privacy.target_epsilon) == (
        5,
        "mlp",
        3.0,
    )
    assert (agreed.privacy.ledger, agreed.privacy.lifetime_epsilon) == ("mine.sqlite", 9.0)
    assert (agreed.output, agreed.party, agreed.train.physical_batch_size) == (
        own.output,
        own.party,
        7,
    )


@pytest.mark.parametrize(
    ("asked", "cap", "calibrated"), [(8.0, 2.0, 2.0), (1.0, 2.0, 1.0), (8.0, None, 4.0)]
)
def test_epsilon_is_the_smaller_of_target_and_cap(
    asked: float, cap: float | None, calibrated: float
) -> None:
    own = config(party__caps__epsilon=cap)
    assert agree(own, plan_of(privacy__target_epsilon=asked)).privacy.target_epsilon == calibrated


def test_a_party_without_a_cap_keeps_its_own_target() -> None:
    assert epsilon_cap(config()) == 4.0
    assert epsilon_cap(config(privacy__target_epsilon=1.5)) == 1.5
    assert epsilon_cap(config(party__caps__epsilon=7.0)) == 7.0


def test_a_large_delta_is_not_taken_from_the_aggregator() -> None:
    assert agree(config(privacy__delta=1e-6), plan_of(privacy__delta=1e-3)).privacy.delta == 1e-6


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trust_aggregator", True),
        ("seeded_noise_for_tests", 1),
        ("not_private", True),
        ("secure_mode", False),
    ],
)
def test_what_weakens_the_guarantee_cannot_come_from_the_plan(key: str, value: object) -> None:
    plan = plan_of()
    assert key not in plan["privacy"]
    plan["privacy"][key] = value
    assert refusal(config(), plan) == "plan"


def test_updates_without_noise_need_the_partys_own_word() -> None:
    plan = plan_of(privacy__mechanism="none")
    assert refusal(config(), plan) == "not_private"
    assert agree(config(privacy__mechanism="none"), plan).privacy.mechanism == "none"


@pytest.mark.parametrize(
    "mechanism", ["antigravity", "os:system", "tests.federation.sessions.test_party:NoEvent"]
)
def test_code_that_the_party_does_not_name_is_neither_imported_nor_run(mechanism: str) -> None:
    plan = plan_of()
    plan["privacy"]["mechanism"] = mechanism
    assert refusal(config(), plan) == "mechanism"


def test_a_model_factory_must_be_named_by_the_party_too() -> None:
    plan = plan_of()
    plan["model"]["factory"] = "tests.models.factories:two_layers"
    assert refusal(config(), plan) == "factory"


def test_noise_at_the_aggregator_needs_the_partys_own_trust() -> None:
    users = {"privacy__unit": "user", "privacy__population": 100, "privacy__cohort_size": 10}
    plan = plan_of(
        privacy__mechanism="dp_fedavg",
        privacy__trust_aggregator=True,
        train__weighting="uniform",
        **users,
    )
    assert refusal(config(), plan) == "trust"
    plan = plan_of(
        privacy__mechanism="nbafl", nbafl__noise_at_upload=False, privacy__trust_aggregator=True
    )
    assert refusal(config(), plan) == "trust"


def test_caps_on_rounds_and_releases() -> None:
    assert refusal(config(party__caps__rounds=4), plan_of(train__rounds=5)) == "rounds_cap"
    assert refusal(config(party__caps__releases=["statistics"]), plan_of()) == "releases_cap"
    assert agree(
        config(party__caps__releases=["update"], party__caps__rounds=5), plan_of(train__rounds=5)
    )


@pytest.mark.parametrize(
    "own", [{"privacy__noise_multiplier": 2.0}, {"privacy__mechanism": "nbafl"}]
)
def test_a_config_that_names_no_target_must_name_a_cap(own: dict[str, Any]) -> None:
    """Its own noise_multiplier or nbafl.epsilon gives way to the plan, so nothing would bound
    what a run may cost.
    """
    plan = plan_of(privacy__target_epsilon=1000.0)
    assert refusal(config(**own), plan) == "epsilon_cap"
    assert agree(config(**own, party__caps__epsilon=3.0), plan).privacy.target_epsilon == 3.0
    assert agree(config(privacy__mechanism="none"), plan)  # asks for no protection at all


def test_a_price_above_the_cap_is_refused() -> None:
    own = config(party__caps__epsilon=0.5)
    agreed = agree(own, plan_of(privacy__noise_multiplier=0.7))
    facts = PartyFacts("a", 100, agreed.train.rounds, 2, 0.5)
    plan = small_mechanism(agreed, {"a": 100}).plan(facts)
    with pytest.raises(PlanRefused, match="would cost epsilon") as caught:
        check_price(own, plan)
    assert caught.value.reason == "epsilon_cap"


@pytest.mark.parametrize("damage", ["version", "privacy", "train", "model"])
def test_a_damaged_plan_is_refused(damage: str) -> None:
    plan = plan_of()
    del plan[damage]
    assert refusal(config(), plan) in ("plan", "version")


def test_unknown_keys_are_refused_not_ignored() -> None:
    plan = plan_of()
    plan["train"]["learning_rte"] = 1.0
    assert refusal(config(), plan) == "plan"


def test_columns_are_taken_from_the_plan_unless_the_party_states_its_own() -> None:
    columns = {"x": {"bounds": [0.0, 1.0]}}
    plan = make_plan(load_config(None, {"data.columns": columns}), {}, ENCODING)
    files = {"data.files": {"a": "a.csv"}}
    assert list(agree(load_config(None, files), plan).data.columns) == ["x"]
    own = load_config(None, files | {"data.columns": {"z": {"bounds": [0.0, 2.0]}}})
    assert list(agree(own, plan).data.columns) == ["z"]


def test_other_columns_than_the_aggregators_are_refused_whatever_the_id_is_called() -> None:
    plan = plan_of()
    check_encoding(plan, ENCODING | {"id": "patient"})
    with pytest.raises(PlanRefused, match=r"data\.columns"):
        check_encoding(plan, ENCODING | {"columns": [2]})


def test_curves_are_in_a_plan_only_where_they_are_taken() -> None:
    plain, asked = plan_of(), plan_of(data__curves=True)
    # so that kept plans of before there were curves are the same job
    assert plain == plan_of(data__curves=False)
    assert "curves" not in plain["data"]
    assert asked["data"] == plain["data"] | {"curves": True}
    assert read_plan(asked)["data"]["curves"] is True
    assert "curves" not in read_plan(plain)["data"]
    assert difference(plain, asked) == "data.curves=None became True"


@pytest.mark.parametrize(
    ("own", "there", "fits"), [(None, True, True), (False, False, False), (True, True, True)]
)
def test_curves_are_taken_from_the_plan_unless_the_party_states_its_own(
    own: bool | None, there: bool, fits: bool
) -> None:
    asked = config(data__columns_from="breast_cancer", data__curves=True)
    plan = make_plan(asked, {"a": 100}, public_encoding(asked).to_json())
    agreed = agree(config(data__files={"a": "a.csv"}, data__curves=own), plan)
    found = public_encoding(agreed)
    assert (bool(agreed.data.curves), found.curves) == (there, there)
    if fits:
        check_encoding(plan, found.to_json())
        return
    with pytest.raises(PlanRefused, match=r"curves, classes or label differ from the aggregator's"):
        check_encoding(plan, found.to_json())


def test_a_party_that_states_curves_refuses_a_plan_without_them() -> None:
    asked = config(data__columns_from="breast_cancer")
    plan = make_plan(asked, {"a": 100}, public_encoding(asked).to_json())
    stated = agree(config(data__files={"a": "a.csv"}, data__curves=True), plan)
    with pytest.raises(PlanRefused, match="curves"):
        check_encoding(plan, public_encoding(stated).to_json())
    check_encoding(plan, public_encoding(agree(config(data__curves=False), plan)).to_json())


def test_the_source_of_bounds_is_in_the_plan_unless_they_were_read_from_rows() -> None:
    assert "bounds_source" not in plan_of()["data"]
    plan = plan_of(data__bounds_source="codebook")
    assert agree(config(), plan).data.bounds_source == "codebook"
    assert agree(config(data__bounds_source="public"), plan).data.bounds_source == "public"
    assert "bounds_source" not in plan_of(data__bounds_source="draft")["data"]
    drafted = plan | {"data": plan["data"] | {"bounds_source": "draft"}}
    assert refusal(config(), drafted) == "plan"


def test_facts_hold_what_was_declared_and_nothing_else() -> None:
    plan, agreed = plan_of(), agree(config(), plan_of())
    known = facts_for_party(agreed, plan, "b", 60, 31)
    assert {name: facts.rows for name, facts in known.parties.items()} == {"a": 100, "b": 60}
    alone = facts_for_party(agreed, plan, "a", 70, 31)
    assert alone.smallest_rows == 70
    with pytest.raises(DataError, match=r"data\.rows\.b"):
        facts_for_aggregator(config(train__weighting="rows"), plan, 31)
    with pytest.raises(DataError, match=r"nbafl\.min_dataset_size"):
        facts_for_aggregator(config(privacy__mechanism="nbafl"), plan, 31)


def test_a_changed_job_is_named_by_its_key() -> None:
    assert difference(plan_of(), plan_of()) is None
    assert (
        difference(plan_of(train__rounds=3), plan_of(train__rounds=4)) == "train.rounds=3 became 4"
    )
    rows = make_plan(config(), {"a": 1}, ENCODING)
    assert difference(rows, plan_of()) is None


MEMBERS = {"a": "line of a", "b": "line of b", "c": "line of c"}


def secure_plan(**overrides: Any) -> dict[str, Any]:
    asked = {"privacy__mechanism": "dp_fedsgd", "privacy__secure_aggregation": True, **overrides}
    return make_plan(config(**asked), dict.fromkeys(MEMBERS, 100), ENCODING)


def test_masks_are_agreed_to_with_the_peers_of_the_partys_own_config() -> None:
    own = config(party__name="a", federation__parties=MEMBERS)
    agreed = agree(own, secure_plan())
    assert agreed.privacy.model_dump()["secure_aggregation"] is True
    many = MEMBERS | dict.fromkeys("def", "x")
    for members in ({}, {"a": "x", "b": "y"}, many, {**MEMBERS, "c": None}):
        assert (
            refusal(config(party__name="a", federation__parties=members), secure_plan()) == "roster"
        )
    assert refusal(own, secure_plan(privacy__tolerated_colluders=0)) == "roster"


def test_a_plan_may_lack_as_many_peers_as_masks_can_tolerate() -> None:
    members = {**MEMBERS, "d": "x4", "e": "x5"}
    members = {name: f"key {name}" for name in members}
    own = config(party__name="a", federation__parties=members)
    masks = {"privacy__tolerated_colluders": 0}
    asked = {"privacy__mechanism": "dp_fedsgd", "privacy__secure_aggregation": True, **masks}

    def plan(names: str, dropouts: int = 0) -> dict[str, Any]:
        job = config(**asked, privacy__tolerated_dropouts=dropouts)
        return make_plan(job, dict.fromkeys(names, 100), ENCODING)

    own = own.model_copy(update={"privacy": config(**asked).privacy})
    assert agree(own, plan("abcd", 1)).privacy.model_dump()["tolerated_dropouts"] == 1
    agree(own, plan("abc"))
    for refused in (plan("ab"), plan("abc", 1), plan("abcx"), plan("bcde")):
        assert refusal(own, refused) == "roster"


def test_a_run_that_begins_without_a_party_has_as_many_sharers_of_its_noise() -> None:
    asked = {"privacy__mechanism": "dp_fedsgd", "privacy__secure_aggregation": True}
    masks = {"privacy__tolerated_dropouts": 2, "privacy__tolerated_colluders": 0}
    members = {name: f"key {name}" for name in "abcde"}
    whole = config(**asked, **masks, federation__parties=members)
    found = begun_without(whole, ["e"]).privacy.model_dump()["tolerated_dropouts"]
    assert 4 - found == 5 - 2
    with pytest.raises(ConfigError, match="tolerated_dropouts=-1"):
        begun_without(whole, ["c", "d", "e"])
    assert begun_without(config(), ["c"]) == config()


def test_shared_noise_is_not_calibrated_by_one_party_alone() -> None:
    own = config(party__name="a", federation__parties=MEMBERS, party__caps__epsilon=1.0)
    assert refusal(own, secure_plan(privacy__target_epsilon=2.0)) == "epsilon_cap"


def test_a_party_can_require_masks() -> None:
    own = config(party__caps__secure_aggregation="required")
    assert refusal(own, plan_of()) == "secure_aggregation"


def test_a_party_that_requires_masks_estimates_no_names_whoever_asks_for_them() -> None:
    own = config(
        party__name="a",
        federation__parties=MEMBERS,
        party__caps__secure_aggregation="required",
        data__columns={"ward": {"levels": "private"}},
    )
    assert refusal(own, secure_plan()) == "secure_aggregation"


def test_the_noise_of_a_masked_sum_rests_on_the_counts_of_the_plan_alone() -> None:
    """Told another count of one party, the others would mask words of another size."""
    told = secure_plan()
    agreed = agree(config(party__name="a", federation__parties=MEMBERS), told)
    rows = facts_for_party(agreed, told, "a", 10**9, 31).parties
    assert {name: facts.rows for name, facts in rows.items()} == dict.fromkeys(MEMBERS, 100)


def test_a_masked_plan_with_another_count_than_the_party_declares_is_refused() -> None:
    own = {"party__name": "a", "federation__parties": MEMBERS}
    agree(config(**own, data__rows={"a": 100}), secure_plan())
    assert refusal(config(**own, data__rows={"a": 99}), secure_plan()) == "rows"


def test_a_plan_without_masks_is_the_plan_of_before() -> None:
    assert "secure_aggregation" not in plan_of()["privacy"]
    assert "secure_aggregation" in secure_plan()["privacy"]
