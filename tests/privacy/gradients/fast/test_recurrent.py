"""nn.LSTM on the fast path: clipped sums of one row at a time, bounds where terms cancel,
refusals with reasons.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.recurrent import FastLSTM, is_fast_lstm
from homo_dp.privacy.gradients.losses import softmax_cross_entropy
from tests.privacy.gradients.fast.parts import same_as_reference
from tests.privacy.training_parts import training

HELD = "homo_dp.privacy.gradients.fast.recurrent._HELD"


class Sentences(nn.Module):
    """Words, an LSTM and a classifier; ``reads`` says which of its outputs are used."""

    def __init__(self, reads: str = "last", *, words: bool = True, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 5) if words else nn.Identity()
        self.recurrent = nn.LSTM(5, 4, batch_first=True, **options)
        self.last = nn.Linear(4, 3)
        self.reads = reads

    def forward(self, rows: Tensor) -> Tensor:
        outputs, (states, cells) = self.recurrent(self.words(rows))
        read = {
            "last": outputs[:, -1],
            "mean": outputs.mean(1),
            "state": states[-1],
            "cells": cells.sum(0) + states[0],
        }
        found: Tensor = self.last(read[self.reads])
        return found


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("reads", ["last", "mean", "state", "cells"])
def test_words_through_an_lstm(
    monkeypatch: pytest.MonkeyPatch, reads: str, layers: int, held: bool
) -> None:
    monkeypatch.setattr(HELD, 1 << 23 if held else 0)
    torch.manual_seed(1)
    rows = torch.randint(0, 7, (12, 6))
    same_as_reference(
        Sentences(reads, num_layers=layers), softmax_cross_entropy, rows, torch.arange(12) % 3
    )


@pytest.mark.parametrize(
    "options", [{"words": False}, {"words": False, "num_layers": 2}, {"bias": False}]
)
def test_an_lstm_that_comes_first_and_one_without_bias(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    rows = (
        torch.randint(0, 7, (12, 6))
        if options.get("words", True)
        else torch.randn(12, 6, 5).double() * 2
    )
    same_as_reference(Sentences(**options), softmax_cross_entropy, rows, torch.arange(12) % 3)


def test_it_gives_what_torch_gives() -> None:
    torch.manual_seed(0)
    module, rows = nn.LSTM(5, 4, num_layers=2, batch_first=True), torch.randn(3, 6, 5) * 3
    layer = FastLSTM(module)
    outputs, (states, cells) = layer.given(layer.forward(rows, True))
    expected, (expected_states, expected_cells) = module(rows)
    for found, true in ((outputs, expected), (states, expected_states), (cells, expected_cells)):
        torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("held", [True, False])
def test_terms_that_cancel_over_time_keep_the_bound(
    monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """Gradients at the gates whose sum over time is rounding and little else, times inputs of a
    million.
    """
    monkeypatch.setattr(HELD, 1 << 23 if held else 0)
    torch.manual_seed(0)
    layer = FastLSTM(nn.LSTM(3, 2, batch_first=True, bias=False))
    for _ in range(300):
        layer.forward(torch.full((1, 16, 3), 1e6), True)
        one = layer._passes[0]
        gradient = torch.randn(16, 1, 8) * 1e4
        one.gradient = gradient - gradient.mean(0, keepdim=True)
        squares = layer.squared_norms()
        sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in layer.parameters]
        layer.write_sums(squares.rsqrt().clamp(max=1.0), sums, False)
        total = torch.cat([each.flatten() for each in sums]).norm()
        assert float(total) <= 1.001


def test_the_bound_is_what_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above sees norms without the allowance for rounding: some rows then add 27,000
    times the bound.
    """
    monkeypatch.setattr(
        "homo_dp.privacy.gradients.fast.recurrent.outer_squares",
        lambda inputs, gradient: (
            ((inputs @ inputs.mT) * (gradient @ gradient.mT)).sum((1, 2)).clamp_(min=0.0)
        ),
    )
    with pytest.raises(AssertionError):
        test_terms_that_cancel_over_time_keep_the_bound(monkeypatch, False)


@pytest.mark.parametrize(
    "options",
    [
        {"bidirectional": True},
        {"proj_size": 2},
        {"num_layers": 2, "dropout": 0.5},
        {"batch_first": False},
    ],
)
def test_an_lstm_that_it_does_not_take_is_refused_with_advice(options: dict[str, Any]) -> None:
    module = nn.LSTM(5, 4, **{"batch_first": True} | options)
    assert not is_fast_lstm(module)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.last = module, nn.LazyLinear(3)

        def forward(self, rows: Tensor) -> Tensor:
            found: Tensor = self.last(self.recurrent(rows)[0][:, -1])
            return found

    outer, rows = Outer(), torch.randn(8, 6, 5)
    outer(rows)
    with pytest.raises(PrivacyError, match="DPLSTM"):
        training(outer, softmax_cross_entropy, rows, torch.arange(8) % 3)


def test_an_lstm_that_is_given_a_state_of_its_own_is_refused() -> None:
    class Started(Sentences):
        def forward(self, rows: Tensor) -> Tensor:
            start = torch.ones(1, len(rows), 4)
            found: Tensor = self.last(self.recurrent(self.words(rows), (start, start))[0][:, -1])
            return found

    with pytest.raises(PrivacyError):
        training(
            Started(), softmax_cross_entropy, torch.randint(0, 7, (12, 6)), torch.arange(12) % 3
        )
