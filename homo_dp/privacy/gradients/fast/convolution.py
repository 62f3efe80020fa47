"""Conv2d on the fast path: a convolution is a Linear layer over patches, taken a cache-sized piece
of rows at a time.

The gradient of a row is its output gradient (channels x positions) times its patches (positions x
kernel). It is small where kernels are small, so it is held where that fits and multiplied again
where it does not.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homo_dp.privacy.gradients.fast.layers import FastLayer
from homo_dp.privacy.gradients.gram_norms import rounding_of_squares
from homo_dp.privacy.gradients.row_sums import row_squares, write_product, write_rows

_PIECE = 1 << 18  # floats of patches made at a time: 1 MiB, the size of a second-level cache
_HELD = 1 << 23  # floats of per-sample gradients held at most: 32 MiB


class FastConvolution(FastLayer):
    """nn.Conv2d with zero padding and one group."""

    def __init__(self, module: nn.Conv2d) -> None:
        super().__init__()
        self._module = module
        self._weight = module.weight.requires_grad
        self._bias = module.bias is not None and module.bias.requires_grad
        if self._weight:
            self.parameters.append(module.weight)
        if module.bias is not None and self._bias:
            self.parameters.append(module.bias)
        self._padding = zero_padding(module)

    def forward(self, inputs: Tensor, keep: bool) -> Tensor:
        self._inputs = inputs
        module = self._module
        return F.conv2d(
            inputs, module.weight, module.bias, module.stride, self._padding, module.dilation
        )

    def backward(self, gradient: Tensor, inputs_needed: bool) -> Tensor | None:
        self._gradient = gradient
        if not inputs_needed:
            return None
        module = self._module
        geometry = (module.stride, self._padding, module.dilation, False, [0, 0], 1)
        result: Tensor = torch.ops.aten.convolution_backward(
            gradient, self._inputs, module.weight, None, *geometry, [True, False, False]
        )[0]
        return result

    def squared_norms(self) -> Tensor:
        squares = self._gradient.new_zeros(len(self._gradient))
        self._rows: Tensor | None = None
        if self._weight:
            held = self._module.weight.numel() * len(squares) <= _HELD
            self._rows = (
                self._inputs.new_empty(len(squares), self._module.weight.numel()) if held else None
            )
            squares = self._weight_squares()
        if self._bias:
            self._shifts = self._gradient.sum((2, 3))
            squares = squares + row_squares(self._shifts)
        return squares

    def write_sums(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        if self._weight:
            kernel = torch.zeros(self._row_shape(), dtype=torch.float64, device=factors.device)
            flat = kernel.view(1, -1)
            if self._rows is not None:
                write_product(flat, factors.unsqueeze(1), self._rows, accumulate=False)
            else:
                for start, rows, _ in self._products():
                    write_product(
                        flat, factors[start : start + len(rows)].unsqueeze(1), rows, accumulate=True
                    )
            write_rows(sums[0], kernel.permute(self._row_order()), accumulate)
        if self._bias:
            write_product(sums[-1].view(1, -1), factors.unsqueeze(1), self._shifts, accumulate)

    def kept(self) -> list[Tensor]:
        shifts = [self._shifts] if self._bias else []
        return [
            self._inputs,
            self._gradient,
            *shifts,
            *([] if self._rows is None else [self._rows]),
        ]

    def forget(self) -> None:
        del self._inputs, self._gradient
        self._rows = None

    def _weight_squares(self) -> Tensor:
        squares = self._gradient.new_empty(len(self._gradient))
        for start, rows, lengths in self._products():
            stop = start + len(rows)
            if self._rows is not None:
                self._rows[start:stop] = rows
            squares[start:stop] = row_squares(rows)
            if lengths is not None:
                squares[start:stop] += rounding_of_squares(
                    lengths, rows.shape[1], self._gradient.shape[1]
                )
        return squares

    def _products(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """The gradients of a piece of rows after the other: where it starts, the gradients, and,
        where they will be multiplied again and terms that cancel now may stay, the lengths of their
        terms.
        """
        patches, gradient = self._patches(), self._gradient.flatten(2)
        positions = gradient.shape[2]
        step = max(
            1, _PIECE // (positions * (self._module.weight.numel() // self._module.out_channels))
        )
        for start in range(0, len(gradient), step):
            piece, outputs = patches[start : start + step], gradient[start : start + step]
            last = self._channels_last()
            flat = (
                piece.reshape(len(piece), positions, -1)
                if last
                else piece.reshape(len(piece), -1, positions).mT
            )
            lengths = None
            if self._rows is None:
                lengths = torch.linalg.vector_norm(flat, dim=2) * torch.linalg.vector_norm(
                    outputs, dim=1
                )
            yield start, torch.bmm(outputs, flat).flatten(1), lengths

    def _patches(self) -> Tensor:
        """A view of the padded inputs with one patch a position; nothing is copied until a piece
        is multiplied.
        """
        module = self._module
        (stride_down, stride_across), (dilated_down, dilated_across) = (
            module.stride,
            module.dilation,
        )
        kernel_down, kernel_across = module.kernel_size
        pad_down, pad_across = self._padding
        down, across = self._gradient.shape[2:]
        count, channels = self._inputs.shape[:2]
        if self._channels_last():
            padded = F.pad(
                self._inputs.permute(0, 2, 3, 1), (0, 0, pad_across, pad_across, pad_down, pad_down)
            )
            row, line, column, channel = padded.contiguous().stride()
            sizes = (count, down, across, kernel_down, kernel_across, channels)
            kernel = (line * dilated_down, column * dilated_across, channel)
            strides = (row, line * stride_down, column * stride_across, *kernel)
            return padded.contiguous().as_strided(sizes, strides)
        padded = F.pad(self._inputs, (pad_across, pad_across, pad_down, pad_down)).contiguous()
        row, channel, line, column = padded.stride()
        sizes = (count, channels, kernel_down, kernel_across, down, across)
        kernel = (channel, line * dilated_down, column * dilated_across)
        return padded.as_strided(sizes, (row, *kernel, line * stride_down, column * stride_across))

    def _channels_last(self) -> bool:
        # Patches are copied in runs: of channels x kernel width with channels last, of output width
        # otherwise.
        return self._module.in_channels >= 4

    def _row_shape(self) -> tuple[int, ...]:
        module = self._module
        if self._channels_last():
            return (module.out_channels, *module.kernel_size, module.in_channels)
        return (module.out_channels, module.in_channels, *module.kernel_size)

    def _row_order(self) -> tuple[int, ...]:
        return (0, 3, 1, 2) if self._channels_last() else (0, 1, 2, 3)


def is_fast_convolution(module: nn.Module) -> bool:
    """Whether a module is a convolution that the fast path takes."""
    return (
        type(module) is nn.Conv2d
        and module.groups == 1
        and module.padding_mode == "zeros"
        and (
            not isinstance(module.padding, str)
            or module.padding == "valid"
            or _same_is_even(module)
        )
    )


def zero_padding(module: nn.Conv2d) -> tuple[int, int]:
    """Rows and columns of zeros on each side."""
    if isinstance(module.padding, str):
        if module.padding == "valid":
            return 0, 0
        down, across = (
            d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True)
        )
        return down, across
    down, across = module.padding
    return down, across


def _same_is_even(module: nn.Conv2d) -> bool:
    return all(
        d * (k - 1) % 2 == 0 for d, k in zip(module.dilation, module.kernel_size, strict=True)
    )
