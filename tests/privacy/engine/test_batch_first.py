"""Opacus loops whose records are sequences: rows in the second dimension, and Opacus' attention
with rows first.
"""

from typing import Any

import pytest
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import squared_error
from homo_dp.privacy.gradients.probing import RowsSecond
from tests.privacy.engine_parts import ErrorLoss, made_private, one_epoch, sum_of_epoch
from tests.privacy.training_parts import QUIET, flat, reference_sum

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")

ROWS, LENGTH = 10, 4


class _Attention(nn.Module):
    """Words, attention and one number a position, added up; rows in the dimension that
    ``batch_first`` says.
    """

    def __init__(self, *, batch_first: bool, meets: bool = False, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.attention = DPMultiheadAttention(8, 2, batch_first=batch_first, **options)
        self.last, self.batch_first, self.meets = nn.Linear(8, 1), batch_first, meets

    def forward(self, inputs: Tensor) -> Tensor:
        words = self.words(inputs)
        outputs: Tensor = self.last(self.attention(words, words, words)[0]).sum(
            1 if self.batch_first else 0
        )
        return outputs - outputs.mean(0) if self.meets else outputs


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.last = nn.Embedding(20, 3), DPLSTM(3, 4), nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.inner(self.words(inputs))[0]).sum(0)
        return outputs


class _Rows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        torch.manual_seed(2)
        self.words, self.labels = torch.randint(0, 20, (ROWS, LENGTH)), torch.randn(ROWS)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.words[index], self.labels[index]


def _rows_second(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([row for row, _ in batch], 1), torch.stack([label for _, label in batch])


def _loop(module: nn.Module, mode: str) -> tuple[Any, ...]:
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=float(ROWS)),
        criterion=ErrorLoss(),
        data_loader=DataLoader(_Rows(), batch_size=ROWS, collate_fn=_rows_second),
        noise_multiplier=QUIET,
        max_grad_norm=1.0,
        batch_first=False,
        grad_sample_mode=mode,
    )
    return made[0], made[1], made[2] if len(made) == 4 else ErrorLoss(), made[-1]


@pytest.mark.parametrize("mode", ["auto", "hooks", "functorch", "ghost"])
def test_rows_in_the_second_dimension_sum_what_one_row_at_a_time_sums(mode: str) -> None:
    made = [_Attention(batch_first=False), _Attention(batch_first=False, add_bias_kv=True)]
    for module in [*made, _Recurrent()] if mode != "ghost" else made:
        rows = _Rows()
        expected = flat(
            reference_sum(RowsSecond(module), squared_error, rows.words, rows.labels, 1.0)
        )
        found = sum_of_epoch(module, _loop(module, mode))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_rows_that_meet_are_found_in_the_second_dimension_too(mode: str) -> None:
    with pytest.raises(PrivacyError, match="_Attention mixes rows"):
        _loop(_Attention(batch_first=False, meets=True), mode)


def test_a_model_with_rows_first_is_refused_where_they_are_said_to_be_second() -> None:
    with pytest.raises(PrivacyError):
        _loop(_Attention(batch_first=True), "hooks")


@pytest.mark.parametrize("mode", ["auto", "hooks", "functorch", "ghost"])
@pytest.mark.parametrize(
    "options", [{}, {"add_bias_kv": True}, {"add_bias_kv": True, "add_zero_attn": True}]
)
def test_attention_with_rows_first_sums_what_one_row_at_a_time_sums(
    mode: str, options: dict[str, Any]
) -> None:
    rows, module = _Rows(), _Attention(batch_first=True, **options)
    names, values = list(module.state_dict()), module(rows.words).detach()
    expected = flat(reference_sum(module, squared_error, rows.words, rows.labels, 1.0))
    parts = made_private(module, rows.words, rows.labels, grad_sample_mode=mode)
    with torch.no_grad():
        torch.testing.assert_close(module(rows.words), values)
    assert list(module.state_dict()) == names
    torch.testing.assert_close(sum_of_epoch(module, parts), expected, rtol=1e-3, atol=1e-3)
    one_epoch(*parts)
