"""A signed extract of a ledger: what a third person can check with the party's public key and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from homo_dp.core.errors import InputError
from homo_dp.core.untrusted_text import Foreign
from homo_dp.privacy.ledger import Ledger
from homo_dp.tracking.report.ledger_extract import Finding, verify_extract
from homo_dp.transport.keys import KeyPair, PublicKey, parse_public_line

FORMAT = "homo_dp-ledger-extract-v1"
_LARGEST = 200 << 20


def signed_extract(ledger: Ledger, key: KeyPair, dataset: str | None, run: str | None) -> dict[str, Any]:
    """The chosen rows of a whole, verified ledger with its head, signed (Ed25519) by the party."""
    head = ledger.verify()
    rows = [row.to_dict() for row in ledger.rows(run) if row.is_release and dataset in (None, row.dataset)]
    if not rows:
        raise InputError(f"--dataset={dataset} --run={run}: the ledger has no such release; see ledger show")
    content = {
        "format": FORMAT,
        "party": key.name,
        "public_key": key.public.line,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "chosen": {"dataset": dataset, "run": run},
        "head": {"count": head.count, "hash": head.hash},
        "rows": rows,
    }
    return {**content, "signature": base64.b64encode(key.signer.sign(_signed(content))).decode()}


def check_extract(path: Path, trusted: PublicKey | None) -> tuple[Mapping[str, Any], list[Finding]]:
    """The extract in a file and what was found; ``trusted`` is the key that the checker has from elsewhere."""
    file = Foreign(str(path), "ask the party to export it again", InputError, _LARGEST)
    try:
        found = file.json(file.read(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a file of `budget ledger export`") from None
    good = isinstance(found, dict) and found.get("format") == FORMAT and isinstance(found.get("rows"), list)
    if not good or not all(isinstance(row, dict) for row in found["rows"]):
        raise InputError(f"{path}: is not a {FORMAT}; give a file of `budget ledger export`")
    named = parse_public_line(str(found.get("public_key")), f"{path}: public_key")
    if trusted is not None and trusted.raw != named.raw:
        return found, [(False, f"signed with the key {named.fingerprint}, not with {trusted.fingerprint} of --key")]
    content = {name: value for name, value in found.items() if name != "signature"}
    try:
        named.verifier.verify(base64.b64decode(str(found.get("signature")), validate=True), _signed(content))
    except (InvalidSignature, ValueError):
        return found, [(False, f"not signed by {named.name}: the file was changed after it was signed")]
    whose = "the key you gave" if trusted is not None else "compare this fingerprint with the party by another way"
    findings: list[Finding] = [(True, f"signed by {named.name}, key {named.fingerprint} ({whose})")]
    head = found.get("head") or {}
    return found, findings + verify_extract(found["rows"], head.get("hash"), head.get("count"))


def spent(rows: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Dataset, run, party, observer and the last epsilon of each, for a table."""
    last = {(row["dataset"], row["run"], row["party"], row["observer"]): row for row in rows}
    return [(*key, row.get("epsilon"), row.get("delta")) for key, row in last.items()]


def _signed(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return b"homo_dp ledger extract v1\0" + text.encode()
