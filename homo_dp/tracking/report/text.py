"""The words of a privacy report: what is guaranteed to whom, what was released, and what the
guarantee does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homo_dp.privacy.accounting.strength import (
    MODERATE,
    NOMINAL,
    WEAK_MEANS,
    epsilon_text,
    nothing_left,
    short_epsilon,
    strength,
)

UNITS = {
    "record": "one record (one row of one party's table)",
    "user": "one user (all rows of one person within one party)",
}
RELATIONS = {
    "add_or_remove_one": (
        "a table that has that unit with the same table without it (add or remove one)"
    ),
    "replace_one": (
        "a table that has that unit with the same table with another in its place (replace one)"
    ),
}
UNKNOWN_RELATION = (
    "a table that has that unit with a neighbouring one; each party's own statement says which"
)
OBSERVERS = {
    "aggregator": (
        "the aggregator, who sees every message of every party, and everybody who sees the model"
    ),
    "model_reader": "people who see only the published model",
}
TRUSTED = (
    "The aggregator is NOT covered: it sees what the parties send before noise is added, and they "
    "trust it."
)


def guarantee(privacy: Mapping[str, Any]) -> str:
    """The guarantee in one paragraph."""
    if not privacy.get("private"):
        return (
            "This run gives NO differential-privacy guarantee. Whoever sees the model or the "
            "messages may learn about single records."
        )
    unit = UNITS.get(str(privacy.get("unit")), str(privacy.get("unit")))
    relation = RELATIONS.get(str(privacy.get("neighbouring_relation")), UNKNOWN_RELATION)
    observer = OBSERVERS.get(str(privacy.get("quoted_observer")), "those who see the model")
    epsilon = privacy.get("epsilon")
    figure = "no finite epsilon" if epsilon is None else f"epsilon {epsilon_text(epsilon)}"
    return (
        f"The guarantee protects {unit}. It compares {relation}. Between the two, the probability "
        f"of anything that {observer} can see or compute from what they see differs by at most a "
        f"factor e^epsilon, up to delta: {figure}, delta {privacy.get('delta') or 0:g}. "
        f"{trust_words(privacy) or ''}".rstrip()
        + "".join(f" Epsilon does not cover {each}." for each in privacy.get("not_covered", ()))
    )


def trust_words(privacy: Mapping[str, Any]) -> str | None:
    """What holds towards an aggregator that the parties trust; None where they do not."""
    if privacy.get("quoted_observer") != "model_reader":
        return None
    epsilon = (privacy.get("observers") or {}).get("aggregator", {}).get("epsilon")
    return (
        TRUSTED
        if epsilon is None
        else f"The aggregator is trusted with more: towards it epsilon is {epsilon_text(epsilon)}."
    )


def weakness(privacy: Mapping[str, Any]) -> str | None:
    """A warning where the guarantee is formal rather than strong; None where only the parties
    know their epsilon.
    """
    epsilon = privacy.get("epsilon")
    if not privacy.get("private") or (epsilon is None and privacy.get("basis")):
        return None
    if strength(epsilon) in ("strong", "moderate"):
        return None
    shown = (
        "There is no finite epsilon"
        if epsilon is None
        else f"Epsilon {short_epsilon(epsilon)} is above {MODERATE:g}"
    )
    text = f"{shown}, which is weak: {WEAK_MEANS} about what can be learned of one person."
    nothing = nothing_left(privacy.get("delta_with_neglected"))
    return text if nothing is None else f"{text} {nothing.capitalize()}."


def badge(privacy: Mapping[str, Any], *, verified: bool) -> tuple[str, str]:
    """The words of the badge of a report, and its colour: good, warn or bad.

    Above an epsilon of 100 the badge does not contain the word private.

    >>> badge({"private": True, "epsilon": 168_000.0}, verified=True)
    ('WEAK GUARANTEE: epsilon 168,000', 'bad')
    """
    if not privacy.get("private"):
        return "NOT PRIVATE", "bad"
    if not verified:
        return "NOT VERIFIED", "bad"
    epsilon = privacy.get("epsilon")
    if epsilon is None:
        known = bool(privacy.get("basis"))
        return ("PRIVATE: epsilon is in each party's report" if known else "NO FINITE EPSILON"), (
            "good" if known else "bad"
        )
    word, shown = strength(epsilon), short_epsilon(epsilon)
    if epsilon > NOMINAL:
        return f"WEAK GUARANTEE: epsilon {shown}", "bad"
    if privacy.get("not_covered"):
        return f"PRIVATE BUT FOR DRAFTED BOUNDS, {word}: epsilon {shown}", "warn"
    return f"PRIVATE, {word}: epsilon {shown}", "warn" if word == "weak" else "good"


def released_words(privacy: Mapping[str, Any]) -> str:
    """What else left a party, beside the releases on the ledger."""
    if not privacy.get("private"):
        return (
            "NOT PRIVATE: the noise can be repeated by whoever knows its seed, and taken off again."
        )
    if privacy.get("quoted_observer") == "model_reader":
        return (
            "Listed is what the aggregator published. The parties sent it their updates without "
            "enough noise of their own: it is trusted with them."
        )
    if privacy.get("secure_aggregation") == "on":
        return (
            "How it was made is that of the parties' total, the only sum that can be read; sigma "
            "is a party's own share of its noise. Nothing else of its rows left a party: messages "
            "carry masked sums, public keys, encrypted shares of masks and public numbers."
        )
    return "Nothing else left a party: messages carry only the released tensors and public numbers."


def unlisted_words(privacy: Mapping[str, Any], *, kept_by_parties: bool) -> str:
    """What was released where there are no rows of a ledger to list."""
    if not privacy.get("private"):
        return (
            "In every round each party that took part sent its update as it was, without enough "
            "noise to protect anybody. Nothing of it is on a ledger."
        )
    if kept_by_parties:
        return (
            "In every round each party that answered released one update with its own noise. What "
            "exactly, and at what price, is on that party's own ledger and in its own report; the "
            "aggregator kept the heads."
        )
    return "There is no ledger extract in the folder."


def event_words(event: Mapping[str, Any]) -> str:
    """An event of the ledger in words.

    >>> event_words({"type": "GaussianDpEvent", "noise_multiplier": 2.0})
    'Gaussian noise of 2 times the largest contribution'
    """
    match event.get("type"):
        case "SelfComposedDpEvent":
            return (f"{event['count']} times: " if event["count"] > 1 else "") + event_words(
                event["event"]
            )
        case "ComposedDpEvent":
            return "; and ".join(event_words(inner) for inner in event["events"]) or "nothing"
        case "PoissonSampledDpEvent":
            rate = event["sampling_probability"]
            return (
                f"each unit drawn with probability {rate:.4g}, then {event_words(event['event'])}"
            )
        case "SampledWithoutReplacementDpEvent":
            drawn, total = event["sample_size"], event["source_dataset_size"]
            return f"{drawn} of {total} units drawn, then {event_words(event['event'])}"
        case "GaussianDpEvent":
            return (
                f"Gaussian noise of {event['noise_multiplier']:.4g} times the largest contribution"
            )
        case "RepeatAndSelectDpEvent":
            return (
                f"the best of a secret number of trials, {event['mean']:.4g} on average, each: "
                f"{event_words(event['event'])}"
            )
        case "NoOpDpEvent":
            return "nothing"
        case name:
            return str(name)


def limits(privacy: Mapping[str, Any], lifetime_epsilon: float | None) -> list[str]:
    """What the guarantee does not cover, for this run."""
    if not privacy.get("private"):
        return ["There is no guarantee whose limits could be named: see above."]
    unit = str(privacy.get("unit"))
    found = [
        str(
            privacy.get("note")
            or "The largest epsilon over the parties holds only if every person is in one party."
        ),
        (
            f"It is about one {unit}. A group of k {unit}s is protected k times less (epsilon "
            "grows about k-fold)."
        ),
        (
            "It bounds what can be learned from somebody's presence in the data. What the model "
            "learns about everybody, for example that a symptom goes with an illness, can still "
            "be used against a person."
        ),
        (
            "It covers this run. Runs on the same data add up: see the budget, and the ledger of "
            "each party."
        ),
        (
            "Choosing columns, bounds, the architecture or other settings by looking at private "
            "rows is not in the figure, nor is choosing this run among several because its "
            "private test rows looked best."
        ),
        (
            "Column bounds, levels, classes and the number of parties are taken as public "
            "declarations."
        ),
        (
            "Metrics of private rows, predictions and gradient norms were computed without noise. "
            "They are not covered and must stay where the rows are."
        ),
        "Time, memory and network traffic of the computation are not covered.",
    ]
    found[1:1] = [str(note) for note in privacy.get("notes") or ()]
    trust = trust_words(privacy)
    if trust is not None:
        found.insert(
            0,
            (
                "The aggregator is trusted: towards it there is no guarantee."
                if trust is TRUSTED
                else trust
            ),
        )
    if not privacy.get("secure_mode"):
        found.insert(
            0, "Secure mode was off: noise came from an ordinary generator and could be predicted."
        )
    if str(privacy.get("rows")).startswith("counted"):
        found.append(
            "Row counts were not declared (data.rows) but counted; sample rate, steps and noise "
            "disclose them."
        )
    if privacy.get("basis"):
        found.append(
            "Whether a lifetime budget limits further runs on these data, each party's own report "
            "says."
        )
    elif lifetime_epsilon is None:
        found.append(
            "No lifetime budget was set (privacy.lifetime_epsilon): nothing stops further runs on "
            "these data."
        )
    return found


def observers(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who sees what, and what epsilon holds towards them."""
    names = {
        "aggregator": "the aggregator (sees every message of every party)",
        "model_reader": "a reader of the published model",
    }
    found = privacy.get("observers") or {}
    return [
        (names.get(name, name), _epsilon(value.get("epsilon"))) for name, value in found.items()
    ]


def _epsilon(value: float | None) -> str:
    return "no guarantee" if value is None else f"epsilon {epsilon_text(value)}"
