"""Fixed image features: every row has the same norm, and a saved model makes them itself."""

from pathlib import Path

import numpy as np
import torch

import homo_dp
from homo_dp.config.model import ModelConfig
from homo_dp.models.registry import build_model
from homo_dp.models.scattering import ROW_SQUARE, Scattering, feature_count, front_end, trained_part


def test_rows_have_one_norm_whatever_the_image_is() -> None:
    images = torch.rand(5, 1, 28, 28) * 2 - 1
    rows = Scattering((1, 28, 28))(images * torch.tensor([1.0, 0.1, 0.5, 0.01, 1.0]).reshape(5, 1, 1, 1))
    assert torch.allclose(rows.square().sum(1), torch.full((5,), ROW_SQUARE), atol=1e-3)
    blank = Scattering((1, 28, 28))(torch.zeros(1, 1, 28, 28))
    assert blank.isfinite().all()
    assert blank.square().sum() <= ROW_SQUARE


def test_a_row_depends_on_its_own_image_alone() -> None:
    images = torch.rand(4, 3, 16, 16)
    together, alone = Scattering((3, 16, 16))(images), Scattering((3, 16, 16))(images[2:3])
    assert torch.allclose(together[2], alone[0], atol=1e-6)
    assert together.shape[1] == feature_count((3, 16, 16))


def test_features_pass_through_and_only_the_linear_layer_is_trained() -> None:
    model = build_model(ModelConfig(name="scattering"), (1, 28, 28), range(10))
    fixed = front_end(model.module)
    assert fixed is not None
    rows = fixed(torch.rand(2, 1, 28, 28))
    assert fixed(rows) is rows
    assert set(model.module.state_dict()) == set(trained_part(model.module).state_dict())


def test_a_saved_model_scores_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.integers(0, 255, (40, 16, 16), dtype=np.uint8), y=np.arange(40) % 2)
    settings = {
        "data.files.a": str(tmp_path / "a.npz"),
        "data.classes": [0, 1],
        "model.name": "scattering",
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
    }
    result = homo_dp.train(epsilon=20, settings=settings, output=tmp_path / "out", progress=False)
    loaded = homo_dp.load(tmp_path / "out" / "model.safetensors")
    images = torch.rand(3, 1, 16, 16)
    assert torch.allclose(loaded.module(images), result.model.module(images))
