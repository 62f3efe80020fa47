"""Words of the report: events, guarantees, limits."""

from __future__ import annotations

import pytest

from homo_dp.tracking.report.text import (
    badge,
    event_words,
    guarantee,
    limits,
    released_words,
    weakness,
)


@pytest.mark.parametrize(
    ("epsilon", "words", "colour"),
    [
        (0.5, "PRIVATE, strong: epsilon 0.5", "good"),
        (3.99, "PRIVATE, moderate: epsilon 3.99", "good"),
        (45.0, "PRIVATE, weak: epsilon 45", "warn"),
        (100.0, "PRIVATE, weak: epsilon 100", "warn"),
        (168_000.0, "WEAK GUARANTEE: epsilon 168,000", "bad"),
        (None, "NO FINITE EPSILON", "bad"),
    ],
)
def test_the_badge_follows_epsilon(epsilon: float | None, words: str, colour: str) -> None:
    privacy = {"private": True, "epsilon": epsilon}
    assert badge(privacy, verified=True) == (words, colour)
    assert badge(privacy, verified=False) == ("NOT VERIFIED", "bad")
    assert badge({**privacy, "private": False}, verified=True) == ("NOT PRIVATE", "bad")
    assert badge({**privacy, "basis": "a plan"}, verified=True)[0].startswith(
        words if epsilon else "PRIVATE: epsilon is in each party's report"
    )


def test_words() -> None:
    private = {
        "private": True,
        "epsilon": 3.0,
        "delta": 1e-5,
        "quoted_observer": "aggregator",
        "secure_mode": True,
    }
    assert weakness(private) is None
    assert "above 10" in (weakness({**private, "epsilon": 1e6}) or "")
    assert "no finite epsilon" in (weakness({**private, "epsilon": None}) or "")
    void = {**private, "epsilon": 167_833.27, "delta_with_neglected": 1.00001}
    assert "no guarantee is left" in (weakness(void) or "")
    assert "no guarantee is left" not in (weakness({**void, "delta_with_neglected": 1e-5}) or "")
    assert "epsilon 167,800, delta 1e-05" in guarantee(void)
    trusted = {**private, "quoted_observer": "model_reader"}
    assert "NOT covered" in guarantee(trusted)
    assert "NOT covered" not in guarantee(private)
    assert "trusted" in released_words(trusted)
    masked = released_words({**private, "secure_aggregation": "on"})
    assert "that of the parties' total" in masked
    assert "encrypted shares of masks" in masked
    assert "shares of masks" not in released_words(private)
    assert "trusted" in limits(trusted, None)[0]
    shared = {
        **trusted,
        "observers": {"aggregator": {"epsilon": 240.0}, "model_reader": {"epsilon": 3.0}},
    }
    # parties noised what they sent, if not enough
    for said in (guarantee(shared), limits(shared, None)[0]):
        assert "towards it epsilon is 240" in said
        assert "before noise" not in said
        assert "no guarantee" not in said
    assert "nominal" in limits({**private, "notes": ["a nominal figure"]}, 1.0)[1]
    assert "Secure mode was off" in limits({**private, "secure_mode": False}, 1.0)[0]
    assert not [text for text in limits(private, 1.0) if "lifetime" in text]
    gaussian = {"type": "GaussianDpEvent", "noise_multiplier": 2.0}
    drawn = {
        "type": "SampledWithoutReplacementDpEvent",
        "sample_size": 5,
        "source_dataset_size": 9,
        "event": gaussian,
    }
    both = event_words({"type": "ComposedDpEvent", "events": [drawn, {"type": "NoOpDpEvent"}]})
    assert (
        both == "5 of 9 units drawn, then Gaussian noise of 2 times the largest contribution; and "
        "nothing"
    )
