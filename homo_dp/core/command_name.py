"""How the user called us, ``homo-dp train`` or ``python -m homo_dp.train``: helps, errors and
advice say the same.
"""

from __future__ import annotations

import re

_MODULE = re.compile(r"python -m homo_dp\.(?:data (describe)|([a-z]+)(?![.\w]))")
_by_script = False


def use_script_name(by_script: bool = True) -> None:
    """From now on commands are called as the console script has them."""
    global _by_script
    _by_script = by_script


def as_typed(text: str) -> str:
    """A text with commands in it, as this user types them.

    >>> use_script_name()
    >>> as_typed("see python -m homo_dp.train --help"), as_typed("python -m homo_dp.data describe a.csv")
    ('see homo-dp train --help', 'homo-dp describe a.csv')
    >>> use_script_name(False)
    >>> as_typed("see python -m homo_dp.train --help")
    'see python -m homo_dp.train --help'
    """
    return (
        _MODULE.sub(lambda found: f"homo-dp {found[1] or found[2]}", text) if _by_script else text
    )
