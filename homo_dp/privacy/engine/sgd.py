"""Plain SGD in one call: what ``torch.optim.SGD.step`` does without momentum, minus its
bookkeeping.

On a model of a hundred weights that bookkeeping costs more than the gradient of a batch.
"""

import torch
from torch import Tensor, nn

_FEW = 4  # tensors up to which one call each is quicker than one call for all
_OFF = ("momentum", "weight_decay", "maximize", "nesterov", "differentiable", "fused")


def step_optimizer(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradients: list[Tensor]
) -> None:
    """Step the optimiser over all of its trainable parameters, whose ``grad`` the gradients are.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> weight.grad = torch.ones(2)
    >>> step_optimizer(torch.optim.SGD([weight], lr=0.5), [weight], [weight.grad])
    >>> weight.tolist()
    [0.5, 0.5]
    """
    if not is_plain_sgd(optimizer):
        optimizer.step()
        return
    for hook in tuple(optimizer._optimizer_step_pre_hooks.values()):
        hook(optimizer, (), {})
    rate = -optimizer.param_groups[0]["lr"]
    if len(parameters) > _FEW:
        with torch.no_grad():
            torch._foreach_add_(tuple(parameters), tuple(gradients), alpha=rate)
        return
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.detach().add_(gradient, alpha=rate)


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is ``p -= lr * grad`` for all parameters alike, with no hook after it or
    wrapper that wants to see it.
    """
    if type(optimizer) is not torch.optim.SGD or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    watched = "step" in vars(optimizer) or optimizer._optimizer_step_post_hooks
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
