"""Which ``grad_sample_mode`` computes the clipped gradients of a model, and the reason, for the
log.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from homo_dp.core.errors import error_text
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.called_layers import called_layers_of
from homo_dp.privacy.gradients.fast.chain import FastChain, chain_of
from homo_dp.privacy.gradients.losses import output_gradient
from homo_dp.privacy.gradients.probing import (
    RowsSecond,
    awake,
    check_shown,
    probe_count,
    probe_features,
    size_of_outputs,
    table_rows,
)
from homo_dp.privacy.gradients.validation import out_of_place

OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
MODES = ("auto", "fast", *OPACUS_MODES)


class UnseenGradient(PrivacyError):
    """A mode measures other norms than those of one row after the other: some gradient escapes
    it.
    """


def probed_chain(module: nn.Module, features: Tensor) -> tuple[FastChain | None, str]:
    """The layers of a module, a chain or with code of its own, if their norms are the true ones on
    a few rows.

    What code of its own does cannot be read: it may use the weights of a layer unseen, or call a
    layer twice.
    """
    chain, why = chain_of(module)
    if chain is None:
        chain, why = called_layers_of(module)
    if chain is None or not chain.has_foreign_code:
        return chain, why
    in_place = [layer for layer in module.modules() if getattr(layer, "inplace", False) is True]
    out_of_place(module)
    try:
        probe_norms(module, features, functools.partial(_chain_norms, chain), "fast")
    except PrivacyError as error:
        for layer in in_place:
            layer.inplace = True  # type: ignore[assignment]
        unseen = isinstance(error, UnseenGradient)
        return None, "a weight is used outside of its layer" if unseen else _reason(error)
    return chain, why


def _chain_norms(chain: FastChain, rows: Tensor) -> Tensor:
    with torch.no_grad():
        outputs = chain.forward(rows)
        norms = chain.backward(output_gradient(size_of_outputs, outputs, rows)).sqrt()
        chain.forget()
    return norms


def probe_mode(module: nn.Module, features: Tensor, mode: str, *, batch_first: bool = True) -> None:
    """Raise PrivacyError unless the norms of a mode are the true norms on a few rows.

    Ghost clipping sums by a second backward pass over the whole module but takes norms from layers
    only, so a weight that is also used outside of its layer would be summed without being measured.
    The other modes would not see it.
    """
    from homo_dp.privacy.gradients.opacus_gradients import opacus_norms  # the fast path needs none

    def measure(rows: Tensor) -> Tensor:
        return opacus_norms(module, size_of_outputs, mode, rows, batch_first=batch_first)

    probe_norms(module if batch_first else RowsSecond(module), features, measure, mode)


def probe_norms(
    module: nn.Module, features: Tensor, measure: Callable[[Tensor], Tensor], mode: str
) -> None:
    """Raise PrivacyError unless the norms of a mode are those of one row after the other, on a few
    rows.

    A weight that is used outside of its layer gets no gradient from Opacus' hooks: it would be
    noise and nothing else.
    """
    dropouts = [
        layer for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)
    ]
    for layer in dropouts:
        layer.eval()
    try:
        with torch.random.fork_rng(devices=[]), awake(module):
            true, measured, again = _norms(module, features, measure)
    except PrivacyError:
        raise
    except Exception as error:  # whatever Opacus raises on layers that it does not know
        raise PrivacyError(
            f"grad_sample_mode={mode}: {error_text(error)}; {_INSTEAD[mode == 'ghost']}"
        ) from error
    finally:
        for layer in dropouts:
            layer.train()
    seen = torch.allclose(measured, true.to(measured), rtol=1e-3, atol=1e-5, equal_nan=True)
    # layers that draw random numbers cannot be compared
    if not seen and (mode == "ghost" or torch.equal(true, again)):
        raise UnseenGradient(
            f"grad_sample_mode={mode} does not see every gradient of this model (a weight used "
            f"outside of its layer, a hook, or random layers); {_INSTEAD[mode == 'ghost']}"
        )


def _norms(
    module: nn.Module, features: Tensor, measure: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The norms of a few rows one after the other, as the mode measures them, and one after the
    other again.
    """
    count = probe_count(features, 3)
    rows = probe_features(features, count)
    try:
        true = _true_norms(module, rows)
        check_shown(true)
    except Exception:  # rows that the model does not take
        rows = table_rows(features, count)
        true = _true_norms(module, rows)
    return true, measure(rows), _true_norms(module, rows)


_INSTEAD = (
    "call every layer with one row a record, and use its weights nowhere else",
    "use grad_sample_mode=hooks",
)


def _reason(error: PrivacyError) -> str:
    return str(error).removeprefix("grad_sample_mode=fast: ").split("; ")[0]


def _true_norms(module: nn.Module, rows: Tensor) -> Tensor:
    return torch.stack([_true_norm(module, row.unsqueeze(0)) for row in rows])


def _true_norm(module: nn.Module, row: Tensor) -> Tensor:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        loss = size_of_outputs(module(row), row).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    found = [
        gradient.to_dense() if gradient.is_sparse else gradient
        for gradient in gradients
        if gradient is not None
    ]
    squares = [gradient.double().square().sum() for gradient in found]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)
