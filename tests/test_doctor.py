"""homo-dp doctor says what is missing."""

from __future__ import annotations

import pytest

from homo_dp import doctor


def test_doctor_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.main([]) == 0
    assert "secure mode" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "NEEDED", ("no-such-package",))
    assert doctor.main([]) == 2
    assert "MISSING  no-such-package" in capsys.readouterr().out
