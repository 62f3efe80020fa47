"""Events keep their meaning through JSON, merge without loss, and nothing unknown gets in."""

import json
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

from homo_dp.privacy.accounting.events import (
    DpEvent,
    compose,
    from_json,
    gaussian_multiplier,
    parts,
    to_json,
)
from homo_dp.privacy.errors import PrivacyError

noises = st.floats(1e-6, 1e6, allow_nan=False)
gaussians = st.builds(dp_event.GaussianDpEvent, noises)
mechanisms = st.one_of(
    gaussians,
    st.builds(dp_event.LaplaceDpEvent, noises),
    st.builds(dp_event.NoOpDpEvent),
    st.builds(dp_event.PoissonSampledDpEvent, st.floats(1e-9, 1.0), gaussians),
    st.builds(
        lambda size, rest, inner: dp_event.SampledWithoutReplacementDpEvent(
            size + rest, size, inner
        ),
        st.integers(1, 10**9),
        st.integers(0, 10**9),
        gaussians,
    ),
)
events = st.recursive(
    mechanisms,
    lambda inner: st.one_of(
        st.builds(dp_event.SelfComposedDpEvent, inner, st.integers(0, 10**6)),
        st.builds(dp_event.ComposedDpEvent, st.lists(inner, max_size=4)),
    ),
    max_leaves=6,
)


@given(events)
def test_an_event_survives_json(event: DpEvent) -> None:
    text = to_json(event)
    assert from_json(text) == event
    assert to_json(from_json(text)) == text
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


@given(st.lists(events, max_size=4))
def test_composition_counts_everything_in_any_order(released: list[DpEvent]) -> None:
    expected: dict[str, int] = {}
    for event in released:
        for text, count in parts(event).items():
            expected[text] = expected.get(text, 0) + count
    composed = compose(*released)
    assert parts(composed) == expected
    assert to_json(compose(*reversed(released))) == to_json(composed)


def test_integers_and_numpy_numbers_have_one_text() -> None:
    texts = {
        to_json(dp_event.GaussianDpEvent(value)) for value in (2, 2.0, np.float64(2.0), np.int64(2))
    }
    assert texts == {'{"noise_multiplier":2.0,"type":"GaussianDpEvent"}'}


def test_gaussians_on_one_sample_are_one_gaussian() -> None:
    both = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(3.0), dp_event.GaussianDpEvent(4.0)])
    assert gaussian_multiplier(both) == pytest.approx(1 / math.sqrt(1 / 9 + 1 / 16))
    assert gaussian_multiplier(dp_event.ComposedDpEvent([])) is None
    assert gaussian_multiplier(dp_event.LaplaceDpEvent(1.0)) is None
    sampled = dp_event.PoissonSampledDpEvent(0.1, both)
    assert from_json(to_json(sampled)) == sampled


GAUSSIAN = dp_event.GaussianDpEvent(1.0)


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (dp_event.GaussianDpEvent(0.0), "noise_multiplier=0 "),
        (dp_event.GaussianDpEvent(-1.0), "noise_multiplier=-1 "),
        (dp_event.GaussianDpEvent(math.nan), "noise_multiplier=nan"),
        (dp_event.GaussianDpEvent(math.inf), "noise_multiplier=inf"),
        (dp_event.GaussianDpEvent(True), "noise_multiplier"),
        (dp_event.GaussianDpEvent("1"), "noise_multiplier"),
        (dp_event.PoissonSampledDpEvent(0.0, GAUSSIAN), "sampling_probability=0 "),
        (dp_event.PoissonSampledDpEvent(1.5, GAUSSIAN), "sampling_probability=1.5"),
        (dp_event.PoissonSampledDpEvent(0.5, dp_event.LaplaceDpEvent(1.0)), "must be Gaussian"),
        (
            dp_event.PoissonSampledDpEvent(0.5, dp_event.PoissonSampledDpEvent(0.5, GAUSSIAN)),
            "must be Gaussian",
        ),
        (dp_event.SampledWithoutReplacementDpEvent(10, 11, GAUSSIAN), "sample_size=11"),
        (dp_event.SampledWithoutReplacementDpEvent(0, 0, GAUSSIAN), "source_dataset_size=0"),
        (dp_event.SelfComposedDpEvent(GAUSSIAN, -1), "count=-1"),
        (dp_event.SelfComposedDpEvent(GAUSSIAN, 1.5), "count=1.5"),
        (dp_event.ComposedDpEvent([dp_event.NonPrivateDpEvent()]), "NonPrivateDpEvent"),
        (dp_event.UnsupportedDpEvent(), "UnsupportedDpEvent"),
        (dp_event.ZCDpEvent(1.0), "ZCDpEvent"),
        ("GaussianDpEvent", "str"),
    ],
)
def test_what_is_unknown_or_out_of_range_is_refused(event: DpEvent, says: str) -> None:
    with pytest.raises(PrivacyError, match=says) as refused:
        to_json(event)
    assert "\n" not in str(refused.value)
    with pytest.raises(PrivacyError):
        compose(event)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"GaussianDpEvent"',
        "{}",
        '{"type":"GaussianDpEvent"}',
        '{"type":["GaussianDpEvent"],"noise_multiplier":1.0}',
        '{"type":"GaussianDpEvent","noise_multiplier":NaN}',
        '{"type":"GaussianDpEvent","noise_multiplier":1.0,"noise_multiplier":9.0}',
        '{"type":"GaussianDpEvent","noise_multiplier":1.0,"extra":1}',
        '{"type":"GaussianDpEvent","noise_multiplier":"1.0"}',
        '{"type":"GaussianDpEvent","noise_multiplier":1e999}',
        '{"type":"NonPrivateDpEvent"}',
        '{"type":"ComposedDpEvent","events":{}}',
        '{"type":"SelfComposedDpEvent","count":2,"event":1}',
        '{"type":"SelfComposedDpEvent","count":2.0,"event":{"type":"NoOpDpEvent"}}',
        '{"event":' * 100_000,
        '{"type":"SelfComposedDpEvent","count":1,"event":' * 5000
        + '{"type":"NoOpDpEvent"}'
        + "}" * 5000,
        '{"type":"SelfComposedDpEvent","count":1,"event":' * 300
        + '{"type":"NoOpDpEvent"}'
        + "}" * 300,
    ],
)
def test_a_text_that_is_not_an_event_is_refused(text: str) -> None:
    with pytest.raises(PrivacyError) as refused:
        from_json(text)
    assert "\n" not in str(refused.value)
