"""What the tests of Opacus loops share: a small table, its private loop, and what one epoch
moved.
"""

from typing import Any

import opacus
import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.gradients.losses import squared_error
from tests.privacy.training_parts import QUIET, flat

MODES = ("auto", "fast", "hooks", "functorch", "ew", "ghost")


class ErrorLoss(nn.Module):
    """Squared error per row with the ``reduction`` attribute that Opacus switches; ``columns``
    keeps shape (n, 1).
    """

    def __init__(self, columns: bool = False) -> None:
        super().__init__()
        self.reduction, self.columns = "mean", columns

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = squared_error(outputs, labels)
        if self.reduction == "mean":
            return losses.mean()
        return losses.unsqueeze(1) if self.columns else losses


def small_table(rows: int = 24) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(8)
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    return module, torch.randn(rows, 5) * 2, torch.randn(rows)


def made_private(
    module: nn.Module,
    features: Tensor,
    labels: Tensor,
    *,
    engine: opacus.PrivacyEngine | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    collate_fn: Any = None,
    **options: Any,
) -> tuple[nn.Module, DPOptimizer, Any, DataLoader[Any]]:
    """make_private with q = 1 and almost no noise, unless told; the SGD step subtracts the sum
    itself. The criterion is the loop's own, but in ghost mode, as Opacus has it.
    """
    if options.get("grad_sample_mode") == "ghost":
        options = {"criterion": ErrorLoss(), **options}
    batch_size = len(features) if batch_size is None else batch_size
    optimizer = torch.optim.SGD(module.parameters(), lr=float(batch_size) if lr is None else lr)
    made = (engine or PrivacyEngine()).make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(
            TensorDataset(features, labels), batch_size=batch_size, collate_fn=collate_fn
        ),
        **{"noise_multiplier": QUIET, "max_grad_norm": 1.0, **options},
    )
    return made[0], made[1], made[2] if len(made) == 4 else ErrorLoss(), made[-1]


def own_collate(rows: list[Any]) -> Any:
    """What torch does, as code of somebody's own: such rows are never taken in blocks."""
    return default_collate(rows)


def one_epoch(
    module: nn.Module, optimizer: DPOptimizer, criterion: Any, loader: DataLoader[Any]
) -> list[int]:
    sizes = []
    for features, labels in loader:
        optimizer.zero_grad()
        criterion(module(features), labels).backward()
        optimizer.step()
        sizes.append(len(features))
    return sizes


def sum_of_epoch(
    module: nn.Module, parts: tuple[nn.Module, DPOptimizer, Any, DataLoader[Any]]
) -> Tensor:
    before = flat([parameter.detach().clone() for parameter in module.parameters()])
    one_epoch(*parts)
    return before - flat([parameter.detach() for parameter in module.parameters()])
