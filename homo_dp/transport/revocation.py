"""Keys that are no longer trusted: a text file that both sides check, also while a run goes on."""

import logging
import os
import re
import time
from pathlib import Path
from typing import Final

from homo_dp.core.errors import InputError, MessageError, one_line
from homo_dp.transport.keys import PUBLIC_MARK, PublicKey, parse_public_line

log = logging.getLogger(__name__)

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{32}")
_MAX_BYTES: Final = 1 << 20
_LOOK: Final = 1.0  # seconds between two looks at the file


class RevokedKeys:
    """The list in a file: one public line or one fingerprint a line; text after `#` is a remark.

    Guarantees:
        - a list that cannot be read at the start is an error, and one that goes away later stays in
          force;
        - a change of the file counts within a second, without a restart;
        - a key is known again under another name or date: either half of it is enough.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._halves: frozenset[bytes] = frozenset()
        self._fingerprints: frozenset[str] = frozenset()
        self._state: tuple[int, int, int] | None = None
        self._looked = 0.0
        self._told = ""
        self._load()

    def check(self, key: PublicKey) -> None:
        """Refuse a key that is on the list."""
        if time.monotonic() - self._looked > _LOOK:
            self._look()
        halves = {key.raw[:32], key.raw[32:]}
        if halves & self._halves or key.fingerprint.replace(" ", "") in self._fingerprints:
            raise MessageError(
                f"key of {key.name!r} was revoked ({self._path}): exchange a new line with it "
                "(docs/keys.md)"
            )

    def _look(self) -> None:
        try:
            self._load()
        except InputError as error:
            if str(error) != self._told:
                self._told = str(error)
                log.warning("%s; the list as it was stays in force", one_line(error))

    def _load(self) -> None:
        self._looked = time.monotonic()
        try:
            status = os.stat(self._path)
            state = status.st_mtime_ns, status.st_size, status.st_ino
            if state == self._state:
                return
            with open(self._path, encoding="utf-8") as file:
                text = file.read(_MAX_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise InputError(
                f"transport.revoked_keys={self._path}: cannot be read: {why}"
            ) from None
        self._halves, self._fingerprints = parse_revoked(text, str(self._path))
        self._state, self._told = state, ""


def add_revoked(path: Path, key: PublicKey, why: str = "") -> bool:
    """Add a key to the list in `path`; whether it was not there. What is there stays as it is."""
    if path.exists():
        try:
            RevokedKeys(path).check(key)
        except MessageError:
            return False
    remark = f"  # {one_line(why)}" if why else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+", encoding="utf-8") as file:
            file.seek(0)
            before = file.read()
            file.write(
                ("" if before.endswith("\n") or not before else "\n") + key.line + remark + "\n"
            )
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; choose another --list"
        ) from None
    return True


def parse_revoked(
    text: str, where: str = "revoked keys"
) -> tuple[frozenset[bytes], frozenset[str]]:
    """Halves of public keys, and fingerprints, in the text of a list; InputError names the line
    that is neither.

    >>> parse_revoked("0123 4567 89ab cdef 0123 4567 89ab cdef  # stolen laptop")[1]
    frozenset({'0123456789abcdef0123456789abcdef'})
    """
    if len(text) > _MAX_BYTES:
        raise InputError(f"{where}: has more than {_MAX_BYTES} bytes: keep one line a key")
    halves: set[bytes] = set()
    fingerprints: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        joined = "".join(entry.split()).lower()
        if entry.startswith(PUBLIC_MARK):
            raw = parse_public_line(entry, f"{where}, line {number}").raw
            halves |= {raw[:32], raw[32:]}
        elif _FINGERPRINT.fullmatch(joined):
            fingerprints.add(joined)
        elif entry:
            raise InputError(
                f"{where}, line {number}: is neither a public line nor a fingerprint of 32 digits: "
                "use `python -m homo_dp.keys revoke`"
            )
    return frozenset(halves), frozenset(fingerprints)
