"""Secure sums as messages: what a hostile side puts in a tensor is refused, and each round asks
the planned sum.
"""

import pytest
import torch

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.protocol.round_sums import RoundSum
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.sessions import secure_messages
from homo_dp.federation.sessions.secure_messages import (
    SumsOfRounds,
    as_matrix,
    check_rounds,
    named_texts,
    names_of,
    opened_places,
    rows_of,
    text_of,
)
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum


def roster(parties: int = 4, dropouts: int = 1, colluders: int = 0) -> Roster:
    return Roster(
        "run",
        {f"p{number}": bytes([number]) * 32 for number in range(parties)},
        dropouts,
        colluders,
    )


def message(**tensors: torch.Tensor) -> Message:
    return Message("run", 1, "p0", "aggregator", "update", tensors, {"survivors": "p0"})


def test_rows_come_back_and_any_other_tensor_is_refused() -> None:
    rows = [b"abc", b"def"]
    assert rows_of({"shares": as_matrix(rows)}, "shares", 2) == rows
    for bad in (
        {},
        {"shares": as_matrix(rows).float()},
        {"shares": as_matrix(rows)[0]},
        {"shares": as_matrix(rows)},
    ):
        with pytest.raises(MessageError, match="must be 3 rows of bytes"):
            rows_of(bad, "shares", 3)


def test_a_text_is_bounded_and_of_bytes() -> None:
    assert text_of(message(key=torch.zeros(3, dtype=torch.uint8)), "key") == bytes(3)
    for bad in (
        torch.zeros(5000, dtype=torch.uint8),
        torch.zeros(3),
        torch.zeros(1, 3, dtype=torch.uint8),
    ):
        with pytest.raises(MessageError, match="at most 4096 bytes"):
            text_of(message(key=bad), "key")
    with pytest.raises(MessageError, match="names that begin with to_"):
        named_texts({"weights": torch.zeros(3, dtype=torch.uint8)}, "to_")
    with pytest.raises(MessageError, match="survivors is missing"):
        names_of(message(), "survivors")  # a text instead of a list


def test_noise_that_is_planned_for_another_roster_is_refused() -> None:
    def planned(parties: int) -> SumsOfRounds:
        share = NoiseShare(parties, dropouts=1, colluders=0)
        asked = RoundSum("rows", PrivateSum(3, 1.0, 1.0, 100, share=share), "rows")
        return SumsOfRounds(PrivateSum(5, 1.0, 1.0, 100, share=share), {2: asked})

    planned(4).check(roster(4))
    assert (planned(4).of(1).dimension, planned(4).of(2).dimension) == (5, 3)
    with pytest.raises(PrivacyError, match="use one roster for both"):
        # each of four would add noise for three: more than needed; of five: too little
        planned(3).check(roster(4))
    with pytest.raises(PrivacyError, match="use one roster for both"):
        planned(5).check(roster(4))


def test_an_opening_names_survivors_first_and_each_party_once() -> None:
    places = opened_places(roster(), "p1", ["p0", "p1", "p3"])
    assert sorted(places) == sorted(set(places))
    assert places[-1] == "p2"  # the one that is missing


def test_rounds_whose_keys_do_not_fit_in_a_message_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_rounds(roster(), 1000)
    monkeypatch.setattr(secure_messages, "_MOST_ROUND_KEYS", 1000)
    with pytest.raises(PrivacyError, match=r"train\.rounds=1000"):
        check_rounds(roster(), 1000)
    check_rounds(roster(dropouts=0), 1000)  # nobody may be missing: no keys are handed out
