"""Training here is never compiled, so torch's compiler need not be loaded."""

import sys

from torch.optim import Optimizer

_MARK = "__dynamo_disable"  # where torch._compile keeps the function that it made unseen by the compiler


def keep_compiler_out() -> None:
    """Save the import of torch._dynamo, half a second, that making the first optimiser of a process costs.

    The methods of an optimiser are marked "not to be compiled", and torch loads its compiler only to be told so. Marked
    as told, they are called as they are; a torch that marks them in another way does what it always did. The ``step``
    of an optimiser loads it all the same, but plain SGD does not go through it (``privacy/sgd.py``).
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        method = getattr(getattr(Optimizer, name, None), "__wrapped__", None)
        if method is not None and not hasattr(method, _MARK):
            setattr(method, _MARK, method)
