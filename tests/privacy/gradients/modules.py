"""Modules that may not be trained privately, for tests of who notices."""

import torch
from torch import Tensor, nn


class Counting(nn.Module):
    """Counts the rows it has seen in a buffer."""

    seen: Tensor

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(()), persistent=persistent)

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += len(inputs)
        outputs: Tensor = self.layer(inputs)
        return outputs
