"""Pictures of sweeps: nothing at their left edge is cut off."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from homo_dp.tracking.report.sweep_plots import key_picture


def test_long_numbers_leave_the_title_of_the_left_axis_on_the_picture() -> None:
    key = "privacy.max_grad_norm"
    results = [
        {"values": {key: norm}, "test_acc": 0.9123 + 0.0003 * norm, "epsilon": 3.0}
        for norm in (0.1, 1.0, 3.0)
    ]
    picture = np.asarray(Image.open(io.BytesIO(key_picture(key, results))).convert("L"))
    dark = picture < 250
    assert not dark[:, :3].any()  # a margin
    assert dark[:, 3:25].any()  # and then the title
