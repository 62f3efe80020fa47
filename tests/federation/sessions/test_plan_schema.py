"""Plans that nobody honest would send: read quickly, in little memory, and answered by a refusal
and nothing else.
"""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.federation.sessions.plan import (
    agree,
    change,
    check_count,
    check_work,
    difference,
    make_plan,
)
from homo_dp.federation.sessions.plan_schema import MOST_VALUES, PlanRefused, read_plan
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.ledger import totals as ledger_totals
from homo_dp.privacy.sampling.samplers import PoissonSampler

FILES = {"data.files": {"a": "a.csv"}}
COLUMNS = {"x": {"bounds": [0, 1]}, "c": {"levels": ["u", "v"]}}


def valid() -> dict[str, Any]:
    config = load_config(None, {"data.columns": COLUMNS, "data.classes": [0, 1]})
    plan: dict[str, Any] = json.loads(
        json.dumps(make_plan(config, {"a": 100, "b": None}, {"columns": []}))
    )
    return plan


def nested(depth: int, *, in_lists: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if in_lists else {"x": value}
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [path] * bool(path) + [
        found for key, part in inner for found in places(part, (*path, key))
    ]


PLACES = places(valid())
NUMBERS = [
    0,
    -1,
    1,
    2,
    3_000_000,
    10**9,
    10**12,
    2**63,
    2**64,
    10**400,
    -(10**400),
    0.0,
    -0.0,
    1e-320,
    1e-31,
    1e-9,
    0.5,
]
NUMBERS += [1.5, 1e15, 1e38, 1e300, float("nan"), float("inf"), float("-inf")]
TEXTS = [
    "",
    "y",
    "id",
    "x",
    "none",
    "dp_sgd",
    "nbafl",
    "dp_fedavg",
    "os:system",
    "mlp",
    "\x1b[2J\n",
    "\ud800",
    "a" * 5000,
]
ODD: list[Any] = [
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"x": {}},
    [0, 0],
    [1, 0],
    [0, 1],
    ["a"] * 200_000,
]
DEEP = [nested(depth, in_lists=in_lists) for depth in (5, 20, 5000) for in_lists in (True, False)]
VALUES = st.one_of(
    st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.sampled_from(ODD), st.sampled_from(DEEP), st.integers(),
    st.floats(), st.text(max_size=5), st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
)  # fmt: skip


def mutate(plan: dict[str, Any], path: tuple[Any, ...], how: str, value: Any) -> None:
    """Replace, leave out or put beside; a path that an earlier change took away is left alone."""
    part: Any = plan
    for key in path[:-1]:
        if not isinstance(part, dict | list) or (isinstance(part, dict) and key not in part):
            return
        if isinstance(part, list) and not isinstance(key, int):
            return
        part = (
            part[key] if isinstance(part, dict) else part[min(key, len(part) - 1)] if part else None
        )
    if isinstance(part, dict):
        if how == "drop":
            part.pop(path[-1], None)
        else:
            part[path[-1] if how == "replace" else f"{path[-1]}x"] = value
    elif isinstance(part, list):
        part.append(value)


MUTATIONS = st.lists(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(["replace"] * 4 + ["drop", "add"]), VALUES),
    min_size=1,
    max_size=3,
)


def hostile_plan(mutations: list[tuple[tuple[Any, ...], str, Any]]) -> dict[str, Any]:
    plan = valid()
    for path, how, value in mutations:
        mutate(plan, path, how, value)
    return plan


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(MUTATIONS)
def test_any_plan_is_agreed_to_or_refused(
    mutations: list[tuple[tuple[Any, ...], str, Any]],
) -> None:
    own, said = load_config(None, FILES), ""
    try:
        agreed = agree(own, hostile_plan(mutations))
        check_work(own, agreed, "a")
        check_count(own, agreed, "a")
    except PlanRefused as refusal:
        said = str(refusal)
    assert said.isprintable()
    assert len(said) < 500


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_what_is_no_plan_at_all_is_refused(value: Any) -> None:
    with pytest.raises(PlanRefused):
        read_plan(value)


def test_a_good_plan_is_read_as_it_is() -> None:
    assert read_plan(valid()) == valid()
    kept = valid()
    del kept["order"]  # by an earlier version
    assert read_plan(kept) == kept


def word(plan: dict[str, Any], **own: Any) -> str | None:
    mine = load_config(None, FILES | {key.replace("__", "."): value for key, value in own.items()})
    try:
        check_work(mine, agree(mine, plan), "a")
    except PlanRefused as refusal:
        return refusal.reason
    return None


def changed(section: str, **values: Any) -> dict[str, Any]:
    plan = valid()
    plan[section].update(values)
    return plan


STEPS = {"local_epochs": None, "local_steps": 10**6}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (changed("train", rounds=100_000), None),
        (changed("train", rounds=3_000_000), "rounds_cap"),
        (changed("train", rounds=10**9), "rounds_cap"),
        (changed("train", **STEPS), None),
        (changed("train", **STEPS | {"local_steps": 10**12}), "steps_cap"),
        (changed("train", **STEPS | {"rounds": 1000}), "steps_cap"),
        (changed("train", local_epochs=1e6), "steps_cap"),
        (changed("train", batch_size=None, sample_rate=1e-9), "steps_cap"),
        (
            changed("data", columns={"c": {"levels": list(range(10_001))}}, classes=None),
            "columns_cap",
        ),
        (changed("data", classes=list(range(10_001))), "columns_cap"),
        (changed("data", classes=list(range(MOST_VALUES))), "plan"),
        (changed("model", layers=[1] * 65), "plan"),
        (changed("data", image={"shape": [4096, 4096, 4096]}), "plan"),
        (changed("privacy", target_epsilon=1e-4), "plan"),
        (changed("rows", **{f"p{n}": None for n in range(10_001)}), "plan"),
    ],
)
def test_work_and_sizes_are_capped_by_default(plan: dict[str, Any], expected: str | None) -> None:
    assert word(plan) == expected


@pytest.mark.parametrize(("key", "cap"), [("steps", 3), ("total_steps", 59), ("epochs", 19.0)])
def test_a_party_may_cap_work_lower(key: str, cap: float) -> None:
    plan = valid() if key == "epochs" else changed("train", local_epochs=None, local_steps=4)
    assert word(plan, **{f"party__caps__{key}": cap}) == "steps_cap"
    assert word(plan, **{f"party__caps__{key}": None}) is None


def test_one_step_a_round_is_one_whatever_rows_are_declared() -> None:
    """A declared count of 1e9 in batches of 50 was refused for 2e7 local steps, which this
    mechanism does not take.
    """
    declared = {"data.rows.a": 10**9, "privacy.delta": 1e-12}
    mine, plan = (
        load_config(None, FILES | declared),
        changed("train", batch_size=50, sample_rate=None),
    )
    agreed = agree(mine, plan)
    with pytest.raises(
        PlanRefused,
        match=r"20000000 local steps, by batches of 50 of the data\.rows\.a=1000000000 ",
    ):
        check_work(mine, agreed, "a")
    plan["privacy"]["mechanism"] = "dp_fedsgd"
    assert word(plan, **declared) is None
    assert (
        word(plan, **declared, party__caps__total_steps=plan["train"]["rounds"] - 1) == "steps_cap"
    )


@pytest.mark.parametrize(
    "cap", ["rounds", "steps", "total_steps", "epochs", "columns", "parameters"]
)
def test_no_recipe_comes_near_a_cap(cap: str) -> None:
    assert getattr(Config().party.caps, cap) >= 10_000


def test_looking_ahead_keeps_no_memory_for_every_round_of_a_plan() -> None:
    before = len(ledger_totals._known)
    ledger_totals.look_ahead({}, to_json(PoissonSampler(100, 0.5).event(3.5)), 1e-5, 3_000_000)
    assert len(ledger_totals._known) - before <= 10_000


def test_the_first_plan_stands_when_a_second_one_is_monstrous() -> None:
    assert change(valid(), copy.deepcopy(valid())) is None
    assert "nested deeper" in str(change(valid(), {"train": DEEP[-1]}))


def test_a_plan_of_an_earlier_version_is_the_same_job() -> None:
    """Keys that came later have their defaults: an aggregator goes on with the plan that it has
    kept.
    """
    old = valid()
    for block in old["data"]["columns"].values():
        for name in ("date", "parts", "format", "source"):
            del block[name]
    assert difference(read_plan(old), valid()) is None


@pytest.mark.parametrize("form", ["%d %d", "%d.%m", "soon", "%", "%Q", 7])
def test_a_form_that_reads_no_day_is_refused_before_rows(form: object) -> None:
    """Such a form would fail at the first cell that it is tried on, and the failure would tell
    of that cell.
    """
    plan = valid()
    plan["data"]["columns"]["x"] = {"date": ["2000-01-01", "2001-01-01"], "format": form}
    with pytest.raises(PlanRefused, match="format"):
        read_plan(plan)


def test_when_test_rows_are_scored_is_a_partys_own() -> None:
    asked, own = ({"data.columns": COLUMNS, "train.evaluate_every": every} for every in (7, 3))
    plan = make_plan(load_config(None, asked), {"a": 100}, {"columns": []})
    assert "evaluate_every" not in plan["train"]
    assert agree(load_config(None, FILES | own), plan).train.evaluate_every == 3


@pytest.mark.parametrize("delta", [None, "left out"])
def test_a_plan_without_delta_is_refused(delta: str | None) -> None:
    plan = valid()
    plan["privacy"]["delta"] = delta
    if delta is not None:
        del plan["privacy"]["delta"]
    with pytest.raises(PlanRefused, match="delta: is missing"):
        read_plan(plan)
