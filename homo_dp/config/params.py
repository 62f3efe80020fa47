"""The `--params` language: key=value items, and the older form name:TYPE:is_array:value, whose
names `homo_dp.compat.params` reads.

Items are separated by commas or spaces, but not by those inside quotes or brackets. Plain values
are YAML scalars; a plain value that is none of null, true, false or a number is text as it stands,
so paths with `:`, `=`, `#` or backslashes need no quotes.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from homo_dp.config.layers import split_key
from homo_dp.config.yaml_text import parse_scalar, parse_yaml
from homo_dp.core.errors import ConfigError
from homo_dp.core.untrusted_text import DEEPEST

_OLD_SIGN = re.compile(r":(?:STRING|INT32|BYTE):[01]:")
_OLD = re.compile(
    r"(?P<name>[^:=\s,]+):(?P<type>STRING|INT32|BYTE):(?P<array>[01]):(?P<value>.*)\Z", re.DOTALL
)
_NEW = re.compile(r"[\w.\-'\"]+=")
_CLOSING = {"[": "]", "{": "}"}
_SEPARATORS = frozenset(", \t\r\n")


@dataclass(frozen=True)
class TypedItem:
    """An item of the older form, as it stands: no name and no value is translated."""

    name: str
    kind: str
    is_array: bool
    value: str


Item = tuple[str, Any] | TypedItem


def read_items(texts: Iterable[str]) -> Iterator[Item]:
    """Read the texts of all `--params` options.

    >>> list(read_items(["train.rounds=30,data.use=[a, b]"]))
    [('train.rounds', 30), ('data.use', ['a', 'b'])]
    """
    for text in texts:
        for item in _whole(split_items(text)):
            old = _OLD.match(item)
            if old is None:
                yield _new_item(item)
            else:
                value = _unquoted(old["value"])
                yield TypedItem(old["name"], old["type"], old["array"] == "1", value)


def parse_value(text: str) -> Any:
    """A value: quoted text, a YAML list or mapping, or a scalar.

    >>> parse_value("1e-3"), parse_value("C:/a=b#c:"), parse_value("[1, x]"), parse_value("'5'")
    (0.001, 'C:/a=b#c:', [1, 'x'], '5')
    """
    text = text.strip()
    if text[:1] in _CLOSING or (text[:1] in ("'", '"') and _end_of_quote(text, 0) == len(text)):
        return parse_yaml(text, f"--params {text}")
    return parse_scalar(text)


def format_item(key: str, value: Any) -> str:
    """Write one item so that `read_items` reads the same key and value.

    >>> format_item("data.label", "my label"), format_item("train.rounds", 3)
    ('data.label="my label"', 'train.rounds=3')
    """
    return f"{key}={_format(value)}"


def split_items(text: str) -> list[tuple[str, str]]:
    """Split at commas and spaces outside of quotes and brackets; each item comes with the
    separators before it.
    """
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        start = at
        while at < len(text) and text[at] in _SEPARATORS:
            at += 1
        before, start = text[start:at], at
        at, _ = _end_of_item(text, start)
        if at > start:
            found.append((before, text[start:at]))
    return found


def _end_of_item(
    text: str, start: int, separators: frozenset[str] = _SEPARATORS
) -> tuple[int, int]:
    """The place after the item that begins here, and that of its first `=`, -1 without one; one
    pass over the text.

    A quote opens at the start, after a dot of the key, and where the value begins; elsewhere it is
    a letter.
    """
    at, equals, in_key, may_open = start, -1, True, True
    while at < len(text) and text[at] not in separators:
        letter, after = text[at], 0
        if letter in _CLOSING:
            after = _end_of_bracket(text, at)
        elif may_open and letter in "'\"":
            after = _end_of_quote(text, at)
        elif in_key and letter == ":" and (sign := _OLD_SIGN.match(text, at)):
            after = sign.end()
        may_open = (in_key and letter in ".=") or (after > 0 and letter == ":")
        in_key = in_key and letter not in ":="
        if letter == "=" and equals < 0:
            equals = at
        at = after or at + 1
    return at, equals


def _end_of_quote(text: str, at: int) -> int:
    """The place after the closing quote, 0 if there is none; '' and \\" are inside."""
    quote, at = text[at], at + 1
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 1
        elif text[at] == quote:
            if quote == '"' or text[at + 1 : at + 2] != quote:
                return at + 1
            at += 1
        at += 1
    return 0


def _end_of_bracket(text: str, at: int) -> int:
    """The place after the bracket that closes the one here, 0 if there is none.

    Brackets that are not closed are looked at once for each that is open: the bound on their number
    keeps that linear.
    """
    open_brackets = [_CLOSING[text[at]]]
    at += 1
    while at < len(text):
        letter = text[at]
        if letter in "'\"" and text[at - 1] in "[{,: ":
            at = (_end_of_quote(text, at) or at + 1) - 1
        elif letter in _CLOSING:
            open_brackets.append(_CLOSING[letter])
            if len(open_brackets) > DEEPEST:
                raise ConfigError(
                    f"--params {text[:40]}...: brackets are nested deeper than {DEEPEST}; write a "
                    "file"
                )
        elif letter == open_brackets[-1]:
            open_brackets.pop()
            if not open_brackets:
                return at + 1
        at += 1
    return 0


def _whole(pieces: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Unquote items quoted as a whole; join what spaces cut out of an old-form value (PrimiHub
    splits at commas).
    """
    item: list[str] = []
    is_old = False
    for before, piece in pieces:
        if is_old and "," not in before and not _OLD.match(piece) and not _NEW.match(piece):
            item += (before, piece)
            continue
        if item:
            yield "".join(item)
        item = [_unquoted(piece)]
        is_old = _OLD.match(item[0]) is not None
    if item:
        yield "".join(item)


def _unquoted(piece: str) -> str:
    if piece[:1] in ("'", '"') and _end_of_quote(piece, 0) == len(piece):
        return str(parse_yaml(piece, f"--params {piece}"))
    return piece


def _new_item(item: str) -> tuple[str, Any]:
    _, equals = _end_of_item(item, 0, frozenset())
    if equals < 0:
        raise ConfigError(
            f"--params {item}: is not key=value; write key=value without spaces around =, put "
            "lists in brackets (key=[1, 2]) and text with spaces or commas in quotes"
        )
    return checked_key(item[:equals]), parse_value(item[equals + 1 :])


def checked_key(key: str) -> str:
    """The key, unless it is not a dotted one."""
    split_key(key)
    return key


def _format(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_format(part) for part in value) + "]"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_format(name)}: {_format(part)}" for name, part in value.items())
            + "}"
        )
    if isinstance(value, str):
        safe = re.fullmatch(r"[A-Za-z0-9_./-]+", value) and parse_scalar(value) == value
        return value if safe else '"' + "".join(map(_escape, value)) + '"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value).replace("inf", ".inf").replace("nan", ".nan")


def _escape(letter: str) -> str:
    if letter in '\\"':
        return "\\" + letter
    if letter.isprintable():
        return letter
    return f"\\U{ord(letter):08x}"
