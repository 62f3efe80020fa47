"""The `--params` language: key=value items, and the older PrimiHub form name:TYPE:is_array:value.

Items are separated by commas or spaces, but not by those inside quotes or brackets. Plain values
are YAML scalars; a plain value that is none of null, true, false or a number is text as it stands,
so paths with `:`, `=`, `#` or backslashes need no quotes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from homo_dp.config.explain import takes_text
from homo_dp.config.layers import split_key
from homo_dp.config.primihub import IGNORED, NEEDS_FILES, OLD_NAMES
from homo_dp.config.schema import Config
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
class Params:
    """Overrides in the order given, and what was set aside."""

    items: tuple[tuple[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def parse_params(texts: Iterable[str]) -> Params:
    """Read the texts of all `--params` options.

    >>> parse_params(["train.rounds=30,data.use=[a, b] predictFileName:STRING:0:/data/x.csv"]).items
    (('train.rounds', 30), ('data.use', ['a', 'b']), ('output.predictFileName', '/data/x.csv'))
    """
    items: list[tuple[str, Any]] = []
    notes: list[str] = []
    for text in texts:
        for item in _whole(split_items(text)):
            old = _OLD.match(item)
            if old is None:
                items.append(_new_item(item))
            elif old["name"] in IGNORED:
                notes.append(f"{old['name']}: {IGNORED[old['name']]}; ignored")
            else:
                items.extend(_old_item(old))
    return Params(tuple(items), tuple(notes))


def parse_pairs(words: Sequence[str]) -> Params:
    """Read `key value key value ...`, as FederatedScope writes overrides after `--cfg FILE`.

    >>> parse_pairs(["nbafl.mu", "0.01", "train.rounds", "5"]).items
    (('nbafl.mu', 0.01), ('train.rounds', 5))
    """
    if len(words) % 2:
        raise ConfigError(f"--cfg: {words[-1]} has no value; give overrides as `key value` pairs")
    return Params(
        tuple(
            (_checked(key), parse_value(value))
            for key, value in zip(words[::2], words[1::2], strict=True)
        )
    )


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
    """Write one item so that `parse_params` reads the same key and value.

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
    return _checked(item[:equals]), parse_value(item[equals + 1 :])


def _checked(key: str) -> str:
    split_key(key)
    return key


def _old_item(old: re.Match[str]) -> Iterator[tuple[str, Any]]:
    name, kind, value = old["name"], old["type"], _unquoted(old["value"])
    if name in NEEDS_FILES:
        raise ConfigError(
            f"--params {name}={value}: names PrimiHub data sets; give data.files.<party>=FILE for "
            "each"
        )
    if name == "learning_rate" and value == "optimal":
        yield "train.schedule", "optimal"
        return
    key = _checked(OLD_NAMES.get(name, name))
    parts = [part for part in value.split(";") if part] if old["array"] == "1" else [value]
    words = [_old_value(key, kind, part) for part in parts]
    yield key, words if old["array"] == "1" else words[0]


def _old_value(key: str, kind: str, value: str) -> Any:
    if kind == "INT32":
        if not re.fullmatch(r"\s*[-+]?[0-9]{1,10}\s*", value) or not -(2**31) <= int(value) < 2**31:
            raise ConfigError(
                f"--params {key}:INT32={value}: must be a whole number of 32 bits; correct it"
            )
        return int(value)
    # The old form has no type for numbers with a fraction: text is read as a scalar where the key
    # wants no text.
    return value if takes_text(Config, key) else parse_scalar(value)


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
