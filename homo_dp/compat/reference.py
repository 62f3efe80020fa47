"""The names of other systems as docs/coming_from.md lists them: `python -m
homo_dp.compat.reference`.
"""

from collections.abc import Mapping

from homo_dp.compat.names import FLOWER, FLOWER_DP, KEYS, OLD_NAMES

_PAGE = """## All names

<!-- Written by `python -m homo_dp.compat.reference`; a test keeps it equal to the code. -->

In `--params` and in a config of ours:

{keys}

Without a section, Flower's:

{flower}

Without a section, in a run with `privacy.mechanism: nbafl`, flower-dp's:

{flower_dp}

In the older form `name:TYPE:is_array:value` of `--params`, and in task files, PrimiHub's:

{primihub}
"""


def names_reference() -> str:
    """The section of the page."""
    return _PAGE.format(
        keys=_table(KEYS),
        flower=_table({**FLOWER, "server_side_noising": "privacy.noise_at"}),
        flower_dp=_table(FLOWER_DP),
        primihub=_table(OLD_NAMES),
    )


def _table(names: Mapping[str, str]) -> str:
    rows = [f"| `{theirs}` | `{ours}` |" for theirs, ours in names.items()]
    return "\n".join(["| name | is here |", "|---|---|", *rows])


if __name__ == "__main__":
    print(names_reference(), end="")
