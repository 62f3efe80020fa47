"""Plain SGD in one call: what ``torch.optim.SGD.step`` does without momentum, minus its
bookkeeping.

On a model of a hundred weights that bookkeeping costs more than the gradient of a batch.
"""

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_FEW = 4  # tensors up to which one call each is quicker than one call for all
_OFF = ("momentum", "weight_decay", "maximize", "nesterov", "differentiable", "fused")


def plain_sgd_step(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradients: list[Tensor]
) -> bool:
    """Step all trainable parameters, whose ``grad`` the gradients are, if that is plain SGD.

    Returns:
        Whether they moved; if not, ``optimizer.step()`` has to be called.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> weight.grad = torch.ones(2)
    >>> plain_sgd_step(torch.optim.SGD([weight], lr=0.5), [weight], [weight.grad])
    True
    >>> weight.tolist()
    [0.5, 0.5]
    """
    if not is_plain_sgd(optimizer):
        return False
    hooks = tuple(optimizer._optimizer_step_pre_hooks.values())
    for hook in hooks:
        hook(optimizer, (), {})
    if hooks:  # one may have put another gradient in the place of the first, or none
        moved = [(each, each.grad) for each in parameters if each.grad is not None]
        parameters, gradients = [each for each, _ in moved], [grad for _, grad in moved]
    rate = -optimizer.param_groups[0]["lr"]
    if len(parameters) > _FEW:
        with torch.no_grad():
            torch._foreach_add_(tuple(parameters), tuple(gradients), alpha=rate)
        return True
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.detach().add_(gradient, alpha=rate)
    return True


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is ``p -= lr * grad`` for all parameters alike, with no hook after it or
    wrapper that wants to see it.
    """
    if type(optimizer) is not torch.optim.SGD or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    watched = (
        "step" in vars(optimizer)
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )
    return not (watched or any(map(group.get, _OFF))) and isinstance(group["lr"], float)


def views(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """One flat tensor as tensors shaped like the parameters, without a copy.

    >>> [view.shape for view in views(torch.zeros(3), [nn.Parameter(torch.ones(1, 2)), nn.Parameter(torch.ones(1))])]
    [torch.Size([1, 2]), torch.Size([1])]
    """
    pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [
        piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)
    ]
