"""YAML as we read and write it: the YAML 1.2 rules for plain words, no duplicate keys, and a dump that reads back.

PyYAML follows YAML 1.1, where `1e-5` is text, `No` is false and `12:30` is 750; a config must not depend on that.
"""

import re
from typing import Any

import yaml

from homo_dp.errors import ConfigError

_CORE = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own name

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            name = self.construct_object(key_node, deep=True)
            if isinstance(name, list | dict):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if name in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key {name} is given twice", key_node.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what either YAML 1.1 or 1.2 would take for something else than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML folds line separators such as U+0085 unless they are escaped, which only double quotes do
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _text_node)

for _tag, _pattern, _first in _CORE:
    _compiled = re.compile(rf"^(?:{_pattern})$")
    _first_letters = [letter if letter != "\0" else "" for letter in _first]
    _Loader.add_implicit_resolver(_tag, _compiled, _first_letters)
    _Dumper.add_implicit_resolver(_tag, _compiled, _first_letters)


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


def parse_yaml(text: str, source: str = "text") -> Any:
    """Read YAML; anything wrong is one line with the place.

    >>> parse_yaml("{delta: 1e-5, levels: [Yes, No], y: ~}")
    {'delta': 1e-05, 'levels': ['Yes', 'No'], 'y': None}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join((error.problem or "cannot be read").split())
        raise ConfigError(f"{source}:{where} is not valid YAML: {problem}; correct that line") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{source}: is not valid YAML: {reason}; correct the file") from None


def parse_scalar(word: str) -> str | int | float | bool | None:
    """Read one plain word: null, true, false or a number, and otherwise the text itself, whatever is in it.

    >>> parse_scalar("1e-5"), parse_scalar("no"), parse_scalar("*.csv: #1"), parse_scalar("")
    (1e-05, 'no', '*.csv: #1', None)
    """
    if len(word) < 400 and any(re.fullmatch(pattern, word) for tag, pattern, _ in _CORE if not tag.endswith("merge")):
        value: str | int | float | bool | None = parse_yaml(word)
        return value
    return word


def to_yaml(tree: Any) -> str:
    """Write a tree of plain values as YAML that both YAML 1.1 and 1.2 read back the same."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
