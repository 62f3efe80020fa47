"""A signed extract of a ledger: what a third person can check with the party's public key and
nothing else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cryptography.exceptions import InvalidSignature
from pydantic import Field

from homo_dp.core.errors import InputError
from homo_dp.core.untrusted_text import Foreign
from homo_dp.privacy.accounting.accountants import renyi_epsilon
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.ledger.lifetime import Lifetime
from homo_dp.privacy.ledger.rows import Spend
from homo_dp.tracking.report.ledger_extract import (
    SAME,
    Finding,
    event_text,
    recomputed,
    verify_extract,
)
from homo_dp.tracking.report.run_files_schema import MOST_ROWS, ExtractRow, FilePart, Whole
from homo_dp.transport.keys import KeyPair, PublicKey, parse_public_line

FORMAT = "homo_dp-ledger-extract-v1"
_LARGEST = 200 << 20


class _Row(ExtractRow):
    dataset: str
    unit: Literal["record", "user"]
    relation: Literal["add_or_remove_one", "replace_one"]
    observer: str


class _Head(FilePart):
    count: Whole
    hash: str


class _Extract(FilePart):
    party: str
    public_key: str
    signature: str
    head: _Head
    rows: Annotated[list[_Row], Field(min_length=1, max_length=MOST_ROWS)]


def signed_extract(
    ledger: Ledger, key: KeyPair, dataset: str | None, run: str | None
) -> dict[str, Any]:
    """The chosen rows of a whole, verified ledger with its head, signed (Ed25519) by the party."""
    head = ledger.verify()
    rows = [
        row.to_dict()
        for row in ledger.rows(run)
        if row.is_release and dataset in (None, row.dataset)
    ]
    if not rows:
        raise InputError(
            f"--dataset={dataset} --run={run}: the ledger has no such release; see ledger show"
        )
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
    """The extract in a file and what was found; ``trusted`` is the key that the checker has from
    elsewhere.
    """
    file = Foreign(str(path), "ask the party to export it again", InputError, _LARGEST)
    try:
        found = file.json(file.read(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a file of `budget ledger export`") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path}: is not a {FORMAT}; give a file of `budget ledger export`")
    read = file.check(_Extract, found)  # who signs a file may have written anything into it
    named = parse_public_line(read.public_key, f"{path}: public_key")
    if trusted is not None and trusted.raw != named.raw:
        return found, [
            (
                False,
                (
                    f"signed with the key {named.fingerprint}, not with {trusted.fingerprint} of "
                    "--key"
                ),
            )
        ]
    content = {name: value for name, value in found.items() if name != "signature"}
    try:
        named.verifier.verify(base64.b64decode(read.signature, validate=True), _signed(content))
    except (InvalidSignature, ValueError):
        return found, [
            (False, f"not signed by {named.name}: the file was changed after it was signed")
        ]
    whose = (
        "the key you gave"
        if trusted is not None
        else "compare this fingerprint with the party by another way"
    )
    findings: list[Finding] = [(True, f"signed by {named.name}, key {named.fingerprint} ({whose})")]
    findings += verify_extract(found["rows"], read.head.hash, read.head.count)
    return found, findings + _added_up(found["rows"])


def _added_up(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Whether the epsilon that a run ends with is that of its events: a party can sign any
    figure.
    """
    runs: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        runs.setdefault(
            tuple(row[name] for name in ("dataset", "run", "party", "observer")), []
        ).append(row)
    bad = []
    for (dataset, run, party, _), own in runs.items():
        said = own[-1].get("epsilon_rdp")
        if said is None or any(str(row.get("noise", "")).startswith("NOT PRIVATE") for row in own):
            continue
        found = recomputed(own).rdp
        if not abs(found - said) <= SAME * max(found, said):
            bad.append(
                f"run {run} of {party} on {dataset}: its events cost epsilon {found:.4g} by RDP, "
                f"not {said:.4g}"
            )
    return [(False, text) for text in bad] or [
        (True, "the events of each run add up to the epsilon that is stated")
    ]


def spent(rows: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Dataset, run, party, observer and the last epsilon of each, for a table."""
    last = {(row["dataset"], row["run"], row["party"], row["observer"]): row for row in rows}
    return [(*key, row.get("epsilon"), row.get("delta")) for key, row in last.items()]


def totals(rows: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Dataset, number of runs and of releases, and what all of them together cost at the largest
    delta of its rows, by RDP; a run counts for the party that it told most about.
    """
    lifetimes: dict[str, Lifetime] = {}
    deltas: dict[str, float] = {}
    open_noise: set[str] = set()
    for row in rows:
        dataset = str(row["dataset"])
        lifetimes.setdefault(dataset, Lifetime()).add(
            row["run"], row["party"], Spend(event_text(row), row["unit"], row["relation"])
        )
        deltas[dataset] = max(deltas.get(dataset, 0.0), float(row["delta"]))
        if str(row.get("noise", "")).startswith("NOT PRIVATE"):
            open_noise.add(dataset)
    return [
        (
            dataset,
            found.runs,
            found.releases,
            "NOT PRIVATE"
            if dataset in open_noise
            else renyi_epsilon(found.renyi(), deltas[dataset]),
            deltas[dataset],
        )
        for dataset, found in lifetimes.items()
    ]


def _signed(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return b"homo_dp ledger extract v1\0" + text.encode()
