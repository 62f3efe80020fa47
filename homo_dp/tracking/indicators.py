"""The indicators of a run: one JSON file of metrics, the privacy statement and the rounds, in
that order.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from homo_dp.tracking.files import write_json

FIXED_KEYS = ("privacy", "rounds", "local_only")


def build_indicators(
    train_metrics: Mapping[str, Any],
    test_metrics: Mapping[str, Any],
    privacy: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    local_only: Iterable[str],
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The indicators in their fixed order: train_*, test_*, extra, privacy, rounds, local_only.

    >>> list(build_indicators({"train_acc": 1.0}, {"acc": 0.9}, {}, [], ["train_acc"], {"run": "a"}))
    ['train_acc', 'test_acc', 'run', 'privacy', 'rounds', 'local_only']
    """
    flat = {**_prefixed(train_metrics, "train_"), **_prefixed(test_metrics, "test_")}
    for key, value in (extra or {}).items():
        if key in flat or key in FIXED_KEYS:
            raise ValueError(f"extra indicator {key}: this name is taken; choose another")
        flat[key] = value
    return {
        **flat,
        "privacy": dict(privacy),
        "rounds": [dict(row) for row in rounds],
        "local_only": list(dict.fromkeys(local_only)),
    }


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """What a tracker can take of indicators, or of the row of a round: plain numbers, no lists,
    words or booleans.

    >>> numbers_of({"test_acc": 0.9, "run": "a", "private": True, "test_fpr": [0.0, 1.0], "rounds_done": 3})
    {'test_acc': 0.9, 'rounds_done': 3}
    """
    return {name: value for name, value in values.items() if type(value) in (int, float)}


def local_only_names(
    train_metrics: Mapping[str, Any],
    test_metrics: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]] = (),
    *,
    public_test: bool = False,
) -> list[str]:
    """Which indicators were computed from private rows without noise, and so must stay where the
    rows are.

    Guarantees:
        - every metric of training rows, and of test rows unless the test table is declared public,
          is named;
        - so are its per-round copies (as ``rounds[].name``).

    Row counts are not named: they are declared, or public with the run, as ``privacy.rows`` says.

    >>> local_only_names({"acc": 1.0}, {"acc": 0.9}, public_test=True)
    ['train_acc']
    """
    names = list(_prefixed(train_metrics, "train_"))
    private: tuple[str, ...] = ("train_",)
    if not public_test:
        names += _prefixed(test_metrics, "test_")
        private = ("train_", "test_")
    per_round = dict.fromkeys(key for row in rounds for key in row)
    return names + [f"rounds[].{key}" for key in per_round if key.startswith(private)]


def no_better_than_majority(indicators: Mapping[str, Any]) -> str | None:
    """A sentence where the test accuracy is not above that of the most frequent class; else None.

    >>> no_better_than_majority({"test_acc": 0.61, "test_majority": 0.63})
    'the model is not better than always predicting the most frequent class: test accuracy 0.61, not above 0.63'
    """
    accuracy, majority = indicators.get("test_acc"), indicators.get("test_majority")
    if accuracy is None or majority is None or accuracy > majority:
        return None
    return (
        "the model is not better than always predicting the most frequent class: test accuracy "
        f"{accuracy:.3g}, not above {majority:.3g}"
    )


def write_indicators(
    path: str | Path, indicators: Mapping[str, Any], name: str = "indicatorFileName"
) -> None:
    """Write indicators as strict JSON (no NaN, no Infinity), whole or not at all."""
    write_json(path, indicators, name)


def published(indicators: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the indicators without anything that ``local_only`` names: what may leave the
    party.

    >>> published({"train_acc": 1.0, "rounds": [{"round": 1, "test_acc": 0.5}], "local_only": ["train_acc",
    ... "rounds[].test_acc"]})
    {'rounds': [{'round': 1}]}
    """
    hidden = set(indicators.get("local_only", ()))

    def keep(value: Any, at: str) -> Any:
        if isinstance(value, Mapping):
            paths = {key: f"{at}.{key}" if at else str(key) for key in value}
            return {
                key: keep(item, paths[key])
                for key, item in value.items()
                if paths[key] not in hidden
            }
        if isinstance(value, list | tuple):
            return [keep(item, f"{at}[]") for item in value]
        return value

    kept: dict[str, Any] = keep(
        {key: value for key, value in indicators.items() if key != "local_only"}, ""
    )
    return kept


def _prefixed(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        key if key.startswith(prefix) else prefix + key: value for key, value in metrics.items()
    }
