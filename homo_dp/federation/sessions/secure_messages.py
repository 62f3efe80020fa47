"""How secure sums look as messages: names, bytes and rows of tensors, and which sum a round
asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from homo_dp.core.errors import MessageError
from homo_dp.core.strict_json import json_digest
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.protocol.round_sums import SUM as SUM
from homo_dp.federation.protocol.round_sums import RoundSums
from homo_dp.federation.secure_sums import shares
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.private_sum import PrivateSum

SHARES: Final = "shares"
COMMITMENTS: Final = "commitments"
SIGNATURE: Final = "signature"
LISTS: Final = "lists"
TAG_BYTES: Final = 16  # that AES-GCM adds to a row of shares
ABSENT: Final = bytes(
    shares.SHARE_BYTES
)  # stands for a share that its holder lacks; a real share is all zeros with probability 2**-256
_MOST_KEY_BYTES = 4096
_MOST_ROUND_KEYS = 1 << 25  # bytes that a party leaves at the meeting: they are one message


def findings_digest(found: object) -> str:
    """What stands for the findings of a run; empty before there are any.

    >>> findings_digest(None), len(findings_digest({"rows": {}}))
    ('', 64)
    """
    return "" if found is None else json_digest(found)


def sum_id(number: int) -> str:
    """The name of a round's sum; signatures and seeds are bound to it, and by the roster to the
    run.
    """
    return f"{number}/update"


@dataclass(frozen=True)
class SumsOfRounds:
    """Which sum a round asks: that of the training, unless it is named among the others."""

    training: PrivateSum
    others: RoundSums
    findings: str = ""  # the digest of what was privately estimated, from which the sums follow

    def of(self, number: int) -> PrivateSum:
        """The sum of a round."""
        return self.others[number].private_sum if number in self.others else self.training

    def terms(self, number: int) -> bytes:
        """What all who mask the sum of a round have to agree on, as a digest.

        Guarantees:
            - the noise and the bound of every party follow from the plan, which the keys of masks
              are bound to, and from the findings; so a sum of parties that received different
              figures cannot be unmasked.
        """
        found = self.of(number)
        agreed = (found.dimension, found.bits, found.grid.step.hex(), self.findings)
        return hashlib.sha256(repr(agreed).encode()).digest()

    def check(self, roster: Roster) -> None:
        """Refuse noise that is planned for others than those who mask."""
        masked = (asked for asked in self.others.values() if asked.maskable)
        for share in {self.training.share, *(asked.private_sum.share for asked in masked)}:
            planned = None if share is None else (share.parties, share.dropouts, share.colluders)
            if planned != (len(roster.names), roster.dropouts, roster.colluders):
                raise PrivacyError(
                    f"the noise is planned for (parties, dropouts, colluders)={planned}, the masks "
                    f"for {(len(roster.names), roster.dropouts, roster.colluders)}; use one "
                    "roster for both"
                )


def committed_names(roster: Roster, name: str) -> tuple[str, ...]:
    """Whose seeds a party commits to: its own, and where somebody may be missing those with its
    neighbours.
    """
    return (name, *(roster.neighbours(name) if roster.dropouts else ()))


def opened_places(roster: Roster, holder: str, survivors: Sequence[str]) -> list[str]:
    """Whose shares an opening holds, in order: of each survivor its own seed, then of each that
    is missing its key.
    """
    present = set(survivors)
    held = [name for name in roster.names if holder in roster.holders(name)]
    return [name for name in held if name in present] + [
        name for name in held if name not in present
    ]


def check_rounds(roster: Roster, rounds: int) -> None:
    """Refuse more rounds than have their keys in one message: all are handed out at the meeting."""
    each = (shares.SHARE_BYTES + shares.SECRET_BYTES) * len(roster.neighbours(roster.names[0]))
    if roster.dropouts and each * rounds > _MOST_ROUND_KEYS:
        raise PrivacyError(
            f"train.rounds={rounds}: with privacy.tolerated_dropouts={roster.dropouts} at most "
            f"{_MOST_ROUND_KEYS // each} rounds have their keys in one message; run them in "
            "parts, or tolerate none"
        )


def lists_name(name: str) -> str:
    """Under which name the aggregator keeps a party's lists."""
    return f"lists {name}"


def as_bytes(text: bytes) -> Tensor:
    """Bytes as a tensor of a message."""
    return (
        torch.frombuffer(bytearray(text), dtype=torch.uint8)
        if text
        else torch.zeros(0, dtype=torch.uint8)
    )


def as_matrix(rows: Sequence[bytes]) -> Tensor:
    """Texts of one length as rows of a tensor."""
    if not rows:
        return torch.zeros((0, 0), dtype=torch.uint8)
    return as_bytes(b"".join(rows)).reshape(len(rows), len(rows[0]))


def rows_of(tensors: Mapping[str, Tensor], name: str, count: int) -> list[bytes]:
    """The texts of such a tensor; raises MessageError unless there are ``count``."""
    found = tensors.get(name)
    if found is None or found.dtype is not torch.uint8 or found.dim() != 2 or len(found) != count:
        raise MessageError(f"tensor {name}: must be {count} rows of bytes")
    return [bytes(row.numpy().tobytes()) for row in found]


def text_of(message: Message, name: str, most: int = _MOST_KEY_BYTES) -> bytes:
    """A short text of a message."""
    return short_tensor(message, name, most).numpy().tobytes()


def short_tensor(message: Message, name: str, most: int = _MOST_KEY_BYTES) -> Tensor:
    """A tensor of at most so many bytes; raises MessageError on any other."""
    found = message.tensors.get(name)
    if found is None or found.dtype is not torch.uint8 or found.dim() != 1 or found.numel() > most:
        raise MessageError(f"sender={message.sender}: tensor {name} must be at most {most} bytes")
    return found


def named_texts(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, bytes]:
    """Texts by party, from tensors that are called by a prefix and the party."""
    if any(
        not name.startswith(prefix) or t.dtype is not torch.uint8 or t.dim() != 1
        for name, t in tensors.items()
    ):
        raise MessageError(f"tensors must be bytes under names that begin with {prefix}")
    return {name.removeprefix(prefix): tensor.numpy().tobytes() for name, tensor in tensors.items()}


def names_of(message: Message, name: str) -> tuple[str, ...]:
    """A list of parties among the information of a message."""
    value = message.info.get(name)
    if not isinstance(value, list):
        raise MessageError(f"kind={message.kind}: {name} is missing")
    return tuple(str(item) for item in value)
