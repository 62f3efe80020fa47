"""Where tensors are computed: `train.device` as a torch device."""

import torch

from homo_dp.core.errors import ConfigError


def torch_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the first CUDA device where there is one, else the CPU.

    >>> torch_device("cpu")
    device(type='cpu')
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"train.device={name}: unknown; choose auto, cpu or cuda")
    there = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ConfigError(
            f"train.device=cuda: torch {torch.__version__} sees no CUDA device here; choose "
            "train.device=auto or cpu, or install a CUDA build of torch and its driver"
        )
    return torch.device("cuda" if there else "cpu")
