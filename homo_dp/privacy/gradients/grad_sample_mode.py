"""Which ``grad_sample_mode`` computes the clipped gradients of a model, and the reason, for the log."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from homo_dp.core.errors import error_text
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.batch_invariance import SameEverywhere, places_of
from homo_dp.privacy.gradients.clipped_gradients import ClippedGradients, out_of_place
from homo_dp.privacy.gradients.fast.called_layers import called_layers_of
from homo_dp.privacy.gradients.fast.chain import FastChain, chain_of
from homo_dp.privacy.gradients.fast.gradients import FastGradients, fast_numbers
from homo_dp.privacy.gradients.fast.linear import (
    OneOutputGradients,
    one_output_layer,
    one_output_numbers,
)
from homo_dp.privacy.gradients.losses import KNOWN_LOSSES, Loss
from homo_dp.privacy.gradients.probing import (
    RowsSecond,
    awake,
    check_shown,
    probe_count,
    probe_features,
    size_of_outputs,
    table_rows,
)
from homo_dp.privacy.gradients.row_sums import ghost_rows

OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
MODES = ("auto", "fast", *OPACUS_MODES)


class UnseenGradient(PrivacyError):
    """A mode measures other norms than those of one row after the other: some gradient escapes it."""


def choose_gradients(
    module: nn.Module, loss: Loss, max_grad_norm: float, mode: str, features: Tensor
) -> tuple[ClippedGradients, str, str]:
    """The gradients of a mode, the mode that was chosen for ``auto``, and why."""
    if mode not in MODES:
        raise PrivacyError(f"grad_sample_mode={mode!r} is unknown; use one of {', '.join(MODES)}")
    reason = "asked for by name"
    if mode in ("auto", "fast"):
        chain, why = probed_chain(module, features)
        if chain is not None:
            return (
                _fast(module, chain, loss, max_grad_norm, features),
                "fast",
                why if mode == "auto" else reason,
            )
        if mode == "fast":
            raise PrivacyError(f"grad_sample_mode=fast: {why}; use grad_sample_mode=auto")
        mode, reason = "hooks", why
    probe_mode(module, features, mode)
    return _same_everywhere(module, loss, max_grad_norm, mode), mode, reason


def _same_everywhere(
    module: nn.Module, loss: Loss, max_grad_norm: float, mode: str
) -> ClippedGradients:
    from homo_dp.privacy.gradients.opacus_gradients import opacus_numbers

    try:
        twin = copy.deepcopy(module)  # before there are hooks on it
    except Exception:  # whatever copying somebody's code raises: batch_invariance.py will say so
        twin = module
    places = places_of(twin, opacus_numbers(loss, mode), None)
    made = _by_opacus(module, loss, max_grad_norm, mode)
    return (
        SameEverywhere(made, places, ghost_rows)
        if mode == "ghost"
        else SameEverywhere(made, places)
    )


def _by_opacus(
    module: nn.Module, loss: Loss, max_grad_norm: float, mode: str, *, batch_first: bool = True
) -> ClippedGradients:
    from homo_dp.privacy.gradients.opacus_gradients import (  # the fast path needs none
        GhostGradients,
        MaterialisedGradients,
    )

    if mode == "ghost":
        return GhostGradients(module, loss, max_grad_norm, batch_first=batch_first)
    return MaterialisedGradients(module, loss, max_grad_norm, mode, batch_first=batch_first)


def probed_chain(module: nn.Module, features: Tensor) -> tuple[FastChain | None, str]:
    """The layers of a module, a chain or with code of its own, if their norms are the true ones on a few rows.

    What code of its own does cannot be read: it may use the weights of a layer unseen, or call a layer twice.
    """
    chain, why = chain_of(module)
    if chain is None:
        chain, why = called_layers_of(module)
    if chain is None or not chain.has_foreign_code:
        return chain, why
    in_place = [layer for layer in module.modules() if getattr(layer, "inplace", False) is True]
    out_of_place(module)
    made = FastGradients(chain, size_of_outputs, 1.0)
    multiple, chain.multiple = (
        chain.multiple,
        1,
    )  # as many rows as the probe has, since more may do something else
    try:
        probe_norms(module, features, lambda: made, "fast")
    except PrivacyError as error:
        for layer in in_place:
            layer.inplace = True  # type: ignore[assignment]
        unseen = isinstance(error, UnseenGradient)
        return None, "a weight is used outside of its layer" if unseen else _reason(error)
    finally:
        chain.multiple = multiple
    return chain, why


def _fast(
    module: nn.Module, chain: FastChain, loss: Loss, max_grad_norm: float, features: Tensor
) -> ClippedGradients:
    known = loss in KNOWN_LOSSES and not chain.has_foreign_code
    layer = one_output_layer(module) if known else None
    if (
        layer is not None and features[:1].numel() == layer.in_features
    ):  # not a sequence, with one output at each place
        places = places_of(module, one_output_numbers(loss), (loss, OneOutputGradients))
        return OneOutputGradients(layer, loss, max_grad_norm, places)
    places = places_of(module, fast_numbers(loss), (loss,) if known else None)
    return SameEverywhere(FastGradients(chain, loss, max_grad_norm), places)


def probe_mode(module: nn.Module, features: Tensor, mode: str, *, batch_first: bool = True) -> None:
    """Raise PrivacyError unless the norms of a mode are the true norms on a few rows.

    Ghost clipping sums by a second backward pass over the whole module but takes norms from layers only, so a weight
    that is also used outside of its layer would be summed without being measured. The other modes would not see it.
    """

    def make() -> ClippedGradients:
        return _by_opacus(module, size_of_outputs, 1.0, mode, batch_first=batch_first)

    probe_norms(module if batch_first else RowsSecond(module), features, make, mode)


def probe_norms(
    module: nn.Module, features: Tensor, make: Callable[[], ClippedGradients], mode: str
) -> None:
    """Raise PrivacyError unless the norms of a mode are those of one row after the other, on a few rows.

    A weight that is used outside of its layer gets no gradient from Opacus' hooks: it would be noise and nothing else.
    """
    dropouts = [
        layer for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)
    ]
    for layer in dropouts:
        layer.eval()
    try:
        with torch.random.fork_rng(devices=[]), awake(module):
            true, measured, again = _norms(module, features, make)
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
    if not seen and (
        mode == "ghost" or torch.equal(true, again)
    ):  # layers that draw random numbers cannot be compared
        raise UnseenGradient(
            f"grad_sample_mode={mode} does not see every gradient of this model (a weight used outside of its layer, "
            f"a hook, or random layers); {_INSTEAD[mode == 'ghost']}"
        )


def _norms(
    module: nn.Module, features: Tensor, make: Callable[[], ClippedGradients]
) -> tuple[Tensor, Tensor, Tensor]:
    """The norms of a few rows one after the other, as the mode measures them, and one after the other again."""
    count = probe_count(features, 3)
    rows = probe_features(features, count)
    try:
        true = _true_norms(module, rows)
        check_shown(true)
    except Exception:  # rows that the model does not take
        rows = table_rows(features, count)
        true = _true_norms(module, rows)
    gradients = make()
    try:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in trained]
        measured = gradients.clipped_sum(rows, rows, sums, False)()
    finally:
        gradients.close()
    return true, measured, _true_norms(module, rows)


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
