"""Addresses that may hold a password (`tracking.uri`): how they are shown, kept and refused."""

import re
from typing import Any
from urllib.parse import unquote

MASK = "***"
_ADDRESS = re.compile(r"(?P<before>[A-Za-z][\w+.-]*://[^\s/?#:@]*):(?P<secret>[^\s/?#]*)@")
_OPTION = re.compile(
    r"(?P<name>[?&][^=&\s]*(?:pass|pwd|secret|token|key)[^=&\s]*=)(?P<secret>[^&\s]+)",
    re.IGNORECASE,
)


def masked(text: str) -> str:
    """A text in which the passwords of addresses are masked, those of its options too.

    >>> masked("cannot reach postgresql://ann:pw@db.example/mlflow?sslpassword=x")
    'cannot reach postgresql://ann:***@db.example/mlflow?sslpassword=***'
    >>> masked("sqlite:///mlflow.db?timeout=9")
    'sqlite:///mlflow.db?timeout=9'
    """
    if "://" not in text:
        return text
    return _OPTION.sub(rf"\g<name>{MASK}", _ADDRESS.sub(rf"\g<before>:{MASK}@", text))


def without_secrets(text: str, uri: str) -> str:
    """A text, for example an error of a database driver, without the password of an address,
    wherever it stands.

    >>> without_secrets("http://ann:s%40fe@h/ refuses s@fe", "http://ann:s%40fe@h/")
    'http://ann:***@h/ refuses ***'
    """
    text = masked(text)
    for found in (*_ADDRESS.finditer(uri), *_OPTION.finditer(uri)):
        for secret in {found["secret"], unquote(found["secret"])} - {"", MASK}:
            text = text.replace(secret, MASK)
    return text


def masked_tree(tree: Any) -> Any:
    """Plain values with every address in them masked."""
    if isinstance(tree, dict):
        return {name: masked_tree(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [masked_tree(value) for value in tree]
    return masked(tree) if isinstance(tree, str) else tree


def address(value: object) -> object:
    """The value, unless it is an address of which only a masked copy is left."""
    if isinstance(value, str) and f":{MASK}@" in value:
        raise ValueError(
            "its password was masked in a copy of the config; write the address with its password"
        )
    return value
