"""The `statistics` section: which questions are asked of the parties' tables, under one budget."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator

from homo_dp.config.base import Columns, Conflict, Section, key, listed, whole

Question = Literal[
    "rows",
    "classes",
    "means",
    "variances",
    "second_moments",
    "histograms",
    "levels",
    "missing",
    "quantiles",
    "bounds",
    "level_names",
]


def _asked(value: object) -> object:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return listed(value)


class StatisticsConfig(Section):
    """Questions about the tables; read only with `privacy.mechanism: statistics`, as `homo-dp
    stats` sets it.
    """

    ask: Annotated[tuple[Question, ...], BeforeValidator(_asked)] = key(
        ("rows", "classes"), "The questions; all of them share `privacy.target_epsilon`."
    )
    columns: Columns | None = key(
        None, "Columns that are asked about; null: all. Fewer columns get less noise."
    )
    bins: Annotated[int, BeforeValidator(lambda v: whole(v, least=2, most=1000))] = key(
        20, "Bins of a histogram, of equal width within the column's public bounds."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.ask or len(set(self.ask)) != len(self.ask):
            raise Conflict(
                f"statistics.ask={','.join(self.ask)}: must name at least one question, each once"
            )
        return self
