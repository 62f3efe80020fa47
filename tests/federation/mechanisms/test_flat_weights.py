"""Weights as one vector: what is clipped together, and what has no place in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from homo_dp.federation.mechanisms.flat_weights import Layout, check_module, check_public
from homo_dp.privacy.errors import PrivacyError

WEIGHTS = {
    "w": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor(7.0, dtype=torch.float64),
    "n": torch.tensor(3),
}


def test_there_and_back() -> None:
    layout = Layout.of(WEIGHTS, {"n"})
    vector = layout.flatten(WEIGHTS)
    assert (layout.size, vector.dtype) == (7, torch.float64)
    back = layout.unflatten(vector)
    assert set(back) == {"w", "b"}
    assert all(
        torch.equal(back[name], WEIGHTS[name]) and back[name].dtype == WEIGHTS[name].dtype
        for name in back
    )


def test_views_of_many_users_share_their_memory() -> None:
    layout = Layout.of({"w": torch.zeros(2, 2), "b": torch.zeros(1)})
    rows = torch.zeros(3, 5)
    views = layout.views(rows)
    views["w"][1].fill_(1)
    assert rows[1].tolist() == [1, 1, 1, 1, 0]
    assert views["b"].shape == (3, 1)


def test_only_floats_are_noised() -> None:
    with pytest.raises(PrivacyError, match="cannot be clipped and noised"):
        Layout.of(WEIGHTS)
    with pytest.raises(PrivacyError, match="no such tensor"):
        check_public(WEIGHTS, {"absent"})


def test_state_beside_trained_weights_must_be_declared() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(PrivacyError, match="running_mean: is a buffer"):
        check_module(
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)),
            {"1.num_batches_tracked"},
        )
    public = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    check_module(model, public)
    model[0].weight.requires_grad_(False)
    with pytest.raises(PrivacyError, match="frozen weight"):
        check_module(model, public)
    with pytest.raises(PrivacyError, match="is trained on data"):
        check_module(nn.Linear(2, 2), {"weight"})
