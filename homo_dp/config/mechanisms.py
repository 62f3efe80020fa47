"""The mechanisms that ship: the record of each, and where its class is.

A new one is a file in ``federation/mechanisms`` and its record here. Nothing is imported before a
run needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from homo_dp.config.capabilities import Capabilities

DP_SGD: Final = Capabilities(
    name="dp_sgd",
    about="DP-SGD at each party (Abadi et al. 2016)",
    relation="add_or_remove_one",
    sampling="rows",
    metrics=True,
    estimates_first=True,
    auto=True,
    attacks={"aggregator": "canary_gradient", "model_reader": "canary_model"},
)
DP_FEDSGD: Final = Capabilities(
    name="dp_fedsgd",
    about="One noisy sum of clipped gradients a round",
    relation="add_or_remove_one",
    noise=("party", "parties together"),
    keys="shared_rows",
    sampling="rows",
    local_steps=False,
    metrics=True,
    estimates_first=True,
    solvers=("sgd", "gradient", "second_moment"),
    auto=True,
    needs_rows={},
    attacks={"aggregator": "canary_sum", "model_reader": "canary_sum"},
)
DP_FEDAVG: Final = Capabilities(
    name="dp_fedavg",
    about="Clipped updates of whole users (McMahan et al. 2018)",
    unit="user",
    noise=("aggregator", "party", "parties together"),
    noise_at_aggregator={"privacy.noise_at": "server"},
    keys="users",
    sampling="users",
    works_on="result",
    weightings=("uniform",),
    parties_of_round="drawn",
    hides_cohort=True,
    answers_empty_rounds=True,
    attacks={"model_reader": "canary_user"},
)
NBAFL: Final = Capabilities(
    name="nbafl",
    about="Noise on clipped weights (Wei et al. 2020)",
    keys="uploads",
    relation="replace_one",
    noise=("party", "aggregator", "parties together"),
    noise_at_aggregator={"nbafl.noise_at_upload": False, "privacy.secure_aggregation": False},
    works_on="result",
    cuts_batches=True,
    target=False,
    parties_of_round="in turn",
    needs_rows={"nbafl.min_dataset_size": None},
    price_needs_rows=False,  # the noise is by the smallest table, and that is declared
    sections=("nbafl",),
    attacks={"aggregator": "canary_upload", "model_reader": "canary_upload"},
)
STATISTICS: Final = Capabilities(
    name="statistics",
    about="Private sums over the tables (`homo-dp stats`)",
    trains=False,
    keys="questions",
    relation="add_or_remove_one",
    noise=("party", "parties together"),
    estimates_first=True,
    needs_rows={"privacy.secure_aggregation": True},
    sections=("statistics",),
    leaves_keys_aside=True,
)
NONE: Final = Capabilities(
    name="none",
    about="Federated averaging, for comparison: NOT PRIVATE",
    private=False,
    keys="none",
    relation="add_or_remove_one",
    observers=(),
    noise=(),
    works_on="result",
    cuts_batches=True,
    solvers=("sgd", "second_moment"),
    auto=True,
    target=False,
    leaves_keys_aside=True,
)
# The record of each mechanism, and the class that does it.
REGISTRY: Final[Mapping[str, tuple[Capabilities, str]]] = {
    record.name: (record, f"homo_dp.federation.mechanisms.{where}")
    for record, where in (
        (DP_SGD, "dp_sgd:DpSgd"),
        (DP_FEDSGD, "dp_fedsgd:DpFedSgd"),
        (DP_FEDAVG, "dp_fedavg:DpFedAvg"),
        (NBAFL, "nbafl:Nbafl"),
        (STATISTICS, "statistics:Statistics"),
        (NONE, "none:PlainAveraging"),
    )
}
BUILT_IN: Final = tuple(REGISTRY)
SECTIONS: Final = tuple(name for record, _ in REGISTRY.values() for name in record.sections)
CHOSEN: Final = DP_FEDSGD.name
"""What train.auto uses if no mechanism is given: its noise is what parties can share."""


def capabilities_of(mechanism: str) -> Capabilities:
    """The record of a mechanism, before its class is loaded.

    For one of somebody's own only what is needed before its class is known is promised here; the
    rules read the record of its class once that is loaded.

    >>> capabilities_of("dp_fedavg").unit, capabilities_of("mine.laplace:Laplace").estimates_first
    ('user', False)
    """
    if mechanism in REGISTRY:
        return REGISTRY[mechanism][0]
    return Capabilities(mechanism, metrics=True, sections=SECTIONS)


def where_is(mechanism: str) -> str:
    """The class of a mechanism as ``module:Class``; one of somebody's own is named so."""
    return REGISTRY[mechanism][1] if mechanism in REGISTRY else mechanism


def records() -> tuple[Capabilities, ...]:
    """The records of all mechanisms that ship."""
    return tuple(record for record, _ in REGISTRY.values())
