"""One-line messages for everything that pydantic refuses: the full key, the value, the range, the next step."""

import difflib
import json
import re
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from homo_dp.config.base import Conflict, Section

_PLAIN = {
    "missing": "is required; give it",
    "string_type": "must be text",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a section with keys of its own",
    "tuple_type": "must be a list",
}


def explain(error: ValidationError, root: type[Section], given: Any) -> str:
    """Say in one line what is wrong with the first bad key, and how many more there are."""
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    first = (unknown or problems)[0]
    more = len({dotted(_real(problem["loc"], given)) for problem in problems}) - 1
    tail = f" (and {more} more)" if more else ""
    return _sentence(first, root, given) + tail


def _sentence(problem: ErrorDetails, root: type[Section], given: Any) -> str:
    path = _real(problem["loc"], given, missing=problem["type"] == "missing")
    name = dotted(path)
    cause = (problem.get("ctx") or {}).get("error")
    if isinstance(cause, Conflict):
        return str(cause)
    if problem["type"] == "extra_forbidden":
        return f"{name}: unknown key; {nearest(path, root)}"
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
    return f"must be one of {', '.join(words)}" + (f"; did you mean {close[0]}?" if close else "; choose one of them")


def _example(path: tuple[str | int, ...], root: type[Section], said: str) -> str:
    if ";" in said:
        return ""
    default = _default(path, root)
    if default is None or isinstance(default, dict | Section):
        return "; see docs/config.md"
    return f"; for example {dotted(path)}={show(default)}"


def _default(path: tuple[str | int, ...], root: type[Section]) -> Any:
    owner = _owner(path[:-1], root)
    if owner is None or path[-1] not in owner.model_fields:
        return None
    return owner.model_fields[str(path[-1])].get_default(call_default_factory=True, validated_data={})


def _owner(path: tuple[str | int, ...], root: type[Section]) -> type[Section] | None:
    """The section that stands at a path, also inside of mappings and lists."""
    place: Any = root
    for name in path:
        if isinstance(place, type) and not typing.get_origin(place) and issubclass(place, Section):
            place = place.model_fields[str(name)].annotation if name in place.model_fields else None
            place = next(sections_in(place), place) if not _is_list(place) else place
        else:
            inner = typing.get_args(place)
            place = next((found for part in inner for found in sections_in(part)), None)
    return place if isinstance(place, type) and issubclass(place, Section) else None


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (tuple, dict)


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """The sections that an annotation like `A | None` or `tuple[A, ...]` speaks of (not those of a mapping)."""
    if typing.get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    elif typing.get_origin(annotation) is not dict:
        for part in typing.get_args(annotation):
            yield from sections_in(part)


def all_keys(root: type[Section], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a section and the sections in it."""
    for name, field in root.model_fields.items():
        yield prefix + name
        for inner in sections_in(field.annotation):
            yield from all_keys(inner, f"{prefix}{name}.")


def nearest(path: tuple[str | int, ...], root: type[Section]) -> str:
    """Name the valid key that is most like an unknown one: in the same section first, then anywhere."""
    leaf = str(path[-1]).lower()
    owner = _owner(path[:-1], root)
    siblings = {name.lower(): name for name in owner.model_fields} if owner else {}
    if close := difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.6):
        return f"did you mean {dotted((*path[:-1], siblings[close[0]]))}?"
    keys = list(all_keys(root))
    by_leaf = [key for key in keys if key.rpartition(".")[2].lower() == leaf]
    anywhere = by_leaf or difflib.get_close_matches(dotted(path), keys, n=1, cutoff=0.0)
    return f"the nearest valid key is {anywhere[0]}"


def takes_text(root: type[Section], key: str) -> bool:
    """Whether a dotted key, as far as the schema knows it, holds text (or a mapping or list of texts).

    >>> from homo_dp.config.schema import Config
    >>> takes_text(Config, "data.files.a"), takes_text(Config, "privacy.delta"), takes_text(Config, "predictFileName")
    (True, False, True)
    """
    owner: Any = root
    for name in key.split("."):
        if not (isinstance(owner, type) and issubclass(owner, Section)):
            return True
        if name not in owner.model_fields:
            return True
        annotation = owner.model_fields[name].annotation
        owner = next(sections_in(annotation), annotation)
    return _holds_text(owner)


def _holds_text(annotation: Any) -> bool:
    if typing.get_origin(annotation) is typing.Literal:
        return all(isinstance(word, str) for word in typing.get_args(annotation))
    if annotation is str:
        return True
    parts = typing.get_args(annotation)
    return any(_holds_text(part) for part in (parts[1:] if typing.get_origin(annotation) is dict else parts))


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as it is written in --params; names with dots or spaces are quoted.

    >>> dotted(("data", "columns", "mean radius", "bounds"))
    "data.columns.'mean radius'.bounds"
    """
    words = (str(part) for part in path)
    return ".".join(w if re.fullmatch(r"[\w-]+", w) else "'" + w.replace("'", "''") + "'" for w in words)


def show(value: Any) -> str:
    """A value as it stands in a message: short, on one line."""
    if isinstance(value, Section):
        value = value.model_dump(mode="json")
    text = value if isinstance(value, str) and value else json.dumps(value, default=str, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."


def _real(path: tuple[str | int, ...], given: Any, missing: bool = False) -> tuple[str | int, ...]:
    """Keep of pydantic's path the keys that were given; the rest names branches of unions and filled-in keys."""
    real: list[str | int] = []
    for part in path:
        inner = _at(given, (part,))
        if inner is not None or (isinstance(given, dict) and part in given) or (missing and part == path[-1]):
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
