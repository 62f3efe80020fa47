"""What may be trained privately: modules without layers that mix rows and without state that data
writes to.

Opacus checks trainable layers only, so a BatchNorm without weights passes it; here every layer and
buffer is looked at. Modules that mix rows without saying so in a layer's name are found by trying
them (``probing.py``).
"""

import copy
import math
import sys
from collections.abc import Collection, Iterable

import torch
from torch import nn

from homo_dp.core.errors import error_text
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.recurrent import is_fast_lstm

_FIX = "or set model.fix=true (fix=True) to have it replaced"
_WITHOUT_RULES = ("linear", "conv", "container", "sparse", "normalization")
_FLOATS = (torch.float32, torch.float64)


def check_has_noise(noise_multiplier: float) -> float:
    """Return a noise multiplier above zero, or raise PrivacyError: there is no private training
    without noise.

    >>> check_has_noise(1.1)
    1.1
    """
    if isinstance(noise_multiplier, bool) or not isinstance(noise_multiplier, int | float):
        raise PrivacyError(
            f"noise_multiplier={noise_multiplier!r} is not a number; give a number > 0"
        )
    if not math.isfinite(noise_multiplier) or noise_multiplier <= 0:
        raise PrivacyError(
            f"noise_multiplier={noise_multiplier} is not a finite number > 0; "
            "give more noise, or ask for no privacy by name with privacy.mechanism=none"
        )
    return float(noise_multiplier)


def compatible_module(
    module: nn.Module, *, fix: bool = False, public: Collection[str] = ()
) -> nn.Module:
    """Return a module that can be trained privately: the same one, or a repaired copy when ``fix``
    is asked for.

    ``public`` names buffers that hold no data and are never trained.

    >>> compatible_module(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), fix=True)[1]
    GroupNorm(1, 4, eps=1e-05, affine=True, bias=True)
    """
    if fix:
        from opacus.validators import ModuleValidator

        module = ModuleValidator.fix(_without_batch_norm(copy.deepcopy(module)))
        for layer in module.modules():
            if (
                isinstance(layer, nn.modules.instancenorm._InstanceNorm)
                and layer.running_mean is not None
            ):
                _forget_running_statistics(layer)
    check_module(module, public)
    return module


def check_module(module: nn.Module, public: Collection[str] = ()) -> None:
    """Raise PrivacyError unless every layer, parameter and buffer of the module can be trained
    privately.
    """
    for name, layer in module.named_modules():
        _check_layer(name or "model", layer)
    for name, parameter in module.named_parameters():
        if parameter.dtype not in _FLOATS:
            raise PrivacyError(
                f"{name}: dtype={parameter.dtype} is not float32 or float64; convert the model "
                "first"
            )
        if parameter.numel() == 0:
            raise PrivacyError(
                f"{name}: shape={tuple(parameter.shape)} has no values; remove the parameter"
            )
        if not bool(parameter.isfinite().all()):
            raise PrivacyError(f"{name} holds NaN or infinity; start from finite weights")
    _check_buffers(module, public)
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        raise PrivacyError(
            "the model has 0 trainable parameters; set requires_grad=True on at least one"
        )
    if len({(parameter.dtype, parameter.device) for parameter in trainable}) > 1:
        raise PrivacyError(
            "trainable parameters have several dtypes or devices; move the model to one of each"
        )
    if _opacus_has_a_say(module):
        _ask_opacus(module)


def check_optimizer(
    module: nn.Module, optimizer: torch.optim.Optimizer, *, partly: bool = False
) -> None:
    """Raise PrivacyError unless the optimiser holds the trainable parameters of the module (or
    some, if ``partly``).
    """
    held = [
        id(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    trainable = {
        id(parameter): name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    missing = [name for key, name in trainable.items() if key not in set(held)]
    if missing and not partly:
        raise PrivacyError(
            f"{missing[0]} is trainable but not in the optimizer; add it, or freeze it"
        )
    if set(held) - set(trainable) or len(held) != len(set(held)):
        raise PrivacyError(
            "the optimizer holds parameters that the model has not; build it from "
            "model.parameters()"
        )
    for index, group in enumerate(optimizer.param_groups):
        if group.get("maximize"):
            raise PrivacyError(
                f"param_groups[{index}] maximize=True is not supported; negate the loss instead"
            )


def _check_layer(name: str, layer: nn.Module) -> None:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        raise PrivacyError(
            f"{name}: {type(layer).__name__} mixes the rows of a batch and keeps raw statistics; "
            f"use GroupNorm or LayerNorm, {_FIX}"
        )
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise PrivacyError(
            f"{name}: {type(layer).__name__} track_running_stats=True keeps raw statistics; "
            f"use track_running_stats=False, {_FIX}"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        raise PrivacyError(
            f"{name}: {type(layer).__name__} max_norm={layer.max_norm} rewrites the vectors of the "
            "words it sees, without noise; use max_norm=None"
        )


def _opacus_has_a_say(module: nn.Module) -> bool:
    """Whether Opacus may have a rule for a layer; its rules go by exact type, and importing them
    takes half a second.

    It has none for layers of the files named here. Rules for layers of somebody's own come from
    whoever imported it.
    """
    weighted = [
        layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False))
    ]
    files = {type(layer).__module__ for layer in weighted if not is_fast_lstm(layer)}
    return "opacus.validators" in sys.modules or any(
        file.startswith("torch.nn.")
        and file.removeprefix("torch.nn.modules.") not in _WITHOUT_RULES
        for file in files
    )


def _ask_opacus(module: nn.Module) -> None:
    from opacus.validators import ModuleValidator

    # An LSTM of torch's own is trained on the fast path, which needs no layer made for hooks.
    asked = [layer for layer in module.modules() if _has_trained(layer) and not is_fast_lstm(layer)]
    validators = ModuleValidator.VALIDATORS
    errors = [
        error
        for layer in asked
        if type(layer) in validators
        for error in validators[type(layer)](layer)
    ]
    if errors:
        raise PrivacyError(
            f"{type(module).__name__} cannot be trained privately: {error_text(errors[0])}; {_FIX}"
        )


def _has_trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _check_buffers(module: nn.Module, public: Collection[str]) -> None:
    persistent = set(module.state_dict(keep_vars=True)) - {
        name for name, _ in _all_parameters(module)
    }
    for name, buffer in module.named_buffers():
        if name in persistent and name not in public:
            raise PrivacyError(
                f"buffer {name} (dtype={buffer.dtype}) may hold data and has no privacy event; "
                "remove it, register a constant with persistent=False, or (dp_fedavg) list it in "
                "privacy.public_tensors"
            )


def _all_parameters(module: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return module.named_parameters(remove_duplicate=False)


def _without_batch_norm(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        # Opacus takes gcd(32, features) groups too, but on flat records such a group may be one
        # value, which it zeroes. or may be: it takes any shape
        flat = isinstance(module, nn.BatchNorm1d | nn.SyncBatchNorm)
        groups = 1 if flat else math.gcd(32, module.num_features)
        return nn.GroupNorm(groups, module.num_features, eps=module.eps, affine=module.affine)
    for name, child in module.named_children():
        setattr(module, name, _without_batch_norm(child))
    return module


def _forget_running_statistics(layer: nn.modules.instancenorm._InstanceNorm) -> None:
    layer.track_running_stats = False
    for name in list(dict(layer.named_buffers(recurse=False))):
        setattr(layer, name, None)


def out_of_place(module: nn.Module) -> None:
    """Switch activations to new tensors: torch forbids overwriting the output of a hooked layer;
    values are the same.

    >>> layer = nn.ReLU(inplace=True)
    >>> out_of_place(layer)
    >>> layer.inplace
    False
    """
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]


def has_opacus_layers(module: nn.Module) -> bool:
    """Whether a layer is one of Opacus', or made from one: then Opacus is imported already."""
    return any(
        base.__module__.startswith("opacus.")
        for layer in module.modules()
        for base in type(layer).__mro__
    )
