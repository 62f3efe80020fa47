"""Questions and answers as bytes: checked fields, and a bound on their size."""

import socket

import pytest

from homo_dp.core.errors import MessageError
from homo_dp.transport.flower.envelopes import Answer, SealedQuestion, receive_letter, send_letter


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"version": 2, "run": "demo", "job": "", "sealed": []},
        {"version": 1, "run": "../x", "job": "", "sealed": []},
        {"version": 1, "run": "demo", "job": "", "sealed": ["text"]},
        {"version": 1, "run": "demo", "job": "", "sealed": [b""] * 257},
    ],
)
def test_questions_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        SealedQuestion.of(fields)


def test_letters_survive_a_socket_and_too_large_ones_are_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        answer = Answer("running", (b"a" * 10, b""), ("0" * 32,), ("1" * 32,))
        send_letter(left, answer)
        assert Answer.of(receive_letter(right, 10)) == answer
        send_letter(left, answer)
        with pytest.raises(MessageError, match="allowed"):
            receive_letter(right, 9)
