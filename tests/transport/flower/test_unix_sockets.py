"""The socket of a party: of its user alone, also under a long path."""

import stat
from pathlib import Path

import pytest

from homo_dp.core.errors import ConfigError
from homo_dp.transport.flower.envelopes import SealedQuestion
from homo_dp.transport.flower.node import NodeTransport
from homo_dp.transport.flower.relay import PartyPlace, carry
from tests.transport.flower.fleets import party
from tests.transport.parts import join, sealer


def test_the_socket_is_of_this_user_alone_and_a_long_path_does(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    deep.mkdir(parents=True)
    with party(deep) as end:
        end.send(join())
        assert stat.S_IMODE((deep / "bank_a.sock").stat().st_mode) == 0o600
        assert len(carry(SealedQuestion("demo"), PartyPlace(deep / "bank_a.sock")).sealed) == 1
    assert not (deep / "bank_a.sock").exists()
    with pytest.raises(ConfigError, match=r"transport\.flower\.socket"):
        NodeTransport(tmp_path / "not-there" / "p.sock", "demo", sealer("bank_a"))
