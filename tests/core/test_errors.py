"""Text from outside on a screen or in a log."""

from __future__ import annotations

import pytest

from homo_dp.core.errors import (
    ConfigError,
    InputError,
    MessageError,
    Undeliverable,
    one_line,
    printable,
)


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\nb", "\x1b[2J", "a\u2028b", "\u202eabc", "\x00", "a\tb"]
)
def test_one_line_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert "\n" not in shown


def test_one_line_is_bounded_whatever_it_escapes() -> None:
    assert len(one_line("\x1b" * 10_000, limit=100)) <= 100
    assert one_line(ValueError("why")) == "why"


def test_printable_keeps_lines_and_letters() -> None:
    assert printable("größe\n\tx") == "größe\n\tx"
    assert printable("\x07") == "\\x07"


def test_what_a_command_exits_2_for() -> None:
    assert issubclass(ConfigError, InputError)
    assert issubclass(InputError, ValueError)
    assert not issubclass(MessageError, InputError)
    assert issubclass(Undeliverable, ValueError)
