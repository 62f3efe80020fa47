"""Events and what they cost: epsilon by PLD and by RDP, and noise for a target.

``calibrate``, ``check_delta`` and ``epsilon`` are what mechanisms of one's own need. They are
imported when they are asked for, because most importers of this package want events alone.
"""

from typing import Any

_LAZY = ("calibrate", "check_delta", "epsilon")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from homo_dp.privacy.accounting import accountants

    return getattr(accountants, name)
