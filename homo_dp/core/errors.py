"""Errors a user can act on; each message is one line that says what to do next."""


class InputError(ValueError):
    """Bad input of any kind: the command exits with 2."""


class ConfigError(InputError):
    """A configuration key or value that cannot be used."""


class DataError(InputError):
    """A table, image file or column that cannot be used."""


class TableChanged(DataError):
    """A table that a party could read before it joined a run, and cannot read any more.

    Whether it can follows from rows, so the operator is told and nobody else.
    """


class ModelFileError(InputError):
    """A model file that cannot be read or must not be trusted."""


class MessageError(ValueError):
    """A message that is malformed, altered, unexpected or from a stranger.

    ``signed_by`` is the listed sender whose signature was checked before; None where nobody's was,
    so that the name on the message may be anybody's.
    """

    signed_by: str | None = None


class UnreadableMessage(MessageError):
    """A message whose reading raised what no check foresaw; it is put aside and not read again."""


class TransportError(ValueError):
    """A transport that cannot deliver: a full disk, a missing permission, a lost connection."""


class Undeliverable(TransportError):
    """A message that cannot reach one recipient (its folder is closed, its key was revoked);
    others can.
    """


def one_line(text: object, limit: int = 500) -> str:
    """Text from outside, made safe for a log or a screen: one line, no terminal escapes, bounded
    length.

    >>> one_line("bank_a" + chr(27) + "[2J") == "bank_a" + chr(92) + "x1b[2J"
    True
    """
    shown = str(text)[:limit]
    if shown.isprintable():
        return shown
    return "".join(letter if letter.isprintable() else _written(letter) for letter in shown)[:limit]


def error_text(error: BaseException, limit: int = 200) -> str:
    """What an error says, on one line of bounded length; the name of its type where it says
    nothing.

    >>> error_text(ValueError("no such   file")), error_text(TimeoutError())
    ('no such file', 'TimeoutError')
    """
    return " ".join(str(error).split())[:limit] or type(error).__name__


def printable(text: str) -> str:
    """Text that a terminal and a log can show: control characters, among them escapes, are written
    out.

    >>> printable("age\\x1b[31m"), printable("größe")
    ('age\\\\x1b[31m', 'größe')
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else _written(letter) for letter in text
    )


def _written(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
