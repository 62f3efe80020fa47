"""Completion of ``homo-dp`` in bash, zsh and fish: commands, their options, and files."""

from __future__ import annotations

from collections.abc import Iterable

SHELLS = ("bash", "zsh", "fish")
_OPTIONS = ("--config", "--params", "--dry-run", "--quiet", "--json", "--help")

_BASH = """\
# homo-dp completion bash > ~/.local/share/bash-completion/completions/homo-dp
_homo_dp() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=( $(compgen -W "{commands}" -- "$word") )
    elif [[ "$word" == -* ]]; then
        COMPREPLY=( $(compgen -W "{options}" -- "$word") )
    else
        COMPREPLY=( $(compgen -f -- "$word") )
    fi
}}
complete -o filenames -F _homo_dp homo-dp
"""
_ZSH = """\
#compdef homo-dp
# homo-dp completion zsh > "${{fpath[1]}}/_homo-dp"
if (( CURRENT == 2 )); then
    compadd -- {commands}
elif [[ "$words[CURRENT]" == -* ]]; then
    compadd -- {options}
else
    _files
fi
"""
_FISH = """\
# homo-dp completion fish > ~/.config/fish/completions/homo-dp.fish
complete -c homo-dp -n __fish_use_subcommand -f -a "{commands}"
complete -c homo-dp -n "not __fish_use_subcommand" -a "{options}"
"""


def completion_script(shell: str, commands: Iterable[str]) -> str:
    """The script that a shell reads.

    >>> "train infer" in completion_script("bash", ["train", "infer"])
    True
    """
    template = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]
    return template.format(commands=" ".join(commands), options=" ".join(_OPTIONS))
