"""The smooth part of a second-order scattering: what it keeps, what it does not see, and that it
is kept by name.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import homo_dp
from homo_dp.models.fixed_features import front_end
from homo_dp.models.second_order_scattering import (
    SecondOrderScattering,
    _cosines,
    _fourier,
    _series,
    feature_count,
)


def test_the_series_only_turn_maps() -> None:
    """Both are orthonormal, so a full series has the length of the maps."""
    directions, places, kept = _series((1, 28, 28))
    # 81 maps and 49 places, filled up with zeros
    assert (directions.shape, places.shape) == ((96, 96), (64, 64))
    for basis in (
        directions[:81, :81],
        places[:49, :49],
        _fourier(8)[0].float(),
        _cosines(5).float(),
    ):
        assert torch.allclose(basis @ basis.t(), torch.eye(len(basis)), atol=1e-5)
    assert not any(
        part.any() for part in (directions[81:], directions[:, 81:], places[49:], places[:, 49:])
    )
    assert len(kept) == len(set(kept.tolist())) == 800
    # the means of means, of fine edges and of edges of edges
    assert {0, 64, 17 * 64} <= set(kept.tolist())
    assert int((kept % 64).max()) < 49


def test_brightness_and_contrast_do_not_count() -> None:
    front, image = SecondOrderScattering((1, 28, 28)), torch.rand(1, 1, 28, 28)
    assert torch.allclose(front(image), front(0.5 * image - 0.3), atol=0.05)
    assert not torch.allclose(front(image), front(image.flip(2)), atol=0.05)


def test_a_flat_image_has_no_border() -> None:
    """Beyond its border an image goes on as it ends: zeros there would be an edge around every
    dark image.
    """
    assert SecondOrderScattering((1, 28, 28))(torch.full((1, 1, 28, 28), -1.0)).abs().max() < 1e-2


@pytest.mark.parametrize(
    ("shape", "count"), [((1, 16, 16), 800), ((1, 4, 4), 81), ((3, 4, 9), 486), ((1, 99, 224), 800)]
)
def test_images_of_any_size_have_features(shape: tuple[int, int, int], count: int) -> None:
    assert SecondOrderScattering(shape)(torch.rand(2, *shape)).shape == (2, count)
    assert feature_count(shape) == count


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
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
    }
    result = homo_dp.fit(epsilon=20, settings=settings, output=tmp_path / "out", progress=False)
    assert isinstance(front_end(result.model.module), SecondOrderScattering)
    loaded = homo_dp.load(tmp_path / "out" / "model.safetensors")
    images = torch.rand(3, 1, 16, 16)
    assert torch.allclose(loaded.module(images), result.model.module(images))
