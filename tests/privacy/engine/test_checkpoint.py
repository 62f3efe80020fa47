"""An Opacus loop that stops and goes on: its state without pickle, its weights under their own
names.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import squared_error
from tests.privacy.engine_parts import MODES, made_private, one_epoch, small_table, sum_of_epoch
from tests.privacy.training_parts import flat, reference_sum

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")


def test_the_engine_continues_from_its_state() -> None:
    engine = PrivacyEngine()
    engine.accountant.history = [(1.1, 0.01, 40)]
    other = PrivacyEngine()
    other.restore(engine.state())
    assert other.get_epsilon(1e-5) == engine.get_epsilon(1e-5)
    other.accountant.step(noise_multiplier=1.1, sample_rate=0.01)
    assert other.accountant.history == [(1.1, 0.01, 41)]
    with pytest.raises(PrivacyError, match="another accountant"):
        PrivacyEngine(accountant="prv").restore(engine.state())


@pytest.mark.parametrize("mode", ["fast", "hooks"])
def test_a_checkpoint_holds_everything_and_no_pickle(tmp_path: Path, mode: str) -> None:
    module, features, labels = small_table()
    engine = PrivacyEngine()
    parts = made_private(
        module, features, labels, engine=engine, grad_sample_mode=mode, lr=0.1, noise_multiplier=1.0
    )
    one_epoch(*parts)
    path = tmp_path / "checkpoint.safetensors"
    engine.save_checkpoint(path=path, module=parts[0], optimizer=parts[1])
    assert b"_module" not in path.read_bytes()
    other, fresh = PrivacyEngine(), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(fresh.parameters(), lr=9.0)
    other.load_checkpoint(path=path, module=fresh, optimizer=optimizer)
    assert other.accountant.history == [(1.0, 1.0, 1)]
    assert optimizer.param_groups[0]["lr"] == 0.1
    torch.testing.assert_close(list(fresh.parameters()), list(module.parameters()))
    with pytest.raises(PrivacyError, match="another model"):
        other.load_checkpoint(path=path, module=nn.Linear(5, 1))
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(PrivacyError, match="cannot be read"):
        other.load_checkpoint(path=path, module=fresh)


def test_loading_weights_into_the_wrapped_module_breaks_no_hook() -> None:
    for mode in MODES:
        module, features, labels = small_table()
        start = {name: value.clone() for name, value in module.state_dict().items()}
        expected = reference_sum(module, squared_error, features, labels, 1.0)
        parts = made_private(module, features, labels, grad_sample_mode=mode)
        one_epoch(*parts)
        module.load_state_dict(start)
        torch.testing.assert_close(
            sum_of_epoch(module, parts), flat(expected), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_the_wrapped_module_have_the_names_of_the_model(mode: str) -> None:
    module, features, labels = small_table()
    start = {name: value.clone() for name, value in module.state_dict().items()}
    expected = reference_sum(module, squared_error, features, labels, 1.0)
    engine = PrivacyEngine()
    parts = made_private(module, features, labels, engine=engine, grad_sample_mode=mode)
    one_epoch(*parts)
    assert list(parts[0].state_dict()) == list(start)
    for weights in (start, {f"_module.{name}": value for name, value in start.items()}):
        parts[0].load_state_dict(weights)
        torch.testing.assert_close(
            sum_of_epoch(module, parts), flat(expected), rtol=1e-4, atol=1e-4
        )
    again = made_private(parts[0], features, labels, engine=engine, grad_sample_mode=mode)[0]
    assert list(again.state_dict()) == list(start)
    with pytest.raises(RuntimeError, match="Unexpected"):
        parts[0].load_state_dict({**start, "other": torch.zeros(1)})
