"""YAML as we read and write it: the YAML 1.2 rules for plain words, no duplicate keys, and a dump
that reads back.

PyYAML follows YAML 1.1, where `1e-5` is text, `No` is false and `12:30` is 750; a config must not
depend on that. Nor may a few aliases stand for gigabytes: a file is bounded in size, in depth, and
in what it is once aliases are written out.
"""

import re
from typing import Any, ClassVar

import yaml

from homo_dp.core.errors import ConfigError, error_text
from homo_dp.core.untrusted_text import DEEPEST, Foreign, unfit

LARGEST_YAML = 4 << 20  # bytes; PyYAML reads about 200 kB a second
MOST_YAML_VALUES = 500_000  # with everything that aliases repeat
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
    """Knows only the core schema (mappings, lists, text, numbers, true/false, null), and counts
    while it composes.
    """

    # - PyYAML's own name
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._within = [0]  # for each open node, the values below it so far
        # of finished nodes, by identity; PyYAML keeps the nodes while it works
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._within.append(0)
        if len(self._within) > DEEPEST + 1:
            raise yaml.composer.ComposerError(
                None, None, f"it is nested deeper than {DEEPEST}", mark
            )
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        size = self._within.pop() + 1
        if is_alias:
            if id(node) not in self._sizes:
                raise yaml.composer.ComposerError(
                    None, None, "an alias stands inside of what it repeats", mark
                )
            size = self._sizes[id(node)]
        self._sizes[id(node)] = size
        self._within[-1] += size
        if self._within[-1] > MOST_YAML_VALUES:
            problem = f"it has more than {MOST_YAML_VALUES} values once aliases are written out"
            raise yaml.composer.ComposerError(None, None, problem, mark)
        return node

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(
                None, None, "keys with values are expected", node.start_mark
            )
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key_node, deep=True)
            if isinstance(name, list | dict):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a word", key_node.start_mark
                )
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name} is given twice", key_node.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what either YAML 1.1 or 1.2 would take for something else than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML folds line separators such as U+0085 unless they are escaped, which only double quotes
    # do
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    )


_Dumper.add_representer(str, _text_node)

for _tag, _pattern, _first in _CORE:
    _compiled = re.compile(rf"^(?:{_pattern})$")
    _first_letters = [letter if letter != "\0" else "" for letter in _first]
    _Loader.add_implicit_resolver(_tag, _compiled, _first_letters)
    _Dumper.add_implicit_resolver(_tag, _compiled, _first_letters)


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(
        loader.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan")
    )


def _bool(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool:
    word = loader.construct_scalar(node).lower()
    if word not in ("true", "false"):
        raise yaml.constructor.ConstructorError(
            None, None, f"{word} is neither true nor false", node.start_mark
        )
    return bool(word == "true")


def _str(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    text = loader.construct_scalar(node)
    if (problem := unfit(text)) is not None:
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return str(text)


def _unknown(_loader: yaml.SafeLoader, node: yaml.Node) -> None:
    problem = f"the tag {node.tag} is not known; leave it out"
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _name, _constructor in {
    "null": yaml.SafeLoader.construct_yaml_null,
    "seq": yaml.SafeLoader.construct_yaml_seq,
    "map": yaml.SafeLoader.construct_yaml_map,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _str,
}.items():
    _Loader.add_constructor(f"tag:yaml.org,2002:{_name}", _constructor)
_Loader.add_constructor(None, _unknown)


def parse_yaml(text: str, source: str = "text") -> Any:
    """Read YAML; anything wrong is one line with the place.

    >>> parse_yaml("{delta: 1e-5, levels: [Yes, No], y: ~}")
    {'delta': 1e-05, 'levels': ['Yes', 'No'], 'y': None}
    """
    foreign = Foreign(source, "correct the file", ConfigError, LARGEST_YAML)
    if len(text) > LARGEST_YAML:
        foreign.refuse(f"is larger than {LARGEST_YAML >> 10} KiB")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join((error.problem or "cannot be read").split())
        raise ConfigError(
            f"{source}:{where} is not valid YAML: {problem}; correct that line"
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        foreign.refuse(f"is not valid YAML: {error_text(error)}")


def parse_scalar(word: str) -> str | int | float | bool | None:
    """Read one plain word: null, true, false or a number, and otherwise the text itself, whatever
    is in it.

    >>> parse_scalar("1e-5"), parse_scalar("no"), parse_scalar("*.csv: #1"), parse_scalar("")
    (1e-05, 'no', '*.csv: #1', None)
    """
    if len(word) < 400 and any(
        re.fullmatch(pattern, word) for tag, pattern, _ in _CORE if not tag.endswith("merge")
    ):
        value: str | int | float | bool | None = parse_yaml(word)
        return value
    return word


def to_yaml(tree: Any) -> str:
    """Write a tree of plain values as YAML that both YAML 1.1 and 1.2 read back the same."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
