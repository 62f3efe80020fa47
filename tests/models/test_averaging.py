"""Means of weights over rounds."""

import pytest
import torch

from homo_dp.core.errors import ConfigError
from homo_dp.models.averaging import Kind, WeightAverage


def after(average: WeightAverage, values: list[float]) -> float:
    weights = {"w": torch.zeros(1)}
    for value in values:
        weights = {"w": torch.tensor([float(value)])}
        average.add(weights)
    return float(average.value(weights)["w"])


@pytest.mark.parametrize(("tail", "expected"), [(0.4, 4.5), (0.5, 4.0), (1.0, 3.0), (0.01, 5.0)])
def test_tail_is_the_mean_of_the_last_rounds(tail: float, expected: float) -> None:
    assert after(WeightAverage("tail", rounds=5, tail=tail), [1, 2, 3, 4, 5]) == pytest.approx(
        expected
    )


def test_none_is_the_last_and_ema_weighs_the_recent_more() -> None:
    assert after(WeightAverage("none", rounds=3), [1, 2, 9]) == 9
    # weights 0.25, 0.5, 1 on 1, 2, 9 after correction for the start
    assert after(WeightAverage("ema", rounds=3, decay=0.5), [1, 2, 9]) == pytest.approx(
        (0.25 + 1 + 9) / 1.75
    )
    assert after(WeightAverage("ema", rounds=3, decay=0.9), [4]) == pytest.approx(4)


def test_before_the_tail_begins_the_last_weights_are_the_answer() -> None:
    assert after(WeightAverage("tail", rounds=10, tail=0.5), [7]) == 7


@pytest.mark.parametrize("kind", ["none", "tail", "ema"])
def test_a_restored_average_goes_on_as_if_nothing_happened(kind: Kind) -> None:
    whole, first, second = (WeightAverage(kind, rounds=6) for _ in range(3))
    values = [torch.full((2, 2), float(number), dtype=torch.float32) for number in range(6)]
    for value in values:
        whole.add({"w": value})
    for value in values[:4]:
        first.add({"w": value})
    second.restore(first.state())
    for value in values[4:]:
        second.add({"w": value})
    assert torch.equal(whole.value({"w": values[-1]})["w"], second.value({"w": values[-1]})["w"])


def test_types_are_kept_and_integers_are_not_averaged() -> None:
    average = WeightAverage("tail", rounds=2, tail=1.0)
    last = {"w": torch.ones(2), "steps": torch.tensor(3)}
    average.add({"w": torch.zeros(2), "steps": torch.tensor(1)})
    average.add(last)
    value = average.value(last)
    assert value["w"].dtype == torch.float32
    assert value["w"].tolist() == [0.5, 0.5]
    assert value["steps"] == 3


@pytest.mark.parametrize(
    "wrong", [{"kind": "mean"}, {"kind": "tail", "tail": 0.0}, {"kind": "ema", "decay": 1.0}]
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"train\.averaging"):
        WeightAverage(**wrong)  # type: ignore[arg-type]


def test_a_model_that_is_whole_is_taken_as_it_is() -> None:
    average = WeightAverage("tail", rounds=4, tail=1.0)
    for value in (1.0, 2.0):
        average.add({"w": torch.tensor([value])})
    average.forget()
    again = WeightAverage("tail", rounds=4, tail=1.0)
    again.restore(average.state())
    for each in (average, again):
        assert each.value({"w": torch.tensor([9.0])})["w"].item() == 9.0
