"""Dropout masks: nobody can work them out, and tests can still repeat them."""

import os

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.engine.dropout_masks import SecretMasks, secret_masks, secret_state
from homo_dp.privacy.gradients.losses import squared_error
from homo_dp.privacy.noise.source import NoiseSource, SeededNoise, secure_noise
from tests.privacy.engine_parts import made_private
from tests.privacy.training_parts import seeded, training


class _Remembers(nn.Module):
    """Keeps the masks that it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.masks = nn.Linear(64, 1), list[Tensor]()

    def forward(self, inputs: Tensor) -> Tensor:
        mask = nn.functional.dropout(torch.ones_like(inputs), 0.5, self.training)
        self.masks.append(mask.detach())
        outputs: Tensor = self.layer(inputs * mask)
        return outputs


def masks_of_a_run(noise: NoiseSource) -> Tensor:
    """The masks of one step of a training, in a program that was seeded with a number everybody
    knows.
    """
    module = _Remembers()
    private = training(
        module,
        squared_error,
        torch.ones(6, 64),
        torch.zeros(6),
        noise=noise,
        grad_sample_mode="hooks",
    )
    torch.manual_seed(0)
    module.masks.clear()
    private.run(1)
    return module.masks[-1]


def test_masks_do_not_come_from_the_seed_of_the_run() -> None:
    """384 coins: equal by chance once in 1e115."""
    first, again = masks_of_a_run(secure_noise()), masks_of_a_run(secure_noise())
    assert not torch.equal(first, again)
    torch.manual_seed(0)
    assert not torch.equal(first, nn.functional.dropout(torch.ones(6, 64), 0.5))


def test_seeded_noise_leaves_masks_repeatable() -> None:
    assert torch.equal(masks_of_a_run(seeded(1)), masks_of_a_run(seeded(1)))


def test_the_programs_own_random_numbers_go_on_as_if_nothing_was_drawn() -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    with secret_masks(secure_noise()):
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected)
    with pytest.raises(KeyError), secret_masks(secure_noise()):
        raise KeyError
    torch.manual_seed(4)
    with secret_masks(SeededNoise(1)):
        assert torch.equal(torch.rand(3), expected)


def test_a_secret_state_draws_as_a_generator_should() -> None:
    """100,000 uniforms: the mean is within 6 of its standard deviations, wrong once in 5e8; all
    words are fresh.
    """
    generator = torch.Generator()
    generator.set_state(secret_state())
    drawn = torch.rand(100_000, generator=generator)
    assert abs(float(drawn.mean()) - 0.5) < 6 * (1 / 12 / 100_000) ** 0.5
    assert float(drawn.min()) < 0.001
    assert float(drawn.max()) > 0.999
    words = [secret_state()[24 : 24 + 8 * 624].reshape(624, 8) for _ in range(2)]
    assert int((words[0] == words[1]).all(1).sum()) == 0
    assert all(not bool(each[:, 4:].any()) for each in words)


@pytest.mark.parametrize("mode", ["auto", "hooks"])
def test_masks_of_an_opacus_loop_do_not_come_from_its_seed(mode: str) -> None:
    seen = []
    for _ in range(2):
        module = _Remembers()
        wrapped, optimizer, criterion, _ = made_private(
            module, torch.ones(6, 64), torch.zeros(6), grad_sample_mode=mode
        )
        for _ in range(2):
            torch.manual_seed(0)
            criterion(wrapped(torch.ones(6, 64)), torch.zeros(6)).backward()
            seen.append(module.masks[-1])
            drawn = torch.rand(1)
            torch.manual_seed(0)
            assert torch.equal(drawn, torch.rand(1)), "the loop's own numbers are its own"
            optimizer.step()
            optimizer.zero_grad()
    assert len({tuple(mask.flatten().tolist()) for mask in seen}) == 4


def test_a_forked_process_draws_masks_of_its_own() -> None:
    module = nn.Sequential(nn.Dropout(0.5))
    SecretMasks(module)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, bytes(module(torch.ones(256)).bool().tolist()))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read()
    assert len(found) == 256
    assert found != bytes(module(torch.ones(256)).bool().tolist())
