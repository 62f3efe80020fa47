"""Plans with numbers of every size, up to the party that would run them: built, or refused by an
error of ours.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homo_dp.core.errors import InputError
from homo_dp.federation.sessions.crash_state import PartyMemory
from homo_dp.privacy.errors import PrivacyError
from tests.federation.sessions.test_plan_schema import mutate, places
from tests.processes.hostile import Hostile, job, plan_of
from tests.processes.test_what_a_party_tells import ASKED, BASE, COLUMNS, csv

JOBS = [
    job(COLUMNS),
    job(COLUMNS, privacy__noise_multiplier=1.0),
    job(
        COLUMNS,
        privacy__mechanism="nbafl",
        privacy__target_epsilon=None,
        nbafl__min_dataset_size=40,
        nbafl__epsilon=0.01,
    ),
    job(COLUMNS, model__name="mlp", train__local_epochs=1.0, train__batch_size=10),
    job(
        COLUMNS,
        privacy__mechanism="dp_fedsgd",
        train__local_steps=None,
        metrics__release="noised",
        train__rounds=5,
    ),
    job(COLUMNS, privacy__mechanism="statistics", statistics__ask=ASKED),
    job(COLUMNS, data__scaling="private", privacy__statistics_share=0.2),
]
NUMBERS = [
    0,
    1,
    2,
    17,
    1000,
    10**5,
    10**6,
    10**9,
    10**15,
    1e-30,
    1e-12,
    1e-3,
    0.5,
    0.999999,
    1.0,
    1e3,
    1e15,
    1e38,
]
WORDS = [
    "adam",
    "optimal",
    "cosine",
    "inverse_sqrt",
    "tail",
    "ema",
    "fedadam",
    "rows",
    "cnn",
    "linear_regression",
]
NUMBERED = {
    f"{number}": json.loads(json.dumps(plan_of(config, 40))) for number, config in enumerate(JOBS)
}
SECTIONS = ("model", "train", "privacy", "nbafl", "metrics", "statistics", "rows")
PATHS = {
    name: [
        path
        for path in places(plan)
        if (path[0] in SECTIONS and path[1:]) or path == ("data", "scaling")
    ]
    for name, plan in NUMBERED.items()
}
VALUES = [*NUMBERS, *WORDS, None, True, [10**9], [1] * 60]


def mutations(name: str) -> st.SearchStrategy[tuple[str, list[tuple[tuple[Any, ...], str, Any]]]]:
    """Up to two values of a plan replaced."""
    one = st.tuples(st.sampled_from(PATHS[name]), st.just("replace"), st.sampled_from(VALUES))
    return st.tuples(st.just(name), st.lists(one, max_size=2))


def test_a_party_is_built_or_the_plan_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"data.rows": {"a": 40}, "party.caps.epsilon": 100.0}
    process, folder = Hostile(tmp_path, monkeypatch, capsys).process(csv(BASE), own)
    built: list[object] = []

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(sorted(NUMBERED)).flatmap(mutations))
    def build(named: tuple[str, list[tuple[tuple[Any, ...], str, Any]]]) -> None:
        name, changes = named
        plan = json.loads(json.dumps(NUMBERED[name]))
        for mutation in changes:
            mutate(plan, *mutation)
        with contextlib.suppress(InputError, PrivacyError):
            built.append(process._build(folder, plan, None, PartyMemory()))

    for plan in NUMBERED.values():
        assert process._build(folder, plan, None, PartyMemory())
    build()
    assert built
