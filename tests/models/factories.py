"""Factories that the tests of user models name by import path."""

import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn


def plain(input_shape: tuple[int, ...], outputs: int, width: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, outputs)
    )


def with_loss(outputs: int) -> tuple[nn.Module, object]:
    def hinge(found: Tensor, labels: Tensor) -> Tensor:
        return torch.relu(1 - found.reshape(-1) * (2 * labels - 1))

    return nn.Linear(3, outputs), hinge


def mean_loss() -> tuple[nn.Module, object]:
    return nn.Linear(3, 1), lambda found, labels: (found.reshape(-1) - labels).square().mean()


def loss_for_more_classes() -> tuple[nn.Module, object]:
    return nn.Linear(3, 1), nn.CrossEntropyLoss(reduction="none")


def fixed() -> nn.Module:
    return nn.Linear(3, 1)


def batch_norm(input_shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def batch_norm_without_weights(input_shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(input_shape[0], 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1)
    )


class Sequences(nn.Module):
    """Records read as sequences: the kind of layer that the validator replaces by one of
    Opacus'.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(1, 4, batch_first=True)
        self.output = nn.Linear(4, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        answer: Tensor = self.output(self.recurrent(rows.unsqueeze(2))[0][:, -1])
        return answer


def recurrent(outputs: int) -> nn.Module:
    return Sequences(outputs)


def local_class(outputs: int) -> nn.Module:
    class Local(Sequences):
        pass

    return Local(outputs)


def shared() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    module[2].weight = module[0].weight
    return module


def with_buffer() -> nn.Module:
    module = nn.Linear(3, 1)
    module.register_buffer("seen", torch.zeros(3))
    return module


def number() -> int:
    return 3


def needs_more(learning_rate: float) -> nn.Module:
    return nn.Linear(3, 1)


def raises() -> nn.Module:
    raise RuntimeError("two\nlines")


def wrong_width() -> nn.Module:
    return nn.Linear(3, 7)


def wrong_input() -> nn.Module:
    return nn.Linear(9, 1)


class Squeezed(nn.Module):
    """Drops the axis of records, too, when there is one record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs.squeeze()


def squeezed() -> nn.Module:
    return Squeezed()


def leaves() -> nn.Module:
    raise SystemExit(0)


NOT_A_FUNCTION = 5


class PrivateSequences(nn.Module):
    """The same with Opacus' own layer, which names each weight twice."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.recurrent = DPLSTM(1, 4, batch_first=True)
        self.output = nn.Linear(4, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        answer: Tensor = self.output(self.recurrent(rows.unsqueeze(2))[0][:, -1])
        return answer


def private_recurrent(outputs: int) -> nn.Module:
    return PrivateSequences(outputs)
