"""``homo_dp.describe``: draft the settings that describe tables, for a person to edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from homo_dp.api.tables import Parties, frame_of
from homo_dp.config.data import ONE_TABLE
from homo_dp.core.errors import InputError


@dataclass(frozen=True, repr=False)
class Description:
    """A draft of settings: bounds, categories and roles of the columns, read from the rows.

    Epsilon does not cover what was read from rows: a run on the draft states so, as long as
    ``data.bounds_source`` is ``draft``.
    """

    text: str  # the draft as YAML
    guesses: tuple[str, ...]  # what was guessed, and columns that give the label away

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for ``homo_dp.fit``, ``plan`` and ``stats`` on the same tables."""
        from homo_dp.config.yaml_text import parse_yaml

        return dict(parse_yaml(self.text))

    def __repr__(self) -> str:
        return "\n".join((*self.guesses, self.text))


def describe(
    parties: Parties,
    *,
    label: str | None = None,
    id: str | None = None,
    user: str | None = None,
    party: str | None = None,
) -> Description:
    """Draft the settings for tables, as ``homo-dp describe`` drafts a config for files.

    Args:
        parties: ``{name: table}`` or one table, as for ``homo_dp.fit``.
        label: The label column; guessed unless given, ``"none"`` if there is none.
        id: The column that identifies a row; guessed unless given, or ``"none"``.
        user: The column that names the user of a row; guessed unless given, or ``"none"``.
        party: The column of one table that names the party of each row; likewise.

    Returns:
        The draft, whose ``settings`` train on the same tables.

    Raises:
        DataError: A table cannot be read, or the tables do not fit together.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [41, 52, 63, 74], "outcome": [0, 1, 0, 1]})
        >>> found = describe({"north": frame, "south": frame})
        >>> found.settings["data"]["columns"]
        {'age': {'bounds': [40, 75]}}
    """
    from homo_dp.data.describe import NOBODY, draft
    from homo_dp.data.in_memory import held_in_memory

    given = dict(parties) if isinstance(parties, Mapping) else {ONE_TABLE: parties}
    target = "y" if label in (None, NOBODY) else str(label)
    tables = {str(name): frame_of(table, target, str(name)) for name, table in given.items()}
    frames = {name: table for name, table in tables.items() if not isinstance(table, str)}
    with held_in_memory(frames) as names:
        paths = {
            name: table if isinstance(table, str) else names[name] for name, table in tables.items()
        }
        roles = {"label": label, "id": id, "user": user, "party": party}
        try:
            found = draft(paths, roles, addresses={})
        except InputError as error:
            error.args = (_as_given(str(error), names),)
            raise
    return Description(_as_given(found.text, names), found.guesses)


def _as_given(text: str, names: Mapping[str, str]) -> str:
    """A text that calls tables in memory what the caller calls them."""
    for name, address in names.items():
        text = text.replace(address, "parties" if name == ONE_TABLE else f"parties[{name!r}]")
    return text
