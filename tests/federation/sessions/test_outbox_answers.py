"""What a party keeps of an answer gives that answer to its own question, and to no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import AGGREGATOR, KINDS, Message, encode
from homo_dp.federation.sessions.outbox_answers import packed, unpacked

QUESTION = Message("run", 3, AGGREGATOR, "a", "weights", {"w": torch.zeros(4)})
ANSWER = Message("run", 3, "a", AGGREGATOR, "update", {"w": torch.ones(4)})


@pytest.mark.parametrize("durable", [True, False])
def test_the_same_question_gets_the_same_answer(durable: bool) -> None:
    kept = packed(QUESTION, ANSWER, KINDS, durable=durable)
    again = replace(QUESTION, tensors={"w": torch.zeros(4)})
    found = unpacked(again, kept, KINDS)
    assert (found.kind, found.round, found.tensors["w"].tolist()) == ("update", 3, [1.0] * 4)


@pytest.mark.parametrize("durable", [True, False])
def test_other_weights_in_the_same_round_get_none(durable: bool) -> None:
    """One charge must not buy two answers: to two weight vectors they would tell two things
    about the rows.
    """
    kept = packed(QUESTION, ANSWER, KINDS, durable=durable)
    with pytest.raises(MessageError, match="another message was answered"):
        unpacked(replace(QUESTION, tensors={"w": torch.full((4,), 0.5)}), kept, KINDS)


def test_an_outbox_of_an_earlier_version_has_no_question() -> None:
    assert unpacked(QUESTION, encode(ANSWER, KINDS), KINDS).kind == "update"
