"""What is found out before a training: tables with a loss come in blocks, all else as the loop has
it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.engine.fast_module import FastCriterion
from homo_dp.privacy.engine.loader import BlockLoader, RowsLoader
from homo_dp.privacy.engine.preparation import (
    block_sizes,
    first_batches_of,
    passes_for,
    probe_once,
    rows_of,
)
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.losses import squared_error
from homo_dp.privacy.gradients.probing import probe_rows
from tests.privacy.engine_parts import own_collate

PREPARATION = "homo_dp.privacy.engine.preparation"
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")


def loader(rows: int = 12, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(rows, 3), torch.randn(rows)), **options)


def test_rows_are_a_table_where_nothing_but_torch_makes_batches_of_them() -> None:
    found = rows_of(loader(), squared_error)
    assert found.table is not None
    assert found.loss is squared_error
    assert found.features is found.table.tensors[0]
    for other, criterion in (
        (loader(), None),
        (loader(collate_fn=own_collate), squared_error),
        (DataLoader(TensorDataset(*[torch.zeros(12, 2)] * 3)), squared_error),
    ):
        found = rows_of(other, criterion)
        assert found.table is None
        assert found.loss is None
        assert block_sizes(nn.Linear(3, 1), "fast", None, found, 4) is None


@pytest.mark.parametrize("mode", ["fast", "hooks", "ghost"])
def test_blocks_are_as_small_as_is_asked(mode: str) -> None:
    module, rows = nn.Linear(3, 1), rows_of(loader(100), squared_error)
    chain = chain_of(module)[0] if mode == "fast" else None
    for most in (None, 7):
        sizes = block_sizes(module, mode, chain, rows, most)
        assert sizes is not None
        for batch in (1, 7, 90):
            taken, size = sizes.of(batch)
            assert 1 <= taken <= min(batch, most or batch)
            assert size >= taken
            assert size % 8 == 0


def test_ghost_mode_takes_few_of_many_rows_at_once() -> None:
    module, rows = nn.Linear(3, 1), rows_of(loader(100), squared_error)
    sizes = block_sizes(module, "ghost", None, rows, None)
    assert sizes is not None
    assert sizes.of(100)[0] == 100
    assert sizes.of(4096)[0] <= 64


def test_wide_linear_tables_are_taken_in_blocks_that_stay_in_the_cache() -> None:
    module = nn.Linear(2048, 1)
    data = DataLoader(TensorDataset(torch.zeros(4, 2048), torch.zeros(4)))
    sizes = block_sizes(module, "fast", chain_of(module)[0], rows_of(data, squared_error), None)
    assert sizes is not None
    assert sizes.of(5000)[0] <= 512


def test_a_module_that_was_wrapped_before_is_not_compared_again() -> None:
    rows = rows_of(loader(), squared_error)
    assert first_batches_of(nn.Linear(3, 1), rows, batch_first=True) is not None
    wrapped = GradSampleModule(nn.Linear(3, 1))
    assert first_batches_of(wrapped, rows, batch_first=True) is None
    assert passes_for(wrapped, None, rows) is None


@pytest.mark.parametrize("mode", ["fast", "hooks", "ghost"])
@pytest.mark.parametrize("given", ["criterion", "none", "own collate"])
def test_what_is_returned_fits_what_was_given(mode: str, given: str) -> None:
    """Three values, or four in ghost mode and with a criterion, as Opacus has it."""
    module = nn.Linear(3, 1)
    data = loader(collate_fn=own_collate) if given == "own collate" else loader()
    criterion: Any = None if given == "none" else squared_error
    if mode == "ghost" and given == "own collate":
        criterion = nn.MSELoss()
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        criterion=criterion,
        data_loader=data,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    assert len(made) == (4 if mode == "ghost" or criterion is not None else 3)
    kinds = {"criterion": BlockLoader, "none": RowsLoader, "own collate": DataLoader}
    assert type(made[-1]) is kinds[given]
    if mode == "fast" and given == "criterion":
        assert type(made[2]) is FastCriterion
    if mode == "fast" and given == "own collate":
        assert made[2] is squared_error


def test_labels_of_several_columns_are_a_table_too() -> None:
    labels: Tensor = torch.randn(12, 2)
    found = rows_of(DataLoader(TensorDataset(torch.randn(12, 3), labels)), squared_error)
    assert found.labels is labels


def test_parties_of_one_process_share_the_probe_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[nn.Module] = []

    def counted(module: nn.Module, *rest: Any) -> None:
        probed.append(module)
        probe_rows(module, *rest)

    monkeypatch.setattr(f"{PREPARATION}.probe_rows", counted)
    monkeypatch.setattr(f"{PREPARATION}._apart", set())
    features, labels = torch.randn(9, 3), torch.randn(9)
    for _ in range(3):
        probe_once(nn.Linear(3, 1), squared_error, features, labels)
    assert len(probed) == 1
    probe_once(
        nn.Linear(3, 1), lambda outputs, truth: (outputs[:, 0] - truth) ** 2, features, labels
    )
    probe_once(nn.Linear(3, 1), squared_error, features, labels[:, None])
    probe_once(nn.Linear(3, 1, bias=False), squared_error, features, labels)
    assert len(probed) == 4


def test_a_model_with_code_of_its_own_is_probed_after_one_of_the_same_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{PREPARATION}._apart", set())
    features, labels = torch.randn(9, 3), torch.randn(9)
    probe_once(nn.Linear(3, 1), squared_error, features, labels)
    hooked, replaced = nn.Linear(3, 1), nn.Linear(3, 1)
    hooked.register_forward_hook(lambda module, inputs, outputs: outputs - outputs.mean(0))
    replaced.forward = lambda rows: rows[:, :1] * rows.sum() + 0 * replaced.weight.sum()  # type: ignore[method-assign, assignment]
    for module in (hooked, replaced):
        with pytest.raises(PrivacyError, match="changing one row"):
            probe_once(module, squared_error, features, labels)
