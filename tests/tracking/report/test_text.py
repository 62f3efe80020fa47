"""Words of the report: events, guarantees, limits."""

from __future__ import annotations

from homo_dp.tracking.report.text import event_words, guarantee, limits, released_words, weakness


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
    trusted = {**private, "quoted_observer": "model_reader"}
    assert "NOT covered" in guarantee(trusted)
    assert "NOT covered" not in guarantee(private)
    assert "trusted" in released_words(trusted)
    assert "trusted" in limits(trusted, None)[0]
    shared = {
        **trusted,
        "observers": {"aggregator": {"epsilon": 240.0}, "model_reader": {"epsilon": 3.0}},
    }
    for said in (
        guarantee(shared),
        limits(shared, None)[0],
    ):  # parties noised what they sent, if not enough
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
        both
        == "5 of 9 units drawn, then Gaussian noise of 2 times the largest contribution; and nothing"
    )
