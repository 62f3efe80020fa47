"""Embeddings on the fast path: words that repeat in a row, and one word a row."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from homo_dp.privacy.gradients.losses import softmax_cross_entropy
from tests.privacy.gradients.fast.parts import same_as_reference

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


WORDS: dict[str, Callable[[], nn.Module]] = {
    "flat": lambda: nn.Sequential(nn.Embedding(4, 5), nn.Flatten(), nn.Linear(30, 3)),
    "padding": lambda: nn.Sequential(
        nn.Embedding(4, 5, padding_idx=0), nn.Flatten(), nn.Linear(30, 3)
    ),
    "mean of a bag": lambda: nn.Sequential(nn.EmbeddingBag(4, 5), nn.Linear(5, 3)),
    "sum of a bag": lambda: nn.Sequential(nn.EmbeddingBag(4, 5, mode="sum"), nn.Linear(5, 3)),
    "bag with padding": lambda: nn.Sequential(
        nn.EmbeddingBag(4, 5, padding_idx=1), nn.Linear(5, 3)
    ),
    "sequence": lambda: nn.Sequential(
        nn.Embedding(4, 5), nn.Linear(5, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_repeat_in_a_row(name: str) -> None:
    torch.manual_seed(1)
    same_as_reference(
        WORDS[name](), softmax_cross_entropy, torch.randint(0, 4, (12, 6)), torch.arange(12) % 3
    )


def test_one_word_a_row() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    same_as_reference(module, softmax_cross_entropy, torch.arange(12) % 5, torch.arange(12) % 3)
