"""The `metrics` section: what anybody but the owner of the test rows learns about how good the
model is.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from homo_dp.config.base import Count, Flag, Probability, Section, key, whole


class MetricsConfig(Section):
    """Metrics of the parties' test rows that are released with noise."""

    release: Literal["local", "noised", "public"] = key(
        "local",
        "`local`: parties see those of their own test rows, nobody else any. `noised`: parties add "
        "up counts with noise, under the same target_epsilon (dp_sgd, dp_fedsgd). `public`: the "
        "test table is public.",
    )
    every: Count | None = key(
        None, "Release after every so many rounds of training, and the last; null: the last only."
    )
    per_party: Flag = key(
        False,
        "Also show each party's own figures, read off what it released with its full noise; under "
        "secure aggregation only the total is seen, so not there.",
    )
    share: Probability = key(
        0.05, "Share of the budget, by mu^2, that all released metrics together take."
    )
    bins: Annotated[int, BeforeValidator(lambda v: whole(v, least=2, most=1000))] = key(
        10, "Bins of the histogram of scores, from which AUC, KS, ROC and calibration are read."
    )
