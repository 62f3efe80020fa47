"""One-line messages for everything that pydantic refuses: the full key, the value, the range,
the next step.
"""

import difflib
import json
import re
import typing
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from homo_dp.config.addresses import masked
from homo_dp.config.base import Conflict, Section
from homo_dp.config.privacy import never_set
from homo_dp.config.yaml_text import parse_scalar
from homo_dp.core.errors import printable

SHORT_NAMES = ("predictFileName", "indicatorFileName", "modelFileName")

_PLAIN = {
    "missing": "is required; give it",
    "string_type": "must be text",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a section with keys of its own",
    "tuple_type": "must be a list",
}


# Words that other systems use for our keys, where spelling alone would lead elsewhere.
_USUAL = {
    "epsilon": "privacy.target_epsilon",
    "noise": "privacy.noise_multiplier",
    "sigma": "privacy.noise_multiplier",
    "clip": "privacy.max_grad_norm",
    "lr": "train.learning_rate",
    "epochs": "train.local_epochs",
    "gamma": "privacy.adaptive.target_quantile",
    "eta": "privacy.adaptive.learning_rate",
    "sigma_b": "privacy.adaptive.bit_noise",
}


def explain(error: ValidationError, root: type[Section], given: Any) -> str:
    """Say in one line what is wrong with the first bad key, and how many more there are."""
    problems = [
        (dotted(_real(problem["loc"], given)), problem)
        for problem in error.errors(include_url=False)
    ]
    unknown = [pair for pair in problems if pair[1]["type"] == "extra_forbidden"]
    name, first = (unknown or problems)[0]
    # A union reports each of its branches: the one that went deepest into the value is the one that
    # was meant.
    name, first = max(
        (pair for pair in problems if pair[0].startswith(name)), key=lambda pair: len(pair[0])
    )
    more = len({other for other, _ in problems if not name.startswith(other)})
    return _sentence(first, root, given) + (f" (and {more} more)" if more else "")


def _sentence(problem: ErrorDetails, root: type[Section], given: Any) -> str:
    path = _real(problem["loc"], given, missing=problem["type"] == "missing")
    name = dotted(path)
    cause = (problem.get("ctx") or {}).get("error")
    if isinstance(cause, Conflict):
        return str(cause)
    if problem["type"] == "extra_forbidden":
        return f"{name}: unknown key; {nearest(path, root, SHORT_NAMES)}"
    if problem["type"] == "missing":
        return f"{name}: is required; give it"
    value = show(_at(given, path))
    if isinstance(cause, ValueError):
        said = str(cause)
    elif problem["type"] == "literal_error":
        said = _choice(str((problem.get("ctx") or {}).get("expected", "")), _at(given, path))
    else:
        said = _PLAIN.get(problem["type"], problem["msg"].removeprefix("Input should be").strip())
    return f"{name}={value}: {said}{_example(path, root, said)}"


def _choice(expected: str, value: Any) -> str:
    words = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",")]
    close = difflib.get_close_matches(str(value), words, n=1)
    return f"must be one of {', '.join(words)}" + (
        f"; did you mean {close[0]}?" if close else "; choose one of them"
    )


def _example(path: tuple[str | int, ...], root: type[Section], said: str) -> str:
    if ";" in said:
        return ""
    default = _at(root().model_dump(mode="json"), path)
    if (
        default is None
        and path
        and (field := _fields_at(path[:-1], root).get(str(path[-1]))) is not None
    ):
        default = field.get_default(call_default_factory=True, validated_data={})
    if default is None or isinstance(default, dict | Section) or default is PydanticUndefined:
        return "; see docs/config.md"
    return f"; for example {dotted(path)}={show(default)}"


def fields_of(kinds: Iterable[type[Section]]) -> dict[str, FieldInfo]:
    """The keys of a section, or of all sections that may stand in its place."""
    found: dict[str, FieldInfo] = {}
    for kind in kinds:
        for name, field in kind.model_fields.items():
            if name not in found or never_set(found[name]):
                found[name] = field
    return found


def _fields_at(path: tuple[str | int, ...], root: type[Section]) -> dict[str, FieldInfo]:
    """The keys of the section that stands at a path, also inside of mappings and lists; none if
    there is no section.
    """
    kinds, rest = [root], None
    for name in path:
        if kinds:
            field = fields_of(kinds).get(str(name))
            rest = field.annotation if field else None
            kinds = [] if _is_list(rest) else list(sections_in(rest))
        else:
            kinds = [found for part in typing.get_args(rest) for found in sections_in(part)]
            rest = None
    return fields_of(kinds)


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (tuple, dict)


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """The sections that an annotation like `A | None` or `tuple[A, ...]` speaks of (not those of
    a mapping).
    """
    if (
        typing.get_origin(annotation) is None
        and isinstance(annotation, type)
        and issubclass(annotation, Section)
    ):
        yield annotation
    elif typing.get_origin(annotation) is not dict:
        for part in typing.get_args(annotation):
            yield from sections_in(part)


def all_keys(root: type[Section], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a section and the sections in it."""
    yield from _keys_below([root], prefix)


def _keys_below(kinds: Iterable[type[Section]], prefix: str) -> Iterator[str]:
    for name, field in fields_of(kinds).items():
        yield prefix + name
        yield from _keys_below(sections_in(field.annotation), f"{prefix}{name}.")


def nearest(path: tuple[str | int, ...], root: type[Section], short: Collection[str] = ()) -> str:
    """Name the valid key that an unknown one is like: in the same section first, then anywhere;
    else what there is.

    `short` are names that may stand at the top although they are not sections.
    """
    leaf, above = str(path[-1]).lower(), path[:-1]
    there = _fields_at(above, root)
    siblings = {name.lower(): name for name in (*there, *(() if above else short))}
    if close := difflib.get_close_matches(leaf, siblings, n=1, cutoff=_ALIKE):
        return f"did you mean {dotted((*above, siblings[close[0]]))}?"
    keys = list(all_keys(root))
    by_leaf = sorted(
        (key for key in keys if key.rpartition(".")[2].lower() == leaf),
        key=lambda key: key.count("."),
    )
    if leaf in _USUAL or by_leaf:
        return f"did you mean {_USUAL.get(leaf) or by_leaf[0]}?"
    if not (above and there):
        if close := difflib.get_close_matches(dotted(path), keys, n=1, cutoff=_ALIKE):
            return f"did you mean {close[0]}?"
        return f"the sections are {', '.join(_fields_at((), root))}; see docs/config.md"
    if len(there) > _MOST_LISTED:
        return f"docs/config.md lists the keys of {dotted(above)}"
    return f"the keys of {dotted(above)} are {', '.join(there)}; see docs/config.md"


_ALIKE = 0.6  # of 1: a single letter is like no key
_MOST_LISTED = 16


def takes_text(root: type[Section], key: str) -> bool:
    """Whether a dotted key, as far as the schema knows it, holds text (or a mapping or list of
    texts).

    >>> from homo_dp.config.schema import Config
    >>> takes_text(Config, "data.files.a"), takes_text(Config, "privacy.delta"), takes_text(Config, "predictFileName")
    (True, False, True)
    """
    kinds, annotation = [root], None
    for name in key.split("."):
        field = fields_of(kinds).get(name)
        if field is None:
            return True
        annotation = field.annotation
        kinds = list(sections_in(annotation))
    return _holds_text(kinds[0] if kinds else annotation)


def _holds_text(annotation: Any) -> bool:
    if typing.get_origin(annotation) is typing.Literal:
        return all(isinstance(word, str) for word in typing.get_args(annotation))
    if annotation is str:
        return True
    parts = typing.get_args(annotation)
    return any(
        _holds_text(part)
        for part in (parts[1:] if typing.get_origin(annotation) is dict else parts)
    )


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as it is written in --params; names with dots or spaces are quoted.

    >>> dotted(("data", "columns", "mean radius", "bounds"))
    "data.columns.'mean radius'.bounds"
    """
    words = (str(part) for part in path)
    return ".".join(
        w if re.fullmatch(r"[\w-]+", w) else "'" + w.replace("'", "''") + "'" for w in words
    )


def show(value: Any) -> str:
    """A value as it stands in a message: short, on one line."""
    if isinstance(value, Section):
        value = value.model_dump(mode="json")
    # '5' and '' keep quotes, to differ from 5 and null
    plain = isinstance(value, str) and parse_scalar(value) == value
    text = value if plain else json.dumps(value, default=str, ensure_ascii=False)
    text = printable(" ".join(masked(text).split()))
    return text if len(text) <= 80 else text[:77] + "..."


def _real(path: tuple[str | int, ...], given: Any, missing: bool = False) -> tuple[str | int, ...]:
    """Keep of pydantic's path the keys that were given; the rest names branches of unions and
    filled-in keys.
    """
    real: list[str | int] = []
    for part in path:
        inner = _at(given, (part,))
        if (
            inner is not None
            or (isinstance(given, dict) and part in given)
            or (missing and part == path[-1])
        ):
            real.append(part)
            given = inner
    return tuple(real)


def _at(given: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        try:
            given = given[part]
        except (KeyError, IndexError, TypeError):
            return None
    return given
