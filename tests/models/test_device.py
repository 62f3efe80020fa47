"""The device of a run: what the machine has, or one clear line."""

import pytest
import torch

from homo_dp.core.errors import ConfigError
from homo_dp.models.device import torch_device


def test_auto_takes_what_is_there() -> None:
    assert torch_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert torch_device("cpu").type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"train.device=cuda: .* choose train.device=auto or cpu"):
        torch_device("cuda")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose auto, cpu or cuda"):
        torch_device("tpu")
