"""Keys that are trusted no more: known by either half and by fingerprint, while a run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homo_dp.core.errors import InputError, MessageError
from homo_dp.transport import revocation
from homo_dp.transport.keys import new_key_pair
from homo_dp.transport.revocation import RevokedKeys, add_revoked, parse_revoked


def test_a_listed_key_is_refused_under_any_name(tmp_path: Path) -> None:
    path, key, other = tmp_path / "revoked", new_key_pair("a").public, new_key_pair("b").public
    assert add_revoked(path, key, "stolen")
    assert not add_revoked(path, key)
    keys = RevokedKeys(path)
    keys.check(other)
    for known in (key, replace(key, name="c"), replace(key, raw=key.raw[:32] + other.raw[32:])):
        with pytest.raises(MessageError, match="was revoked"):
            keys.check(known)


def test_a_fingerprint_is_enough(tmp_path: Path) -> None:
    key = new_key_pair("a").public
    (tmp_path / "revoked").write_text(f"{key.fingerprint}  # by telephone\n\n# a remark\n")
    with pytest.raises(MessageError, match="was revoked"):
        RevokedKeys(tmp_path / "revoked").check(key)


def test_a_change_counts_and_a_lost_list_stays_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "_LOOK", -1.0)
    path, key = tmp_path / "revoked", new_key_pair("a").public
    path.write_text("")
    keys = RevokedKeys(path)
    keys.check(key)
    add_revoked(path, key)
    with pytest.raises(MessageError):
        keys.check(key)
    path.unlink()
    with pytest.raises(MessageError):
        keys.check(key)


def test_what_is_not_a_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        RevokedKeys(tmp_path / "absent")
    with pytest.raises(InputError, match="line 2"):
        parse_revoked("# fine\nnot a key\n")
