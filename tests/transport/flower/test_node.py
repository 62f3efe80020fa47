"""A party's end of Flower: bad questions end nothing, long work is not asked again, an error is
said once.
"""

import socket
from pathlib import Path

import pytest

from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.transport.flower import node
from homo_dp.transport.flower.envelopes import Answer, SealedQuestion, tag_of
from homo_dp.transport.flower.node import NodeTransport
from homo_dp.transport.flower.relay import PartyPlace, carry
from homo_dp.transport.flower.unix_sockets import connect, has_ended
from tests.transport.flower.fleets import party
from tests.transport.parts import got, join, sealer, update, weights


def test_work_that_takes_long_is_in_hand_and_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "ANSWERS_WITHIN", 0.1)
    with party(tmp_path) as end:
        place = PartyPlace(tmp_path / "bank_a.sock")
        sealed = b"".join(sealer(AGGREGATOR).seal(weights()).pieces)
        first = carry(SealedQuestion("demo", (sealed,)), place)
        assert first == Answer("running", (), (), (tag_of(sealed),))
        message = got(end)
        assert carry(SealedQuestion("demo"), place).held == (tag_of(sealed),)
        end.send(update())
        end.done(message)
        last = carry(SealedQuestion("demo"), place)
        assert (last.done, last.held, len(last.sealed)) == ((tag_of(sealed),), (), 1)


def test_a_party_that_answers_does_not_join_beside_it(tmp_path: Path) -> None:
    """An aggregator answers a join with the weights of the round, and the party would answer
    those, too.
    """
    with party(tmp_path) as end:
        end.send(join())  # as after some seconds of silence
        end.send(update())
        (sealed,) = carry(SealedQuestion("demo"), PartyPlace(tmp_path / "bank_a.sock")).sealed
        assert sealer(AGGREGATOR).open_bytes(sealed).kind == "update"
        end.send(join())
        (sealed,) = carry(SealedQuestion("demo"), PartyPlace(tmp_path / "bank_a.sock")).sealed
        assert sealer(AGGREGATOR).open_bytes(sealed).kind == "join"


def test_a_letter_that_is_none_ends_nothing(tmp_path: Path) -> None:
    with party(tmp_path) as end:
        end.send(join())
        for nonsense in (
            b"",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x02[]",
            b'\x00\x00\x00\x09{"sizes":',
        ):
            with connect(tmp_path / "bank_a.sock", 5) as connection:
                connection.sendall(nonsense)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(10) == b""
        assert carry(SealedQuestion("another"), PartyPlace(tmp_path / "bank_a.sock")) == Answer(
            "other_run"
        )
        assert len(carry(SealedQuestion("demo"), PartyPlace(tmp_path / "bank_a.sock")).sealed) == 1


def test_a_party_that_ended_with_an_error_says_so_and_is_not_started_again(tmp_path: Path) -> None:
    place = tmp_path / "bank_a.sock"
    end = NodeTransport(place, "demo", sealer("bank_a"))
    carry(SealedQuestion("demo", (), "7"), PartyPlace(place))
    refusal = Message(
        "demo", 0, "bank_a", AGGREGATOR, "refused", {}, {"reason": "budget", "ledger_head": None}
    )
    end.send(refusal)
    try:
        raise ValueError("no budget")
    except ValueError:
        end.close()
    assert has_ended(place, "7")
    assert not has_ended(place, "8")
    assert carry(SealedQuestion("demo", (), "7"), PartyPlace(place, ("false",))) == Answer("ended")
    assert carry(SealedQuestion("demo", (), "7"), PartyPlace(place)) == Answer("failed")
