"""A row's gradient has the same bits wherever it stands in a batch, so that one record more
changes no other's.
"""

import copy
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.engine.passes import fast_chain, places_of_passes
from homo_dp.privacy.gradients.batch_invariance import Places
from homo_dp.privacy.gradients.losses import Loss, binary_logistic, softmax_cross_entropy
from tests.privacy.training_parts import exact_sum, training


def clipped_sum(
    module: nn.Module,
    rows: Tensor,
    labels: Tensor,
    mode: str = "auto",
    loss: Loss = binary_logistic,
    most: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The clipped sum over all rows with C = 1, and the norms of their gradients."""
    private = training(
        copy.deepcopy(module),
        loss,
        rows,
        labels,
        noise_multiplier=1.0,
        grad_sample_mode=mode,
        physical_batch_size=most,
    )
    return exact_sum(private), private.last_norms


def undecided_rows(columns: int, width: int, count: int) -> tuple[nn.Module, Tensor]:
    """A small network, and rows at which its ReLU is zero but for rounding: with or without a
    gradient by the last bit.

    All weights are about one: no bound on what an aggregator may send keeps this away.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(columns, generator=generator)
    first, last = nn.Linear(columns, width, bias=False), nn.Linear(width, 1)
    module = nn.Sequential(first, nn.ReLU(), last)
    with torch.no_grad():
        first.weight.copy_(weight.expand(width, columns))
        last.weight.fill_(1.0)
        last.bias.zero_()
    rows = torch.randn(count, columns, generator=generator) * 10
    rows[:, -1] = (-(rows[:, :-1].double() @ weight[:-1].double()) / weight[-1].double()).float()
    return module, rows


@pytest.mark.parametrize("mode", ["auto", "hooks", "functorch", "ew", "ghost"])
@pytest.mark.parametrize(("columns", "width"), [(30, 10), (30, 1), (7, 5)])
@pytest.mark.parametrize("most", [None, 24, 50])
def test_one_record_less_moves_the_sum_by_no_more_than_the_clip_norm(
    mode: str, columns: int, width: int, most: int | None
) -> None:
    """Without filling, wide products and pieces: 18 C, 1.8 C (10.6 C in ghost mode) and 12 C.

    Blocks of 24 rows start anywhere in memory where they are parts of the table.
    """
    module, rows = undecided_rows(columns, width, 400)
    labels = torch.zeros(len(rows))
    for without in (1, 3):
        (all_rows, norms), (fewer, others) = (
            clipped_sum(module, rows[start:], labels[start:], mode, most=most)
            for start in (0, without)
        )
        assert torch.equal(norms[without:], others)
        assert float((all_rows - fewer).norm()) <= without


class Lstm(nn.Module):
    """Words, an LSTM, and its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.last = (
            nn.Embedding(20, 6),
            nn.LSTM(6, 9, batch_first=True),
            nn.Linear(9, 3),
        )

    def forward(self, rows: Tensor) -> Tensor:
        last: Tensor = self.last(self.lstm(self.words(rows))[0][:, -1])
        return last


class Residual(nn.Module):
    """A forward of its own, with narrow layers on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(7, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.first(rows).tanh()
        last: Tensor = self.last(hidden + self.inner(hidden).relu())
        return last


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "narrow": (
        lambda: nn.Sequential(
            nn.Linear(30, 10), nn.Tanh(), nn.Linear(10, 128), nn.GELU(), nn.Linear(128, 3)
        ),
        (30,),
    ),
    "double": (
        lambda: nn.Sequential(nn.Linear(9, 5), nn.Sigmoid(), nn.Linear(5, 3)).double(),
        (9,),
    ),
    "softmax regression": (lambda: nn.Linear(31, 3), (31,)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.GroupNorm(3, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(48, 3),
        ),
        (1, 8, 8),
    ),
    "norm": (
        lambda: nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.SiLU(), nn.Linear(7, 3)),
        (6,),
    ),
    "residual": (Residual, (7,)),
    "words": (Lstm, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_that_sums_are_made_of_is_the_same_at_every_place(name: str) -> None:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    module = build()
    dtype = next(module.parameters()).dtype
    rows = (
        torch.randint(0, 20, (101, 5)) if shape is None else torch.randn(101, *shape, dtype=dtype)
    )
    labels = torch.arange(101) % 3
    _, norms = clipped_sum(module, rows, labels, loss=softmax_cross_entropy)
    order = torch.randperm(101)
    _, moved = clipped_sum(module, rows[order], labels[order], loss=softmax_cross_entropy)
    assert torch.equal(norms[order], moved)
    few = order[:5]  # a batch that is filled up to eight rows
    assert torch.equal(
        norms[few], clipped_sum(module, rows[few], labels[few], loss=softmax_cross_entropy)[1]
    )


class ByPlace(nn.Module):
    """What a product would do that rounds each row by its place, in batches of more than
    ``least`` rows.
    """

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) <= self.least:
            return rows
        return rows * (1 + 1.2e-7 * (torch.arange(len(rows), dtype=rows.dtype)[:, None] % 3))


def found_places(module: nn.Module) -> Places:
    return places_of_passes(module, fast_chain(module), binary_logistic)


@pytest.mark.parametrize(("least", "piece"), [(0, 1), (40, 32), (100, 64)])
def test_a_size_that_rounds_by_place_is_taken_in_pieces(
    least: int, piece: int, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 16), ByPlace(least), nn.Tanh(), nn.Linear(16, 1))
    rows, labels = torch.randn(150, 12), (torch.arange(150) % 2).float()
    with caplog.at_level(logging.WARNING):
        assert found_places(module).at_once(160, rows, labels) == piece
    assert ("one at a time" in caplog.text) == (piece == 1)
    _, norms = clipped_sum(module, rows, labels)
    total, fewer = clipped_sum(module, rows[1:], labels[1:])
    assert torch.equal(norms[1:], fewer)
    # to rounding, the sum is that of the same model
    expected = nn.Sequential(module[0], module[2], module[3])
    assert torch.allclose(total, clipped_sum(expected, rows[1:], labels[1:])[0], atol=1e-4)


def test_a_row_that_is_not_finite_leaves_the_bits_of_the_others() -> None:
    module, rows = undecided_rows(30, 10, 100)
    labels = torch.zeros(len(rows))
    _, norms = clipped_sum(module, rows, labels)
    rows[0] = torch.nan  # the row that fills up the batch, too
    total, others = clipped_sum(module, rows, labels)
    assert torch.equal(norms[1:], others[1:])
    assert float((total - clipped_sum(module, rows[1:], labels[1:])[0]).norm()) <= 0.01


def test_layers_that_draw_random_numbers_are_taken_as_they_come() -> None:
    class Noise(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows + torch.randn_like(rows)

    module = nn.Sequential(nn.Linear(4, 5), Noise(), nn.Dropout(0.5), nn.Linear(5, 1))
    before = torch.get_rng_state()
    places = found_places(module)
    assert places.at_once(64, torch.randn(3, 4), torch.zeros(3)) == 64
    torch.set_rng_state(before)
    assert torch.equal(before, torch.get_rng_state())
