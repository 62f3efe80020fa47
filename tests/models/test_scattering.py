"""Fixed image features: every row has the same norm, and a saved model makes them itself."""

from pathlib import Path

import numpy as np
import torch

import homo_dp
from homo_dp.models.scattering import Scattering, feature_count

GOLDEN = [-0.083999, 3.66e-05, 0.3285392, 0.0331648, 0.0648598, 0.0422215, 0.0795106]


def test_features_are_those_that_kept_models_were_trained_on() -> None:
    """Golden values, from the version that introduced this model: a changed feature spoils every
    saved model.
    """
    ramp = torch.linspace(-1, 1, 784).reshape(1, 1, 28, 28)
    rows = Scattering((1, 28, 28))(ramp * torch.linspace(0.2, 1, 28))[0]
    assert len(rows) == feature_count((1, 28, 28)) == 833
    assert torch.allclose(rows[[0, 24, 48, 49, 300, 600, 832]], torch.tensor(GOLDEN), atol=1e-6)


def test_a_saved_model_scores_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "a.npz",
        x=rng.integers(0, 255, (40, 16, 16), dtype=np.uint8),
        y=np.arange(40) % 2,
    )
    settings = {
        "data.files.a": str(tmp_path / "a.npz"),
        "data.classes": [0, 1],
        "model.name": "scattering",
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
    }
    result = homo_dp.fit(epsilon=20, settings=settings, output=tmp_path / "out", progress=False)
    loaded = homo_dp.load(tmp_path / "out" / "model.safetensors")
    images = torch.rand(3, 1, 16, 16)
    assert torch.allclose(loaded.module(images), result.model.module(images))
