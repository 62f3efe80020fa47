"""A detached signature: of these bytes, by this key, and nothing else."""

import json
from pathlib import Path

import pytest

from homo_dp.core.errors import InputError
from homo_dp.runs.signed_report import check_report, sign_report, signature_path
from homo_dp.transport.keys import new_key_pair


def test_a_signature_is_of_these_bytes_and_this_key(tmp_path: Path) -> None:
    report, key, other = tmp_path / "report.html", new_key_pair("bank_a"), new_key_pair("bank_b")
    report.write_text("epsilon 1")
    sign_report(str(report), key)
    assert all(good for good, _ in check_report(str(report), key.public))
    assert not all(good for good, _ in check_report(str(report), other.public))
    report.write_text("epsilon 0.1")
    assert not all(good for good, _ in check_report(str(report), key.public))


def test_a_signature_of_one_report_does_not_fit_another(tmp_path: Path) -> None:
    key = new_key_pair("bank_a")
    for name in ("a.html", "b.html"):
        (tmp_path / name).write_text(name)
        sign_report(str(tmp_path / name), key)
    signature_path(str(tmp_path / "a.html")).rename(signature_path(str(tmp_path / "b.html")))
    assert not all(good for good, _ in check_report(str(tmp_path / "b.html"), key.public))


def test_what_is_not_a_signature_is_one_line(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("x")
    with pytest.raises(InputError, match="no such file"):
        check_report(str(report), None)
    signature_path(str(report)).write_text(json.dumps({"format": "other"}))
    with pytest.raises(InputError, match="signature of a report"):
        check_report(str(report), None)
