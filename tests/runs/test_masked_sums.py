"""Masked sums between processes: peers by one's own keys, and all bound to one plan."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.core.strict_json import json_digest
from homo_dp.federation.sessions.plan import PlanRefused
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.runs.masked_sums import party_sums
from homo_dp.transport.keys import KeyPair, PublicKey, new_key_pair
from homo_dp.transport.sealing import Sealer

NAMES = ("a", "b", "c")
KEYS = {name: new_key_pair(name) for name in NAMES}
MECHANISM: Any = SimpleNamespace(
    masked_sum=PrivateSum(3, 1.0, 1.0, 100, share=NoiseShare(3, 0, 1)),
    run=SimpleNamespace(sums={}, count=2),
)


def made(folder: Path, plan: dict[str, Any], own: KeyPair = KEYS["a"], **listed: KeyPair) -> Any:
    members = [{"name": name, "public_key": (KEYS | listed)[name].public.line} for name in NAMES]
    config = load_config(None, {"federation.parties": members, "federation.run": "r"})
    allowed: dict[str, PublicKey] = {name: key.public for name, key in KEYS.items()}
    plan = plan | {"rows": dict.fromkeys(NAMES)}
    return party_sums(config, plan, Sealer(own, allowed), MECHANISM, folder)


def test_parties_of_different_plans_do_not_understand_each_other(tmp_path: Path) -> None:
    one, same, other = (
        made(tmp_path / name, {"rounds": n}) for name, n in (("1", 2), ("2", 2), ("3", 3))
    )
    digests = [sums._party.roster.digest for sums in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert (
        json_digest({"a": 1, "b": 2})
        == json_digest({"b": 2, "a": 1})
        != json_digest({"a": 1, "b": 3})
    )


def test_a_key_that_is_not_ones_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not the public key of party\.key_file"):
        made(tmp_path, {}, a=new_key_pair("a"))


def test_an_expired_peer_is_refused_with_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from homo_dp.core.errors import MessageError

    def refuse(self: Sealer, key: PublicKey) -> None:
        raise MessageError("expired")

    monkeypatch.setattr(Sealer, "check_key", refuse)
    with pytest.raises(PlanRefused, match="expired"):
        made(tmp_path, {})


def test_nothing_is_made_where_nothing_is_masked(tmp_path: Path) -> None:
    plain: Any = SimpleNamespace(masked_sum=None)
    assert party_sums(load_config(None), {}, Sealer(KEYS["a"], {}), plain, tmp_path) is None
