"""Papers and plans of others: a ledger extract that its signer wrote by hand, and a plan, up to
what a party runs.
"""

from __future__ import annotations

import base64
import functools
import json
import tempfile
from pathlib import Path

from homo_dp.config.load import load_config
from homo_dp.data.public_encoding import public_encoding
from homo_dp.federation.sessions.plan import agree, check_count, check_work, make_plan
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.signed_extract import _signed, check_extract, signed_extract, spent
from homo_dp.transport.keys import new_key_pair
from tests.privacy.ledger_parts import ledger_of

KEY = new_key_pair("bank_a")
OWN = load_config(None, {"data.rows": {"a": 40}, "party.name": "a", "party.caps.epsilon": 10.0})
ASKED = ["rows", "means", "histograms", "levels", "bounds"]
COLUMNS = {"ward": {"levels": ["A", "B"]}, "age": {"bounds": [0, 100]}}


def fuzz_extract(data: bytes) -> None:
    """An extract with a good signature by a party that may lie about everything in it."""
    try:
        content = json.loads(data)
        if isinstance(content, dict):
            content["public_key"] = KEY.public.line
            content["signature"] = base64.b64encode(KEY.signer.sign(_signed(content))).decode()
            data = json.dumps(content).encode()
    except (ValueError, RecursionError):
        pass  # as it is, then
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "extract.json"
        path.write_bytes(data)
        found, findings = check_extract(path, KEY.public)
        if all(good for good, _ in findings):
            spent(found["rows"])


def fuzz_plan(data: bytes) -> None:
    """A plan, as far as a party goes with it before it looks at rows."""
    try:
        plan = json.loads(data)
    except (ValueError, RecursionError):
        return
    agreed = agree(OWN, plan)
    check_work(OWN, agreed, "a")
    check_count(OWN, agreed, "a")


@functools.cache
def _extract() -> bytes:
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger(ledger_of(Path(folder), 3), read_only=True) as ledger,
    ):
        made = signed_extract(ledger, KEY, None, None)
    return json.dumps({name: value for name, value in made.items() if name != "signature"}).encode()


def _plan(**keys: object) -> bytes:
    named = {name.replace("__", "."): value for name, value in keys.items()}
    config = load_config(None, {"data.columns": COLUMNS, "privacy.target_epsilon": 1.0, **named})
    return json.dumps(
        make_plan(config, {"a": 40, "b": 30}, public_encoding(config).to_json())
    ).encode()


SEEDS = {
    "fuzz_extract": [_extract()],
    "fuzz_plan": [_plan(), _plan(privacy__mechanism="statistics", statistics__ask=ASKED)],
}
