"""Key pairs of parties and aggregator: one line each, so that they can be exchanged by mail and
read by people.
"""

import base64
import binascii
import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from homo_dp.core.errors import InputError, MessageError
from homo_dp.federation.protocol.ids import check_id

PUBLIC_MARK: Final = "homo_dp-key-v1"
PRIVATE_MARK: Final = "homo_dp-private-key-v1"
RENEWAL_MARK: Final = "homo_dp-renewal-v1"
_EXPIRES: Final = "expires="


@dataclass(frozen=True)
class PublicKey:
    """What others may know of `name`: a key to check its signatures and a key to encrypt to it."""

    name: str
    raw: bytes  # 32 bytes Ed25519, 32 bytes X25519
    expires: date | None = None  # the last day (UTC) on which it is believed

    def check_date(self) -> None:
        """Refuse a key after its last day."""
        if self.expires is not None and datetime.now(UTC).date() > self.expires:
            raise MessageError(
                f"key of {self.name!r} expired on {self.expires}: exchange a new line "
                "(docs/keys.md)"
            )

    @cached_property
    def verifier(self) -> Ed25519PublicKey:
        """Checks signatures of `name`."""
        return Ed25519PublicKey.from_public_bytes(self.raw[:32])

    @cached_property
    def receiver(self) -> X25519PublicKey:
        """Encrypts to `name`."""
        return X25519PublicKey.from_public_bytes(self.raw[32:])

    @property
    def line(self) -> str:
        """The line to give to the other side."""
        return _line(PUBLIC_MARK, self.name, self.raw, self.expires)

    @property
    def fingerprint(self) -> str:
        """Eight groups to compare by telephone."""
        digest = hashlib.sha256(self.line.encode()).hexdigest()[:32]
        return " ".join(digest[start : start + 4] for start in range(0, 32, 4))


@dataclass(frozen=True)
class KeyPair:
    """The keys that only `name` holds; never printed, never sent."""

    name: str
    raw: bytes = field(repr=False)  # 32 bytes Ed25519, 32 bytes X25519
    expires: date | None = None

    @cached_property
    def signer(self) -> Ed25519PrivateKey:
        """Signs as `name`."""
        return Ed25519PrivateKey.from_private_bytes(self.raw[:32])

    @cached_property
    def opener(self) -> X25519PrivateKey:
        """Opens what was encrypted to `name`."""
        return X25519PrivateKey.from_private_bytes(self.raw[32:])

    @cached_property
    def public(self) -> PublicKey:
        """The public half."""
        raw = (
            self.signer.public_key().public_bytes_raw()
            + self.opener.public_key().public_bytes_raw()
        )
        return PublicKey(self.name, raw, self.expires)

    def tag(self, content: str) -> str:
        """A name for `content` that is the same each time and tells nobody else anything about
        it.
        """
        key = hashlib.sha256(b"homo_dp tag v1\0" + self.raw).digest()
        return hmac.new(key, content.encode(), hashlib.sha256).hexdigest()[:32]


def new_key_pair(name: str, expires: date | None = None) -> KeyPair:
    """A fresh key pair from the operating system's randomness.

    >>> pair = new_key_pair("bank_a")
    >>> parse_public_line(pair.public.line) == pair.public
    True
    """
    try:
        check_id("NAME", name)
    except MessageError as error:
        raise InputError(str(error)) from None
    signer, opener = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    return KeyPair(name, signer.private_bytes_raw() + opener.private_bytes_raw(), expires)


def write_key_pair(pair: KeyPair, directory: Path, stem: str | None = None) -> tuple[Path, Path]:
    """Write NAME.key (mode 0600) and NAME.pub, or `stem` in place of NAME; files that exist are
    never touched.
    """
    stem = stem or pair.name
    private, public = directory / f"{stem}.key", directory / f"{stem}.pub"
    for path in (private, public):
        if os.path.lexists(path):
            raise InputError(
                f"{path} exists: choose another NAME or --dir, or move the old key away yourself"
            )
    _create(private, _line(PRIVATE_MARK, pair.name, pair.raw, pair.expires) + "\n", 0o600)
    try:
        _create(public, pair.public.line + "\n", 0o644)
    except InputError:
        private.unlink(missing_ok=True)
        raise
    return private, public


def read_key_pair(path: Path) -> KeyPair:
    """The private key file `path`; refused if others may read it."""
    text, mode = _read(
        path, f"make it with `python -m homo_dp.keys new {path.stem} --dir {path.parent}`"
    )
    if text.startswith(f"{PUBLIC_MARK} "):
        raise InputError(
            f"{path} is not a private key but a public one: give {path.with_suffix('.key')}, which "
            "stays with its owner"
        )
    pair = KeyPair(*_parse(text.strip(), PRIVATE_MARK, str(path)))
    if mode & 0o077:
        raise InputError(
            f"{path} has mode {mode:04o}, allowed 0600: run `chmod 600 {path}`; if others saw it, "
            "renew it"
        )
    return pair


def read_public_key(path: Path) -> PublicKey:
    """The public key file `path`."""
    text, _ = _read(
        path,
        f"get it from the other side, where `python -m homo_dp.keys new {path.stem}` makes it",
    )
    return parse_public_line(text.strip(), str(path))


def parse_public_line(line: str, where: str = "public key") -> PublicKey:
    """The public key in one exchanged line."""
    return PublicKey(*_parse(line, PUBLIC_MARK, where))


def retire(private: Path) -> Path:
    """Move a key file and its public half out of the way of a new one; where the private one is
    now.
    """
    number = 1
    while os.path.lexists(private.with_name(f"{private.name}.old-{number}")):
        number += 1
    moved = private.with_name(f"{private.name}.old-{number}")
    try:
        os.rename(private, moved)
        public = private.with_suffix(".pub")
        if public.exists():
            os.rename(public, public.with_name(f"{public.name}.old-{number}"))
    except OSError as error:
        raise InputError(f"{private} cannot be moved: {error.strerror}; check its folder") from None
    return moved


def renewal_line(old: KeyPair, new: KeyPair) -> str:
    """A line by which the holder of the `old` key names the `new` one as its own; both keys sign
    it.
    """
    signed = _renewal(old.public, new.public)
    signatures = base64.b64encode(old.signer.sign(signed) + new.signer.sign(signed)).decode()
    return f"{RENEWAL_MARK} {signatures} {new.public.line}"


def accept_renewal(line: str, old: PublicKey) -> PublicKey:
    """The new key in a renewal line that the `old` one signed; else InputError.

    >>> old, new = new_key_pair("bank_a"), new_key_pair("bank_a")
    >>> accept_renewal(renewal_line(old, new), old.public) == new.public
    True
    """
    fields = line.split(maxsplit=2)
    if len(fields) != 3 or fields[0] != RENEWAL_MARK:
        raise InputError(
            f"this is not a renewal: wants the line `{RENEWAL_MARK} ...` of `python -m "
            "homo_dp.keys renew`"
        )
    new = parse_public_line(fields[2], "renewal")
    signed = _renewal(old, new)
    try:
        signatures = base64.b64decode(fields[1], validate=True)
        old.verifier.verify(signatures[:64], signed)
        new.verifier.verify(signatures[64:], signed)
    except (InvalidSignature, ValueError):
        raise InputError(
            f"renewal of {new.name!r} is not signed by the key {old.fingerprint} of {old.name!r}: "
            "compare fingerprints with the sender by another way"
        ) from None
    if new.name != old.name:
        raise InputError(
            f"renewal is by {new.name!r}, the old key is that of {old.name!r}: take the right line"
        )
    return new


def _renewal(old: PublicKey, new: PublicKey) -> bytes:
    return b"homo_dp renewal v1\0" + old.raw + b"\0" + new.line.encode()


def allow_list(keys: Iterable[PublicKey]) -> dict[str, PublicKey]:
    """Public keys by name; one name, one key, and no key under two names."""
    listed: dict[str, PublicKey] = {}
    for key in keys:
        if key.name.lower() in (name.lower() for name in listed):
            raise InputError(
                f"public key of {key.name!r} is listed twice (A and a are one): keep one line a "
                "name"
            )
        listed[key.name] = key
    if len({key.raw for key in listed.values()}) != len(listed):
        raise InputError(
            "one public key is listed under two names: each party needs its own `homo_dp.keys new`"
        )
    return listed


def _line(mark: str, name: str, raw: bytes, expires: date | None) -> str:
    text = f"{mark} {name} {base64.b64encode(raw).decode()}"
    return text if expires is None else f"{text} {_EXPIRES}{expires.isoformat()}"


def parse_expiry(text: str) -> date:
    """A day as YYYY-MM-DD."""
    try:
        if len(text) != 10:
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"expires={text[:40]!r} is not a day: write YYYY-MM-DD, such as 2027-12-31"
        ) from None


def _parse(line: str, mark: str, where: str) -> tuple[str, bytes, date | None]:
    fields = line.split()
    dated = len(fields) == 4 and fields[3].startswith(_EXPIRES)
    if (len(fields) != 3 and not dated) or fields[0] != mark:
        kind = "private" if mark == PRIVATE_MARK else "public"
        raise InputError(
            f"{where} is not a {kind} key: wants one line `{mark} NAME BASE64` of `python -m "
            "homo_dp.keys new`"
        )
    try:
        check_id("NAME", fields[1])
        raw = base64.b64decode(fields[2], validate=True)
    except MessageError as error:
        raise InputError(f"{where}: {error}") from None
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 64:
        raise InputError(
            f"{where}: the key of {fields[1]!r} is cut or damaged: copy the whole line again"
        )
    return fields[1], raw, parse_expiry(fields[3].removeprefix(_EXPIRES)) if dated else None


def _read(path: Path, without: str) -> tuple[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(4096), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: {without}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise InputError(
            f"{path} cannot be read: {why}; name a key file that this user may read"
        ) from None


def _create(path: Path, text: str, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL and the mode in one call: at no time is there a file that others could read or that
        # is replaced.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; choose another --dir or make room there"
        ) from None
