"""The fast path through code of its own: any ``forward`` whose trainable layers are all supported,
each called once.

The module runs as it is, under autograd; its layers note what they are given. One backward pass
then stops at the layers' outputs, so that no gradient of a weight is computed but the clipped sum.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import FAST, FastChain, fast_layer, has_hooks
from homo_dp.privacy.gradients.fast.layers import FastLayer


class CalledLayers(FastChain):
    """The layers of a module in the order of its parameters, run by the module itself.

    Guarantees:
        - as FastChain, for layers that are called at most once a pass with one row a record;
          anything else is refused.
    """

    def __init__(self, module: nn.Module, layers: list[tuple[nn.Module, FastLayer]]) -> None:
        super().__init__([layer for _, layer in layers])
        self._module, self._called_layers = module, layers
        self._kept: dict[int, tuple[Tensor, int]] = {}
        self._used: list[FastLayer | None] = []
        self._outputs = torch.zeros(0)
        self._copies = False

    @property
    def has_foreign_code(self) -> bool:
        return True

    def forward(self, inputs: Tensor) -> Tensor:
        self._given = inputs.shape[0]
        self._kept, version = {}, inputs._version
        for number, (module, layer) in enumerate(self._called_layers):
            module.__dict__["forward"] = self._noting(number, layer, len(inputs))
        try:
            with torch.enable_grad():
                self._outputs = self._module(inputs)
            if not isinstance(self._outputs, Tensor):
                raise PrivacyError("the model gives several outputs; use grad_sample_mode=hooks")
        finally:
            for module, _ in self._called_layers:
                del module.__dict__["forward"]
        if all(outputs._version == before for outputs, before in self._kept.values()):
            return self._outputs.detach()
        if self._copies or inputs._version != version:
            raise PrivacyError("the inputs are changed in place; use grad_sample_mode=hooks")
        self._copies = True  # what a layer gave is written over: from now on it gives a copy
        return self.forward(inputs)

    def backward(self, gradient: Tensor) -> Tensor:
        wanted = {
            number: outputs for number, (outputs, _) in self._kept.items() if outputs.requires_grad
        }
        found: tuple[Tensor | None, ...] = ()
        if wanted and self._outputs.requires_grad:
            found = torch.autograd.grad(
                self._outputs, list(wanted.values()), gradient, allow_unused=True
            )
        gradients = {
            number: value for number, value in zip(wanted, found, strict=False) if value is not None
        }
        self._used = [
            self._called_layers[number][1] if number in gradients else None
            for number in self._numbers()
        ]
        squares = gradient.new_zeros(len(gradient))
        for number, value in gradients.items():
            layer = self._called_layers[number][1]
            layer.backward(value.detach(), False)
            squares = squares + layer.squared_norms()
        return squares

    def write_layers(self, factors: Tensor, sums: list[Tensor], accumulate: bool) -> None:
        start = 0
        for (_, layer), used in zip(self._called_layers, self._used, strict=True):
            stop = start + len(layer.parameters)
            if used is not None:
                used.write_sums(factors, sums[start:stop], accumulate)
            elif not accumulate:
                for total in sums[start:stop]:
                    total.zero_()
            start = stop

    def kept(self) -> list[Tensor]:
        return [rows for layer in self._used if layer is not None for rows in layer.kept()]

    def forget(self) -> None:
        for layer in self._used:
            if layer is not None:
                layer.forget()
        self._kept, self._used = {}, []
        self._outputs = torch.zeros(0)

    def _numbers(self) -> range:
        return range(len(self._called_layers))

    def _noting(self, number: int, layer: FastLayer, rows: int) -> Callable[..., Any]:
        def call(input: Tensor, *others: object) -> Any:  # the name that layers give it
            alone = isinstance(input, Tensor) and all(other is None for other in others)
            if number in self._kept or not alone or input.shape[:1] != (rows,):
                raise PrivacyError(
                    "a layer is called twice, or not with one row a record; use "
                    "grad_sample_mode=hooks"
                )
            outputs = layer.forward(input, True)
            self._kept[number] = outputs, outputs._version
            return layer.given(outputs.clone() if self._copies else outputs)

        return call


def called_layers_of(module: nn.Module) -> tuple[FastChain | None, str]:
    """The chain of a module with a forward of its own, or None and why not. It has to be probed
    before it is used.

    >>> class Residual(nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.inner = nn.Linear(2, 2)
    ...     def forward(self, inputs: Tensor) -> Tensor:
    ...         return inputs + self.inner(inputs)
    >>> called_layers_of(Residual())[1]
    'every trainable layer is supported'
    """
    layers: list[tuple[nn.Module, FastLayer]] = []
    for name, leaf in module.named_modules():
        if not any(parameter.requires_grad for parameter in leaf.parameters(recurse=False)):
            continue
        layer = fast_layer(leaf)
        if layer is None or not layer.parameters or leaf is module:
            return None, f"{name or 'model'}: {type(leaf).__name__} has no fast gradient"
        if has_hooks(leaf) or "forward" in vars(leaf):
            return None, f"{name}: {type(leaf).__name__} has hooks or a forward of its own"
        layers.append((leaf, layer))
    parameters = [parameter for _, layer in layers for parameter in layer.parameters]
    every = [
        parameter
        for _, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    ]
    if len({id(parameter) for parameter in every}) < len(every):
        return None, "a parameter is shared between layers"
    if [id(parameter) for parameter in parameters] != [id(parameter) for parameter in every]:
        return None, "a trainable parameter is outside of the layers"
    return CalledLayers(module, layers), FAST
