"""Front ends without weights: an image's features have the same bits wherever the image stands."""

import pytest
import torch

from homo_dp.config.model import IMAGE_FEATURES, ModelConfig
from homo_dp.core.errors import ConfigError
from homo_dp.models.fixed_features import front_end, trained_part
from homo_dp.models.registry import FRONT_ENDS, build_model
from homo_dp.models.second_order_scattering import SecondOrderScattering

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 17, 40), (1, 14, 14), (3, 12, 12), (1, 9, 13), (3, 4, 28)]


@pytest.mark.parametrize("name", IMAGE_FEATURES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_an_image_depend_on_no_other_image(name: str, shape: tuple[int, int, int]) -> None:
    """One image less moves all others by a place, and must not move a bit of them
    (docs/adr/0015).
    """
    front = FRONT_ENDS[name](shape)
    images = torch.rand(150, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    together = front(images)
    for first, last in ((0, 1), (5, 150), (77, 140), (149, 150)):
        assert torch.equal(front(images[first:last]), together[first:last])
    order = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    assert torch.equal(front(images[order]), together[order])


@pytest.mark.parametrize("shape", [(1, side, side) for side in range(8, 33)])
def test_smooth_features_are_taken_in_pieces_for_every_size(shape: tuple[int, int, int]) -> None:
    """Rounding by place was seen for sides of 12 to 15: products are filled up, so that no size
    is left to it.
    """
    assert FRONT_ENDS["scattering2"](shape)._at_once() > 1


def test_images_are_taken_one_by_one_where_a_place_decides_how_they_are_rounded() -> None:
    class Rounding(SecondOrderScattering):
        def rows_of(self, images: torch.Tensor) -> torch.Tensor:
            places = torch.arange(len(images)).reshape(-1, 1) % 4
            return super().rows_of(images) * (1 + places * 1e-6)

    front, images = Rounding((1, 16, 16)), torch.rand(7, 1, 16, 16)
    assert torch.equal(front(images)[3:], front(images[3:]))


@pytest.mark.parametrize("name", IMAGE_FEATURES)
def test_rows_have_the_norm_that_the_rules_go_by(name: str) -> None:
    front = FRONT_ENDS[name]((1, 28, 28))
    bright = torch.tensor([1.0, 0.1, 0.5, 0.05, 1.0]).reshape(5, 1, 1, 1)
    rows = front((torch.rand(5, 1, 28, 28) * 2 - 1) * bright)
    assert rows.shape == (5, front.features)
    assert torch.allclose(rows.square().sum(1), torch.full((5,), front.row_square), atol=1e-3)
    blank = front(torch.full((1, 1, 28, 28), -1.0))
    assert blank.isfinite().all()
    assert blank.square().sum() <= front.row_square


@pytest.mark.parametrize("name", IMAGE_FEATURES)
def test_only_the_linear_layer_is_trained(name: str) -> None:
    model = build_model(ModelConfig.model_validate({"name": name}), (1, 28, 28), range(10))
    fixed = front_end(model.module)
    assert fixed is not None
    rows = fixed(torch.rand(2, 1, 28, 28))
    assert fixed(rows) is rows
    assert fixed(torch.rand(0, 1, 28, 28)).shape == (0, fixed.features)
    assert (
        set(model.module.state_dict())
        == set(trained_part(model.module).state_dict())
        == {
            "linear.weight",
            "linear.bias",
        }
    )


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least 4 x 4 pixels"):
        build_model(ModelConfig(name="scattering2"), (1, 3, 9), range(2))
