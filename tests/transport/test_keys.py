"""Key files: private, never overwritten, readable lines; and the command that makes them."""

import os
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import pytest

from homo_dp.core.errors import InputError, MessageError, Undeliverable
from homo_dp.transport.directory import DirectoryTransport
from homo_dp.transport.keys import (
    KeyPair,
    accept_renewal,
    allow_list,
    new_key_pair,
    parse_public_line,
    read_key_pair,
    read_public_key,
    renewal_line,
    write_key_pair,
)
from homo_dp.transport.revocation import RevokedKeys, add_revoked, parse_revoked
from homo_dp.transport.sealing import Sealer, open_sealed, seal
from tests.transport.parts import update, weights


def test_files_come_back_and_the_private_one_is_private(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        pair = new_key_pair("bank_a")
        private, public = write_key_pair(pair, tmp_path / "keys")
    finally:
        os.umask(previous)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert read_key_pair(private) == pair
    assert read_public_key(public) == pair.public
    assert str(pair.raw) not in repr(pair)
    assert pair.raw.hex() not in repr(pair)


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    write_key_pair(new_key_pair("a"), tmp_path)
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(InputError, match="exists"):
        write_key_pair(new_key_pair("a"), tmp_path)
    assert (tmp_path / "a.key").read_bytes() == before
    (tmp_path / "b.pub").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        write_key_pair(new_key_pair("b"), tmp_path)
    assert not (tmp_path / "b.key").exists()
    (tmp_path / "c.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="exists"):
        write_key_pair(new_key_pair("c"), tmp_path)


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    private, public = write_key_pair(new_key_pair("a"), tmp_path)
    private.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        read_key_pair(private)
    public.chmod(0o600)
    with pytest.raises(InputError, match="is not a private key"):
        read_key_pair(public)
    with pytest.raises(InputError, match=f"does not exist.* new none --dir {tmp_path}`"):
        read_key_pair(tmp_path / "none.key")
    # who made it here would replace it
    with pytest.raises(InputError, match=r"does not exist.*from the other side"):
        read_public_key(tmp_path / "none.pub")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519 AAAA",
        "homo_dp-key-v2 a " + "A" * 88,
        "homo_dp-key-v1 a AAAA",
        "homo_dp-key-v1 ../a " + "A" * 88,
        "homo_dp-key-v1 a " + "?" * 88,
        "homo_dp-key-v1 a " + "ä" * 88,
        "homo_dp-key-v1 a A A",
    ],
)
def test_damaged_lines_are_refused(line: str) -> None:
    with pytest.raises(InputError):
        parse_public_line(line)


def test_the_allow_list_keeps_names_and_keys_apart() -> None:
    a, b = new_key_pair("a").public, new_key_pair("b").public
    assert allow_list([a, b]) == {"a": a, "b": b}
    for name in ("a", "A"):
        with pytest.raises(InputError, match="twice"):
            allow_list([a, new_key_pair(name).public])
    with pytest.raises(InputError, match="two names"):
        allow_list([a, parse_public_line(a.line.replace(" a ", " c "))])


def test_tags_are_stable_and_differ_between_holders() -> None:
    a, b = new_key_pair("a"), new_key_pair("b")
    assert a.tag("x") == a.tag("x") != a.tag("y")
    assert a.tag("x") != b.tag("x")


TODAY = date(2099, 3, 1)


@pytest.fixture
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real day may end between two lines of a test."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(TODAY.year, TODAY.month, TODAY.day, 23, 59, 59, tzinfo=tz)

    monkeypatch.setattr("homo_dp.transport.keys.datetime", Clock)


@pytest.mark.usefixtures("_today")
def test_a_key_is_believed_until_its_day_and_no_longer() -> None:
    last = new_key_pair("a", TODAY)
    assert last.public.line.endswith(f" expires={TODAY}")
    assert parse_public_line(last.public.line) == last.public
    last.public.check_date()
    old = new_key_pair("a", TODAY - timedelta(days=1))
    with pytest.raises(MessageError, match="expired on"):
        old.public.check_date()
    with pytest.raises(MessageError, match="expired on"):
        open_sealed(seal(b"x", "demo", old, last.public), last, {"a": old.public})
    for wrong in ("2027-13-01", "20271231", "tomorrow", "2027-1-1", ""):
        with pytest.raises(InputError):
            parse_public_line(f"{new_key_pair('a').public.line} expires={wrong}")


def test_the_day_is_part_of_the_fingerprint_and_of_the_private_file(tmp_path: Path) -> None:
    pair = new_key_pair("a", TODAY)
    assert replace(pair, expires=None).public.fingerprint != pair.public.fingerprint
    private, public = write_key_pair(pair, tmp_path)
    assert (read_key_pair(private), read_public_key(public)) == (pair, pair.public)


def test_a_renewal_is_believed_only_if_both_keys_signed_it() -> None:
    old, new, thief = new_key_pair("a"), new_key_pair("a"), new_key_pair("a")
    line = renewal_line(old, new)
    assert accept_renewal(line, old.public) == new.public
    forged = (
        renewal_line(thief, new),
        line.replace(new.public.line, thief.public.line),
        line + " expires=2999-01-01",
        renewal_line(old, new_key_pair("b")),
        line.replace("renewal-v1 ", "renewal-v1 AAAA"),
        new.public.line,
        "",
    )
    for wrong in forged:
        with pytest.raises(InputError):
            accept_renewal(wrong, old.public)


def test_a_revoked_key_is_refused_at_once_and_under_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homo_dp.transport.revocation._LOOK", 0.0)
    a, b, path = new_key_pair("a").public, new_key_pair("b").public, tmp_path / "revoked"
    path.write_text("# nobody yet\n\n")
    revoked = RevokedKeys(path)
    revoked.check(a)
    assert add_revoked(path, a, "stolen\nlaptop")
    assert not add_revoked(path, a)
    for key in (
        a,
        replace(a, name="c"),
        replace(a, expires=TODAY),
        replace(a, raw=a.raw[:32] + b.raw[32:]),
    ):
        with pytest.raises(MessageError, match="revoked"):
            revoked.check(key)
    revoked.check(b)
    path.write_text(path.read_text() + b.fingerprint)
    with pytest.raises(MessageError, match="revoked"):
        revoked.check(b)


def test_a_list_that_cannot_be_read_is_an_error_at_the_start_and_stays_in_force_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("homo_dp.transport.revocation._LOOK", 0.0)
    path, key = tmp_path / "revoked", new_key_pair("a").public
    with pytest.raises(InputError, match="cannot be read"):
        RevokedKeys(path)
    add_revoked(path, key)
    revoked = RevokedKeys(path)
    for damage in (lambda: path.write_text("what is this?"), path.unlink):
        damage()
        for _ in range(2):
            with pytest.raises(MessageError, match="revoked"):
                revoked.check(key)
    assert len(caplog.records) == 2
    for text in ("what is this?", "homo_dp-key-v1 a AAAA", "0123 4567", "x" * 2_000_000):
        with pytest.raises(InputError):
            parse_revoked(text)


def test_a_key_changes_in_the_middle_of_a_run_with_both_sides_consent(tmp_path: Path) -> None:
    """What was sealed to or by the old key is dropped; both sides say again, under the new one,
    what they said.
    """
    aggregator, old, new = (
        new_key_pair("aggregator"),
        new_key_pair("bank_a"),
        new_key_pair("bank_a"),
    )

    def ends(pair: KeyPair) -> tuple[DirectoryTransport, DirectoryTransport]:
        sealers = (
            Sealer(aggregator, {"bank_a": pair.public}),
            Sealer(pair, {"aggregator": aggregator.public}),
        )
        return DirectoryTransport(tmp_path, "demo", sealers[0]), DirectoryTransport(
            tmp_path, "demo", sealers[1]
        )

    here, there = ends(old)
    here.send(weights(round=1))
    there.send(update(round=1))
    here, there = ends(accepted_pair(old, new))
    assert here.receive(0) is None
    assert there.receive(0) is None
    here.send(weights(round=1))
    there.send(update(round=1))
    for end in (here, there):
        message = end.receive(0)
        assert message is not None
        assert message.round == 1


def accepted_pair(old: KeyPair, new: KeyPair) -> KeyPair:
    assert accept_renewal(renewal_line(old, new), old.public) == new.public
    return new


def test_nothing_is_sealed_to_a_revoked_key(tmp_path: Path) -> None:
    aggregator, party = new_key_pair("aggregator"), new_key_pair("bank_a")
    add_revoked(tmp_path / "revoked", party.public)
    end = Sealer(aggregator, {"bank_a": party.public})
    sealed = b"".join(Sealer(party, {"aggregator": aggregator.public}).seal(update()).pieces)
    assert end.open_bytes(sealed).round == 1
    end.revoked = RevokedKeys(tmp_path / "revoked")
    with pytest.raises(Undeliverable, match="revoked"):
        end.seal(weights())
    with pytest.raises(MessageError, match="revoked"):
        end.open_bytes(sealed)


def keys(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "homo_dp.keys", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
