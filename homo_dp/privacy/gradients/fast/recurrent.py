"""nn.LSTM on the fast path: one pass through time and back by hand, then norms and sums as for a
Linear layer.

All weights of a layer act on ``z_t = (x_t, h_{t-1})`` and give the gates' inputs, so the gradient
of a record is the sum over time of outer products of the gradient at those inputs with ``z_t``: a
Linear layer over a sequence, whose inputs and output gradients are what the passes leave behind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homo_dp.privacy.gradients.fast.layers import FastLayer
from homo_dp.privacy.gradients.gram_norms import outer_squares
from homo_dp.privacy.gradients.row_sums import row_squares, write_product, write_rows

# floats of per-sample gradients made at a time: 1 MiB, the size of a second-level cache
_PIECE = 1 << 18
_HELD = 1 << 23  # floats of them held at most: 32 MiB


class FastLSTM(FastLayer):
    """nn.LSTM with rows first, in one direction, of any number of layers, all of its parameters
    trainable.

    Guarantees:
        - norms are never below those of what ``write_sums`` adds: either both take the same held
          gradients, or terms that cancel over time are bounded (gram_norms.py) and summed in
          float64.
    """

    def __init__(self, module: nn.LSTM) -> None:
        super().__init__()
        self._module = module
        self.parameters.extend(module.parameters())
        self._passes: list[_Pass] = []
        self._rooms: dict[int, Tensor] = {}

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        """Outputs (n, time, hidden), then the last state of each layer (n, 2 layers, hidden):
        hidden states, cells.
        """
        if inputs.dim() != 3 or not inputs.shape[1]:
            raise TypeError("an LSTM takes rows of sequences, of one time at least")
        packed: Tensor = _Recurrence.apply(inputs, self.parameters[0], self)  # type: ignore[no-untyped-call]
        return packed

    def given(self, packed: Tensor) -> Any:
        """What nn.LSTM gives: outputs, and the last hidden states and cells with rows second."""
        layers = self._module.num_layers
        time = packed.shape[1] - 2 * layers
        states = packed[:, time:].transpose(0, 1)
        return packed[:, :time], (states[:layers], states[layers:])

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        """The pass back through time, unless autograd came by on its way to layers before this
        one.
        """
        if self._passes and self._passes[0].gradient is None:
            return self.through_time(gradient, inputs_needed)
        return None

    def squared_norms(self) -> Tensor:
        squares = torch.zeros(())
        for number, one in enumerate(self._passes):
            squares = squares + one.squares(functools.partial(self._room, number))
            # both biases get one gradient, which is held, as in a sum over rows
            if self._module.bias:
                one.shifts = one.gates_gradient().sum(0)
                squares = squares + 2 * row_squares(one.shifts)
        return squares

    def write_sums(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        each = 4 if self._module.bias else 2
        for number, one in enumerate(self._passes):
            own = sums[number * each : (number + 1) * each]
            width = own[0].shape[1]
            total = one.clipped_total(factors)
            write_rows(own[0], total[:, :width], accumulate)
            write_rows(own[1], total[:, width:], accumulate)
            for bias in own[2:]:
                write_product(bias.view(1, -1), factors.unsqueeze(1), one.shifts, accumulate)

    def kept(self) -> list[Tensor]:
        return [rows for one in self._passes for rows in one.kept(self._module.bias)]

    def forget(self) -> None:
        self._passes = []

    def run(self, inputs: Tensor) -> Tensor:
        """The pass through time of all layers."""
        module, self._passes = self._module, []
        flowing = inputs.transpose(0, 1)
        for number in range(module.num_layers):
            one = _Pass.through(flowing, *self._weights(number))
            self._passes.append(one)
            flowing = one.states[1:]
        last = [one.states[-1] for one in self._passes] + [one.cells[-1] for one in self._passes]
        return torch.cat([flowing, torch.stack(last)]).transpose(0, 1)

    def through_time(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        """The gradient at the inputs, where needed; what norms and sums take is kept."""
        layers = self._module.num_layers
        time = gradient.shape[1] - 2 * layers
        flowing: Tensor | None = gradient[:, :time].transpose(0, 1)
        for number in range(layers - 1, -1, -1):
            if flowing is None:
                break
            weights = self._weights(number)
            one = self._passes[number]
            one.back(
                flowing, gradient[:, time + number], gradient[:, time + layers + number], weights[1]
            )
            flowing = one.gates_gradient().matmul(weights[0]) if number or inputs_needed else None
        return None if flowing is None else flowing.transpose(0, 1)

    def _room(self, number: int, size: int) -> Tensor:
        """Memory for the gradients of a batch, kept for the next one: asked for anew, every page
        of it is a fault.
        """
        if number not in self._rooms or self._rooms[number].numel() < size:
            self._rooms[number] = self.parameters[0].new_empty(size + size // 8)
        return self._rooms[number].detach()[:size]

    def _weights(self, number: int) -> tuple[Tensor, Tensor, Tensor | None]:
        own = self._module._parameters
        bias = None
        if self._module.bias:
            bias = own[f"bias_ih_l{number}"].detach() + own[f"bias_hh_l{number}"].detach()  # type: ignore[union-attr]
        inputs, states = own[f"weight_ih_l{number}"], own[f"weight_hh_l{number}"]
        return inputs.detach(), states.detach(), bias  # type: ignore[union-attr]


def _doubled(weight: Tensor) -> Tensor:
    """Twice what goes into the third gate: tanh x is 2 sigmoid(2 x) - 1, and torch's tanh takes
    eight times as long.
    """
    quarter = len(weight) // 4
    copy = weight.clone()
    copy[2 * quarter : 3 * quarter] *= 2.0
    return copy


@dataclass
class _Pass:
    """What one layer did at every time, time first: (x_t, h_{t-1}), the four gates, cells and
    their tanh, states.
    """

    inputs: Tensor
    gates: Tensor
    cells: Tensor
    squashed: Tensor
    states: Tensor
    gradient: Tensor | None = None  # at the inputs of the gates, after the pass back
    held: Tensor | None = None  # gradients of the records
    shifts: Tensor = field(default_factory=lambda: torch.zeros(0))  # those of a bias

    @classmethod
    def through(
        cls, inputs: Tensor, by_input: Tensor, by_state: Tensor, bias: Tensor | None
    ) -> _Pass:
        time, rows, width = inputs.shape
        hidden = by_state.shape[1]
        joined = inputs.new_empty(time, rows, width + hidden)
        joined[:, :, :width] = inputs
        gates = F.linear(
            joined[:, :, :width], _doubled(by_input), None if bias is None else _doubled(bias)
        )
        cells, states = (inputs.new_zeros(time + 1, rows, hidden) for _ in range(2))
        squashed = inputs.new_empty(time, rows, hidden)
        turned = _doubled(by_state).t()
        for now in range(time):
            gate, cell, small = gates[now], cells[now + 1], squashed[now]
            if now:
                gate.addmm_(states[now], turned)
            opened, forgot, new, out = gate.sigmoid_().view(rows, 4, hidden).unbind(1)
            new.mul_(2.0).sub_(1.0)
            torch.mul(forgot, cells[now], out=cell).addcmul_(opened, new)
            torch.mul(cell, 2.0, out=small).sigmoid_().mul_(2.0).sub_(1.0)
            torch.mul(out, small, out=states[now + 1])
        joined[:, :, width:] = states[:-1]
        return cls(joined, gates, cells, squashed, states)

    def back(
        self, gradient: Tensor, last_state: Tensor, last_cell: Tensor, by_state: Tensor
    ) -> None:
        time, rows, hidden = self.squashed.shape
        opened, forgot, new, out = self.gates.view(time, rows, 4, hidden).unbind(2)
        # How each gate's input moves the cell (three of them), the output, and how the cell moves
        # the output.
        slopes = torch.empty_like(self.gates).view(time, rows, 4, hidden)
        torch.mul(opened * (1 - opened), new, out=slopes[:, :, 0])
        torch.mul(forgot * (1 - forgot), self.cells[:-1], out=slopes[:, :, 1])
        torch.mul(1 - new.square(), opened, out=slopes[:, :, 2])
        torch.mul(out * (1 - out), self.squashed, out=slopes[:, :, 3])
        cell_slope = out * (1 - self.squashed.square())
        state, cell = gradient[-1] + last_state, last_cell
        for now in range(time - 1, -1, -1):
            cell = torch.addcmul(cell, state, cell_slope[now])
            slopes[now, :, :3] *= cell.unsqueeze(1)
            slopes[now, :, 3] *= state
            if now:
                state = torch.addmm(gradient[now - 1], slopes[now].view(rows, -1), by_state)
                cell = cell * forgot[now]
        self.gradient = slopes.view(time, rows, -1)

    def squares(self, room: Callable[[int], Tensor]) -> Tensor:
        """Squared norm of each record's gradient; the gradients are held where that fits, since
        the sum needs them.
        """
        inputs, gradient = self.inputs.transpose(0, 1), self.gates_gradient().transpose(0, 1)
        rows, size = len(inputs), inputs.shape[2] * gradient.shape[2]
        if rows * size > _HELD:
            return outer_squares(inputs, gradient)
        self.held = room(rows * size).view(rows, gradient.shape[2], inputs.shape[2])
        squares = inputs.new_empty(rows)
        step = max(1, _PIECE // size)
        for start in range(0, rows, step):
            piece = slice(start, start + step)
            torch.bmm(gradient[piece].mT, inputs[piece], out=self.held[piece])
            squares[piece] = row_squares(self.held[piece])
        return squares

    def clipped_total(self, factors: Tensor) -> Tensor:
        """The float64 sum over records of factor times gradient."""
        inputs, gradient = self.inputs, self.gates_gradient()
        total = torch.zeros(
            gradient.shape[2], inputs.shape[2], dtype=torch.float64, device=factors.device
        )
        if self.held is not None:
            write_product(
                total.view(1, -1), factors.unsqueeze(1), self.held.flatten(1), accumulate=False
            )
        else:
            scaled = (gradient * factors.view(1, -1, 1)).flatten(0, 1)
            write_product(
                total, scaled, inputs.flatten(0, 1), accumulate=False, terms=inputs.shape[0] + 1
            )
        return total

    def kept(self, bias: bool) -> list[Tensor]:
        held = [] if self.held is None else [self.held]
        return [
            self.inputs.transpose(0, 1),
            self.gates_gradient().transpose(0, 1),
            *held,
            *([self.shifts] * bias),
        ]

    def gates_gradient(self) -> Tensor:
        if self.gradient is None:
            raise RuntimeError("norms were asked for before the pass back")
        return self.gradient


class _Recurrence(torch.autograd.Function):
    """The layer as one step of autograd, which goes back through it where layers before it are
    trained.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, layer: FastLSTM) -> Tensor:
        ctx.layer = layer
        return layer.run(inputs.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        with torch.no_grad():
            return ctx.layer.through_time(gradients[0], ctx.needs_input_grad[0]), None, None


def is_fast_lstm(module: nn.Module) -> bool:
    """Whether a module is an LSTM that the fast path takes."""
    return (
        type(module) is nn.LSTM
        and module.batch_first
        and not module.bidirectional
        and not module.proj_size
        and (not module.dropout or module.num_layers == 1)
        and all(parameter.requires_grad for parameter in module.parameters())
    )
