"""Completion of ``homo-dp`` in bash, zsh and fish: commands, the words and options of each, and
files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
# homo-dp completion bash > ~/.local/share/bash-completion/completions/homo-dp
_homo_dp() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" at=homo-dp i words options
    for (( i = 1; i < COMP_CWORD; i++ )); do
        case "$at ${{COMP_WORDS[i]}}" in
            {places}) at="$at ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$at" in
{cases}
    esac
    if [[ "$word" == -* ]]; then
        COMPREPLY=( $(compgen -W "$options" -- "$word") )
    elif [ "$at" = homo-dp ]; then
        COMPREPLY=( $(compgen -W "$words" -- "$word") )
    else
        COMPREPLY=( $(compgen -W "$words" -- "$word") )
        local IFS=$'\n'
        COMPREPLY+=( $(compgen -f -- "$word") )
    fi
}}
complete -o filenames -F _homo_dp homo-dp
"""
_ZSH = """\
#compdef homo-dp
# homo-dp completion zsh > "${{fpath[1]}}/_homo-dp"
local at=homo-dp part
local -a names options
for part in "${{(@)words[2,CURRENT-1]}}"; do
    case "$at $part" in
        {places}) at="$at $part" ;;
    esac
done
case "$at" in
{cases}
esac
if [[ "$words[CURRENT]" == -* ]]; then
    compadd -- $options
elif [[ "$at" == homo-dp ]]; then
    compadd -- $names
else
    compadd -- $names
    _files
fi
"""
_FISH = "# homo-dp completion fish > ~/.config/fish/completions/homo-dp.fish\n"


@dataclass(frozen=True)
class Place:
    """A command or a word below it, and what can follow."""

    path: tuple[str, ...]
    words: tuple[str, ...]
    options: tuple[str, ...]


def places(parsers: Mapping[str, argparse.ArgumentParser | tuple[str, ...]]) -> list[Place]:
    """What can follow ``homo-dp`` and each of its commands; a command without a parser has words
    only.

    >>> [place.path for place in places({"train": argparse.ArgumentParser(), "completion": ("bash",)})]
    [(), ('train',), ('completion',)]
    """
    found = [Place((), tuple(parsers), ("--help", "--version"))]
    for name, parser in parsers.items():
        if isinstance(parser, tuple):
            found.append(Place((name,), parser, ("--help",)))
        else:
            found += _below((name,), parser)
    return found


def completion_script(shell: str, found: list[Place]) -> str:
    """The script that a shell reads."""
    if shell == "fish":
        return _FISH + "".join(_fish_lines(found))
    inner = " | ".join(f'"homo-dp {" ".join(place.path)}"' for place in found if place.path)
    if shell == "bash":
        return _BASH.format(
            places=inner, cases=_cases(found, 'words="{words}"; options="{options}"')
        )
    return _ZSH.format(places=inner, cases=_cases(found, "names=({words}); options=({options})"))


def _below(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[Place]:
    words: list[str] = []
    options: list[str] = []
    inner: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        options += [name for name in action.option_strings if name.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            inner += action.choices.items()
        elif not action.option_strings and action.choices is not None:
            words += map(str, action.choices)
    yield Place(path, (*words, *(name for name, _ in inner)), tuple(options))
    for name, below in inner:
        yield from _below((*path, name), below)


def _cases(found: list[Place], sets: str) -> str:
    return "\n".join(
        f'        "{" ".join(("homo-dp", *place.path))}") '
        + sets.format(words=" ".join(place.words), options=" ".join(place.options))
        + " ;;"
        for place in found
    )


def _fish_lines(found: list[Place]) -> Iterator[str]:
    for place in found:
        seen = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in place.path)
        further = (
            f"; and not __fish_seen_subcommand_from {' '.join(place.words)}" if place.words else ""
        )
        when = f"{seen}{further}" if seen else "__fish_use_subcommand"
        if place.words:
            yield (
                f'complete -c homo-dp -n "{when}" {"" if place.path else "-f "}-a'
                f' "{" ".join(place.words)}"\n'
            )
        for option in place.options:
            yield f'complete -c homo-dp -n "{when}" -l {option[2:]}\n'
