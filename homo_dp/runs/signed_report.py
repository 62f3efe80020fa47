"""A detached signature of a report: a file beside it by which whoever has the party's public key
can check it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from homo_dp.core.errors import InputError
from homo_dp.core.files import write_whole
from homo_dp.core.untrusted_text import Foreign
from homo_dp.transport.keys import KeyPair, PublicKey, parse_public_line

FORMAT = "homo_dp-report-signature-v1"


def signature_path(report: str) -> Path:
    """``report.html`` -> ``report.html.sig``."""
    return Path(f"{report}.sig")


def sign_report(report: str, key: KeyPair) -> Path:
    """Sign the bytes of a report (Ed25519) and write the signature beside it."""
    digest = hashlib.sha256(Path(report).read_bytes()).hexdigest()
    signature = base64.b64encode(key.signer.sign(_signed(digest))).decode()
    content = {
        "format": FORMAT,
        "public_key": key.public.line,
        "sha256": digest,
        "signature": signature,
    }
    path = signature_path(report)
    write_whole(path, json.dumps(content).encode() + b"\n", "--key")
    return path


def check_report(report: str, trusted: PublicKey | None) -> list[tuple[bool, str]]:
    """What is found about the signature of a report; ``trusted`` is the key that the checker has
    from elsewhere.
    """
    path = signature_path(report)
    file = Foreign(str(path), "ask for the signature again", InputError)
    try:
        found: Any = file.json(file.read(path))
        digest = hashlib.sha256(Path(report).read_bytes()).hexdigest()
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename}: no such file; a signed report has a .sig file beside it"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(
            f"{path}: is not the signature of a report; give the one that came with it"
        )
    key = parse_public_line(str(found.get("public_key")), str(path))
    try:
        key.verifier.verify(
            base64.b64decode(str(found.get("signature")), validate=True), _signed(digest)
        )
        findings = [
            (True, f"signed by {key.name}, fingerprint {key.fingerprint}; not a byte has changed")
        ]
    except (InvalidSignature, ValueError):
        findings = [
            (False, f"the signature of {key.name} is not of these bytes: the report was changed")
        ]
    if trusted is None:
        findings.append((True, "whose key this is was not checked: give --key FILE.pub"))
    else:
        same = trusted.line == key.line
        findings.append(
            (
                same,
                "the key is the one given" if same else "the key is NOT the one given with --key",
            )
        )
    return findings


def _signed(digest: str) -> bytes:
    return f"{FORMAT}\n{digest}".encode()
