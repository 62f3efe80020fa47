"""Privacy events and their canonical JSON: what was released, in dp-accounting's words, as the
ledger keeps it.

Two ledgers that hold the same event hold the same text, so the text is what is hashed, compared and
cached. Only the mechanisms that this project performs are known; every other event is refused,
never guessed.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NewType

from homo_dp.core.strict_json import strict_json
from homo_dp.privacy.accounting import dp_event
from homo_dp.privacy.accounting.checks import MOST_STEPS, check_noise_multiplier
from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.accounting.selection import check_mean
from homo_dp.privacy.errors import PrivacyError

__all__ = [
    "Counts",
    "DpEvent",
    "EventText",
    "check_releases",
    "compose",
    "event_of",
    "from_json",
    "gaussian_multiplier",
    "parts",
    "to_json",
]

# the canonical JSON of an event: equal events have equal texts
EventText = NewType("EventText", str)
Counts = Mapping[EventText, int]  # how many times each event was released


def to_json(event: DpEvent) -> EventText:
    """The canonical text of an event: sorted keys, no spaces, shortest round-trip numbers.

    >>> to_json(dp_event.PoissonSampledDpEvent(0.25, dp_event.GaussianDpEvent(1)))
    '{"event":{"noise_multiplier":1.0,"type":"GaussianDpEvent"},"sampling_probability":0.25,"type":"PoissonSampledDpEvent"}'
    """
    return EventText(
        json.dumps(_to_tree(event), sort_keys=True, separators=(",", ":"), allow_nan=False)
    )


def from_json(text: str) -> DpEvent:
    """The event that ``to_json`` wrote; anything else is refused.

    >>> from_json('{"noise_multiplier":1.5,"type":"GaussianDpEvent"}')
    GaussianDpEvent(noise_multiplier=1.5)
    """
    try:
        tree = strict_json(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise PrivacyError(
            f"event={_short(text)} is not the JSON of an event ({error}); use events.to_json"
        ) from None
    return _from_tree(tree)


def parts(event: DpEvent) -> dict[EventText, int]:
    """The releases that an event is composed of: canonical text of each distinct mechanism -> how
    many times.

    >>> parts(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 3))
    {'{"noise_multiplier":2.0,"type":"GaussianDpEvent"}': 3}
    """
    counts: dict[EventText, int] = {}
    for mechanism, count in _flatten(event, 1):
        text = to_json(mechanism)
        counts[text] = counts.get(text, 0) + count
    return dict(sorted(counts.items()))


def event_of(counts: Counts) -> DpEvent:
    """One event for releases that were counted, as ``parts`` counts them."""
    repeated = (
        dp_event.SelfComposedDpEvent(from_json(text), count) for text, count in counts.items()
    )
    return compose(dp_event.NoOpDpEvent(), *repeated)


def check_releases(event: DpEvent) -> None:
    """Refuse an event that stands for nothing: whatever left under it would be free.

    >>> check_releases(dp_event.ComposedDpEvent([dp_event.NoOpDpEvent()]))
    Traceback (most recent call last):
    ...
    homo_dp.privacy.errors.PrivacyError: event=ComposedDpEvent(events=[NoOpDpEvent()]) stands for no release; name the \
event of the noise that was added
    """
    if not any(True for _ in _flatten(event, 1)):
        raise PrivacyError(
            f"event={_short(event)} stands for no release; name the event of the noise that was "
            "added"
        )


def compose(*events: DpEvent) -> DpEvent:
    """One event for all of these, equal mechanisms counted together; its text does not depend on
    their order.

    >>> compose(dp_event.GaussianDpEvent(2.0), dp_event.NoOpDpEvent(), dp_event.GaussianDpEvent(2.0))
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=2)
    """
    counts: dict[EventText, int] = {}
    for event in events:
        for text, count in parts(event).items():
            counts[text] = counts.get(text, 0) + count
    merged = [_repeat(from_json(text), count) for text, count in sorted(counts.items())]
    if not merged:
        return dp_event.NoOpDpEvent()
    return merged[0] if len(merged) == 1 else dp_event.ComposedDpEvent(merged)


def gaussian_multiplier(event: DpEvent) -> float | None:
    """The noise multiplier of the one Gaussian that equals a composition of plain Gaussians; None
    for all else.

    Releases with multipliers z_i on the same data are together one Gaussian with 1 / sqrt(sum of
    z_i**-2) (sufficient statistic of independent normals; https://arxiv.org/abs/1812.06210, section
    3).

    >>> gaussian_multiplier(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 4))
    1.0
    """
    inverse = []
    for mechanism, count in _flatten(event, 1):
        if not isinstance(mechanism, dp_event.GaussianDpEvent):
            return None
        inverse.append(math.sqrt(count) / float(mechanism.noise_multiplier))
    return 1.0 / math.hypot(*inverse) if inverse else None


def _repeat(mechanism: DpEvent, count: int) -> DpEvent:
    return mechanism if count == 1 else dp_event.SelfComposedDpEvent(mechanism, count)


def _flatten(event: DpEvent, count: int) -> Iterable[tuple[DpEvent, int]]:
    """The mechanisms inside an event with their counts; compositions and no-ops are opened up."""
    if count == 0 or isinstance(event, dp_event.NoOpDpEvent):
        return
    if isinstance(event, dp_event.SelfComposedDpEvent):
        yield from _flatten(event.event, count * _whole("count", event.count, 0, MOST_STEPS))
    elif isinstance(event, dp_event.ComposedDpEvent):
        for inner in event.events:
            yield from _flatten(inner, count)
    else:
        _to_tree(event)  # refuses what is unknown or out of range
        yield event, count


def _to_tree(event: DpEvent) -> dict[str, Any]:
    tree: dict[str, Any] = {"type": type(event).__name__}
    match event:
        case dp_event.GaussianDpEvent() | dp_event.LaplaceDpEvent():
            tree["noise_multiplier"] = _noise(event.noise_multiplier)
        case dp_event.PoissonSampledDpEvent():
            tree["sampling_probability"] = _probability(event.sampling_probability)
            tree["event"] = _sampled(event.event)
        case dp_event.SampledWithoutReplacementDpEvent():
            tree["source_dataset_size"] = _whole(
                "source_dataset_size", event.source_dataset_size, 1
            )
            tree["sample_size"] = _whole(
                "sample_size", event.sample_size, 1, tree["source_dataset_size"]
            )
            tree["event"] = _sampled(event.event)
        case dp_event.RepeatAndSelectDpEvent():
            tree["mean"] = _mean(event.mean)
            tree["shape"] = _shape(event.shape)
            check_releases(event.event)
            tree["event"] = _to_tree(event.event)
        case dp_event.SelfComposedDpEvent():
            tree["count"] = _whole("count", event.count, 0, MOST_STEPS)
            tree["event"] = _to_tree(event.event)
        case dp_event.ComposedDpEvent():
            tree["events"] = [_to_tree(inner) for inner in event.events]
        case dp_event.NoOpDpEvent():
            pass
        case _:
            raise PrivacyError(
                f"event={type(event).__name__} is not one of {', '.join(_FIELDS)}; add no others"
            )
    return tree


_DEEPEST = 30
_FIELDS = {
    "GaussianDpEvent": ("noise_multiplier",),
    "LaplaceDpEvent": ("noise_multiplier",),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "SampledWithoutReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
    "RepeatAndSelectDpEvent": ("event", "mean", "shape"),
    "SelfComposedDpEvent": ("event", "count"),
    "ComposedDpEvent": ("events",),
    "NoOpDpEvent": (),
}


def _from_tree(tree: Any, depth: int = 0) -> DpEvent:
    if depth > _DEEPEST:
        raise PrivacyError(
            f"event is nested more than {_DEEPEST} deep; use events.compose to flatten it"
        )
    name = tree.get("type") if isinstance(tree, dict) else None
    if not isinstance(name, str) or name not in _FIELDS:
        raise PrivacyError(
            f"event={_short(tree)} is not one of {', '.join(_FIELDS)}; use events.to_json"
        )
    if set(tree) != {"type", *_FIELDS[name]}:
        raise PrivacyError(
            f"event={_short(tree)} must have exactly the fields {('type', *_FIELDS[name])}"
        )
    fields = {key: tree[key] for key in _FIELDS[name]}
    if "event" in fields:
        fields["event"] = _from_tree(fields["event"], depth + 1)
    if "events" in fields:
        if not isinstance(fields["events"], list):
            raise PrivacyError(f"events={_short(fields['events'])} must be a list of events")
        fields["events"] = [_from_tree(inner, depth + 1) for inner in fields["events"]]
    if "shape" in fields and fields["shape"] is None:
        fields["shape"] = math.inf  # of a Poisson number, which JSON has no number for
    event = getattr(dp_event, name)(**fields)
    _to_tree(event)  # the ranges
    return event


def _sampled(event: DpEvent) -> dict[str, Any]:
    """What may run on a sample: Gaussians (one, or several on the same sample)."""
    if gaussian_multiplier(event) is None:
        raise PrivacyError(
            f"event={_short(event)} inside a sampled event must be Gaussian; use a GaussianDpEvent"
        )
    return _to_tree(event)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = None if isinstance(value, (bool, str, bytes)) else value.__float__()
        except (AttributeError, TypeError, ValueError):
            value = None
    if value is None or not math.isfinite(value):
        raise PrivacyError(f"{name}={_short(value)} must be a finite number; give a number")
    return float(value)


def _noise(value: Any) -> float:
    number = _number("noise_multiplier", value)
    check_noise_multiplier(number)
    return number


def _probability(value: Any) -> float:
    number = _number("sampling_probability", value)
    if not 0 < number <= 1:
        raise PrivacyError(
            f"sampling_probability={number:g} must be in (0, 1]; divide the batch size by the rows"
        )
    return number


def _mean(value: Any) -> float:
    number = _number("mean", value)
    check_mean(number)
    return number


def _shape(value: Any) -> float | None:
    """1 of a geometric number of trials, none of a Poisson one."""
    if value == math.inf:
        return None
    if _number("shape", value) != 1:
        raise PrivacyError(f"shape={_short(value)} must be 1 (geometric) or infinite (Poisson)")
    return 1.0


def _whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    try:
        number = value.__index__()
    except (AttributeError, TypeError):
        number = None
    if (
        number is None
        or isinstance(value, bool)
        or number < low
        or (high is not None and number > high)
    ):
        allowed = f">= {low}" if high is None else f"in [{low}, {high}]"
        raise PrivacyError(
            f"{name}={_short(value)} must be a whole number {allowed}; give a whole number"
        )
    return int(number)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
