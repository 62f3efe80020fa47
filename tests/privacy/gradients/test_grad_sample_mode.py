"""Modes of per-sample gradients: a model whose gradients a mode cannot see is refused before
training.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.grad_sample_mode import probed_chain

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def chosen(module: nn.Module, mode: str, rows: Tensor) -> tuple[str, str]:
    """The mode that the engine takes, and why, before it hangs any hook on the module."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = PrivacyEngine()._mode(module, optimizer, mode, rows, plain=True, batch_first=True)
    return found[0], found[1]


class TwoLayers(nn.Module):
    """Two dense layers, with ``between`` deciding how the first is used."""

    def __init__(self, between: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(4, 4), nn.Linear(4, 2), between

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.between(self.first, inputs))
        return outputs


def called(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return torch.tanh(layer(inputs))


def called_twice(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return called(layer, called(layer, inputs))


def noisy(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return called(layer, inputs) + torch.randn(len(inputs), 4)


def weight_alone(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return torch.tanh(functional.linear(inputs, layer.weight))


def weight_too(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return weight_alone(layer, called(layer, inputs))


def some_rows(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return torch.cat([called(layer, inputs[:1]), inputs[1:]])


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("between", [weight_alone, weight_too, some_rows])
def test_what_a_mode_does_not_see_is_refused(
    mode: str, between: Callable[[nn.Linear, Tensor], Tensor]
) -> None:
    with pytest.raises(
        PrivacyError, match=r"does not see every gradient|expected 3 per-sample gradients"
    ):
        chosen(TwoLayers(between), mode, ROWS)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("between", [called, called_twice, noisy])
def test_what_a_mode_sees_is_taken(
    mode: str, between: Callable[[nn.Linear, Tensor], Tensor]
) -> None:
    module = TwoLayers(between)
    assert chosen(module, mode, ROWS)[0] == mode
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())


def test_ghost_refuses_in_one_line_where_rows_are_folded() -> None:
    with pytest.raises(
        PrivacyError, match=r"grad_sample_mode=ghost: .*; use grad_sample_mode=hooks"
    ):
        chosen(TwoLayers(some_rows), "ghost", ROWS)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_table_of_one_row_is_probed_as_any_other(mode: str) -> None:
    """What is refused must not tell how many rows there are."""
    with pytest.raises(PrivacyError):
        chosen(TwoLayers(some_rows), mode, ROWS[:1])


def folded() -> nn.Module:
    return nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 2), nn.Unflatten(0, (-1, 5)), nn.Flatten())


@pytest.mark.parametrize("mode", ["auto", "fast", "hooks"])
def test_layers_that_fold_positions_into_rows_are_refused(mode: str) -> None:
    """Five positions clipped one by one let a record move the sum by almost five times the
    bound.
    """
    with pytest.raises(PrivacyError, match="one row a record"):
        chosen(folded(), mode, torch.randn(8, 5, 3))


def test_a_chain_never_clips_parts_of_a_record() -> None:
    chain = chain_of(folded())[0]
    assert chain is not None
    with pytest.raises(PrivacyError, match="one row a record"):
        chain.forward(torch.randn(8, 5, 3))


def last_at_zero(between: Callable[[nn.Linear, Tensor], Tensor]) -> TwoLayers:
    module = TwoLayers(between)
    nn.init.zeros_(module.second.weight)
    nn.init.zeros_(module.second.bias)
    return module


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_last_layer_of_zeros_hides_nothing(mode: str) -> None:
    """Until its first step no gradient goes through it, to be measured or to be missed."""
    with pytest.raises(PrivacyError, match="does not see every gradient"):
        chosen(last_at_zero(weight_too), mode, ROWS)
    module = last_at_zero(called)
    chosen(module, mode, ROWS)
    assert not bool(module.second.weight.any() or module.second.bias.any())


def of_logarithms(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return weight_too(layer, inputs.log())


def test_norms_are_compared_where_made_up_rows_give_none() -> None:
    with pytest.raises(PrivacyError, match="does not see every gradient"):
        chosen(TwoLayers(of_logarithms), "hooks", torch.rand(6, 4) + 0.1)


class Bag(nn.Module):
    """A layer that Opacus cannot give per-sample gradients for."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.dropout, self.last = (
            nn.EmbeddingBag(9, 4, mode="max"),
            nn.Dropout(0.5),
            nn.Linear(4, 2),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.dropout(self.bag(inputs)))
        return outputs


@pytest.mark.parametrize("mode", ["auto", "hooks", "functorch", "ghost"])
def test_a_layer_that_opacus_fails_on_is_refused_and_leaves_nothing_behind(mode: str) -> None:
    module = Bag()
    with pytest.raises(
        PrivacyError, match=r"grad_sample_mode=.*; (call every layer|use grad_sample_mode=hooks)"
    ):
        chosen(module, mode, torch.arange(6).view(2, 3))
    assert all(layer.training for layer in module.modules())
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())


def test_probing_draws_nothing_from_the_generator_of_the_program() -> None:
    module = TwoLayers(noisy)
    drawn = torch.get_rng_state()
    chosen(module, "hooks", ROWS)
    assert torch.equal(torch.get_rng_state(), drawn)


class Transposed(nn.Module):
    """A layer without weights of its own, which uses those of another in secret."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layers = [layer]

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.layers[0].weight


class Doubled(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2.0 * inputs


@pytest.mark.parametrize("first", [True, False])
def test_a_layer_that_uses_the_weights_of_another_is_not_fast(first: bool) -> None:
    layer = nn.Linear(4, 4)
    chain = [Transposed(layer), layer] if first else [layer, Transposed(layer)]
    module = nn.Sequential(*chain, nn.Linear(4, 2))
    assert chain_of(module)[0] is not None
    assert probed_chain(module, ROWS) == (None, "a weight is used outside of its layer")
    with pytest.raises(PrivacyError, match="does not see every gradient"):
        chosen(module, "auto", ROWS)
    with pytest.raises(PrivacyError, match="fast: a weight is used outside of its layer"):
        chosen(module, "fast", ROWS)
    harmless = nn.Sequential(nn.Linear(4, 4), Doubled(), nn.Linear(4, 2))
    assert chosen(harmless, "auto", ROWS)[0] == "fast"


def test_a_forward_put_on_an_object_is_not_read_around() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    plain = module[1].forward
    module[1].forward = lambda inputs: plain(inputs) * 2.0
    assert chain_of(module) == (None, "1: Tanh has a forward of its own")
    chain = nn.Sequential(nn.Linear(4, 2))
    chain.forward = lambda inputs: chain[0](inputs) * 2.0  # type: ignore[method-assign]
    assert chain_of(chain) == (None, "model: Sequential has no fast gradient")


def in_place(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return layer(inputs).relu_()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("between", "mode", "reason"),
    [
        (called, "fast", "every trainable layer is supported"),
        (called_twice, "hooks", "a layer is called twice, or not with one row a record"),
        (in_place, "fast", "every trainable layer is supported"),
    ],
)
def test_code_of_its_own_is_fast_where_layers_are_called_once(
    between: Callable[[nn.Linear, Tensor], Tensor], mode: str, reason: str
) -> None:
    module = TwoLayers(between)
    assert chosen(module, "auto", ROWS) == (mode, reason)
    assert "forward" not in vars(module.first)
    assert probed_chain(TwoLayers(weight_too), ROWS) == (
        None,
        "a weight is used outside of its layer",
    )
    assert probed_chain(TwoLayers(weight_alone), ROWS) == (
        None,
        "a weight is used outside of its layer",
    )
    assert probed_chain(TwoLayers(some_rows), ROWS)[0] is None
