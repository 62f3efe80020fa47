"""The reference of every key, written from the schema: `python -m homo_dp.config.reference >
docs/config.md`.
"""

import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic.fields import FieldInfo

from homo_dp.config.base import Section
from homo_dp.config.explain import fields_of, sections_in, show
from homo_dp.config.layers import EXCLUSIVE
from homo_dp.config.schema import Config

_HEAD = """# Configuration

<!-- Written by `python -m homo_dp.config.reference`; a test keeps it equal to the code. -->

A configuration is a YAML file (`--config FILE`, or `--cfg FILE key value ...`) with the sections below; every key has a
default, and `conf/auto.yaml` is the default recipe. Rate, rounds, batch, clip, solver and mechanism that
nothing sets follow by rules (docs/auto.md) instead of the defaults below; `train.auto: false` switches the rules off.
`--params key=value,...` puts single keys over a file.
An unknown key is an error that names the nearest valid one. Relative paths start at the working directory.

The order is: defaults, file, command line. What comes later wins. Null, where a key takes it, means not given.
Without `--config` and `--cfg`, a command reads `config.yaml` of the working folder if it is there, and refuses one that
has no `data:` section. The first line of every run names the file. `--config auto` is the built-in example.
`--config` may be repeated, and a later file goes over an earlier one: a recipe, then a file that describes the columns.

## Overrides

`--params` may be repeated. Items are separated by commas or spaces, except inside quotes and brackets:

    --params train.rounds=30,privacy.target_epsilon=2 --params "data.classes=[no, yes]"
    --params "data.columns.'mean radius'.bounds=[6, 22]"       a name with a space or dot in quotes
    --params 'data.files.a="my table, v2.csv"'                  a value with a space or comma in quotes

Values are YAML scalars, lists or mappings; a plain value that is not a number, true, false or null is text. Words
follow YAML 1.2: `no`, `yes`, `on`, `off` are text, `1e-5` is a number. PrimiHub's form `name:TYPE:is_array:value`
(TYPE is STRING, INT32 or BYTE; arrays, flag 1, are split at `;`) works unchanged; there, too, a value with a comma
needs quotes.

Of some keys only one can be given. Both in one place is an error, but on the command line the one given there replaces
the one of the file:

"""

_TAIL = """
## Other names

`predictFileName`, `indicatorFileName` and `modelFileName` stand for `output.*` in `--params` and at the top of a file,
`data.file` for `data.files`. Names and files of other systems work too: docs/coming_from.md.
"""


def reference() -> str:
    """The whole page."""
    parts = [_HEAD]
    parts += [
        " ".join(("-", " or ".join(f"`{key}`" for key in group))) + "\n" for group in EXCLUSIVE
    ]
    parts.append(
        "\nAnother `privacy.mechanism` on the command line also drops the keys of the file that it "
        "does not read, and\nother `data.files` or `data.embedded` drop the way in which the "
        "former table was split.\n"
    )
    for name, field in Config.model_fields.items():
        kinds = list(sections_in(field.annotation))
        shared = next(
            each for each in kinds[0].__mro__ if all(issubclass(kind, each) for kind in kinds)
        )
        about = " ".join(str(shared.__doc__).split())
        parts += [f"\n## {name}\n\n{about}\n\n| key | values | default | |\n|---|---|---|---|\n"]
        parts += [row + "\n" for row in _rows([shared, *kinds], name)]
    return "".join(parts) + _TAIL


def _rows(kinds: Sequence[type[Section]], prefix: str) -> Iterator[str]:
    for name, field in fields_of(kinds).items():
        key = f"{prefix}.{name}"
        inner = next(sections_in(field.annotation), None)
        is_list = typing.get_origin(field.annotation) is tuple
        if inner is None or is_list or field.default is None:
            yield (
                f"| `{key}` | {_values(field.annotation)} | {_default(field)} | "
                f"{field.description} |"
            )
        if inner is not None:
            if not is_list and field.default is not None:
                yield f"| `{key}` | section | | {field.description} |"
            yield from _rows([inner], f"{key}[]" if is_list else key)
        for described in _mapped(field.annotation):
            yield from _rows([described], f"{key}.<name>")


def _mapped(annotation: Any) -> Iterator[type[Section]]:
    if typing.get_origin(annotation) is dict:
        yield from sections_in(typing.get_args(annotation)[1])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, tuple):
        default = [part.model_dump() if isinstance(part, Section) else part for part in default]
    return f"`{show(default)}`"


def _values(annotation: Any) -> str:
    """The type of a key in a user's words.

    >>> _values(Literal["a", "b"] | None), _values(tuple[int, ...]), _values(dict[str, float])
    ('`a`, `b`, or null', 'list of whole number', 'mapping to number')
    """
    if typing.get_origin(annotation) is Literal:
        return ", ".join(f"`{word}`" for word in typing.get_args(annotation))
    plain = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "true or false",
        Any: "anything",
    }
    if annotation in plain:
        return plain[annotation]
    if (
        isinstance(annotation, type)
        and issubclass(annotation, Section)
        and not typing.get_origin(annotation)
    ):
        return "section"
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple and Ellipsis not in parts:
        return "`[low, high]`"
    if origin is tuple:
        return f"list of {_values(parts[0])}"
    if origin is dict:
        return f"mapping to {_values(parts[1])}"
    if origin is typing.Annotated:
        return _values(parts[0])
    words = [_values(part) for part in parts if part is not type(None)]
    if len(words) > 2:
        return "text, number, true or false"
    return " or ".join(words) + (", or null" if type(None) in parts else "")


if __name__ == "__main__":
    print(reference(), end="")
