"""The page of what each mechanism can do, written from the records: `python -m
homo_dp.config.mechanism_reference > docs/mechanisms.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from homo_dp.config.capabilities import Capabilities, Settings, said
from homo_dp.config.mechanisms import records

_HEAD = """# What each mechanism can do

<!-- Written by `python -m homo_dp.config.mechanism_reference`; a test keeps it up to date. -->

`privacy.mechanism` names the mechanism of a run. Each has one record of what it can do
(`homo_dp/config/mechanisms.py`), and one table of rules (`homo_dp/config/rules.py`) refuses
settings that a record rules out, before data is touched. A mechanism of your own declares the same
record: [extend.md](extend.md).

"""

_TAIL = """
- **Who adds the noise**: a party (all of it, against the aggregator too), the parties together
  (under masks, [secure_aggregation.md](secure_aggregation.md)), or the aggregator, which then has
  to be trusted.
- **Hooks and clients of one's own** may change what local training does where its result is
  bounded; where each row's part in a step is bounded, hooks get copies.
- **Releases in the same budget**: noise is solved together with private estimates before it and
  with released metrics.
- **Row counts**: under these settings a party cannot keep its number of rows to itself.
"""


def reference() -> str:
    """The whole page."""
    found = records()
    lines = [
        _row(["", *(f"`{record.name}`" for record in found)]),
        _row(["---"] * (len(found) + 1)),
        *(_row([title, *(text(record) for record in found)]) for title, text in _ROWS),
    ]
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def _list(words: Iterable[str]) -> str:
    return ", ".join(words) or "-"


def _keys(words: Iterable[str]) -> str:
    return _list(f"`{word}`" for word in words)


def _settings(record: Capabilities, settings: Settings | None) -> str:
    if settings is None:
        return "-"
    return f"`{said(settings)}`" if settings else "always"


def _unit(record: Capabilities) -> str:
    if not record.private:
        return "-"
    return "one row" if record.unit == "record" else "all rows of a user"


def _bounds(record: Capabilities) -> str:
    if not record.private:
        return "-"
    return "each row's part" if record.works_on == "rows" else "the result of training"


_ROWS: tuple[tuple[str, Callable[[Capabilities], str]], ...] = (
    ("what it is", lambda record: record.about),
    ("hides", _unit),
    (
        "neighbouring relation",
        lambda record: (record.relation or "by `privacy.sampling`").replace("_", " "),
    ),
    (
        "guarantee towards",
        lambda record: _list(each.replace("_", " ") for each in record.observers),
    ),
    ("who can add the noise", lambda record: _list(record.noise)),
    (
        "noise is left to the aggregator by",
        lambda record: _settings(record, record.noise_at_aggregator),
    ),
    ("secure aggregation", lambda record: _yes(record.masks)),
    ("noise is set by `privacy.target_epsilon`", lambda record: _yes(record.target)),
    ("what is sampled", lambda record: record.sampling),
    ("trains a model", lambda record: _yes(record.trains)),
    ("bounds", _bounds),
    (
        "hooks may change the model",
        lambda record: _yes(record.trains and record.works_on == "result"),
    ),
    ("several local steps in a round", lambda record: _yes(record.trains and record.local_steps)),
    ("`train.grad_clip`", lambda record: _yes(record.cuts_batches)),
    ("solvers of linear models", lambda record: _keys(record.solvers) if record.trains else "-"),
    ("`train.weighting`", lambda record: _keys(record.weightings) if record.trains else "-"),
    ("settings by rule (`train.auto`)", lambda record: _yes(record.auto)),
    ("released metrics in the same budget", lambda record: _yes(record.metrics)),
    ("private estimates first, in the same budget", lambda record: _yes(record.estimates_first)),
    ("parties of a round", lambda record: record.parties_of_round),
    ("can hide who took part", lambda record: _yes(record.hides_cohort)),
    ("row counts have to be declared", lambda record: _settings(record, record.needs_rows)),
    ("own section of the config", lambda record: _keys(record.sections)),
    ("attack by `homo-dp audit`", lambda record: _keys(dict.fromkeys(record.attacks.values()))),
)

if __name__ == "__main__":
    print(reference(), end="")
