"""What a plan may hold: its keys, types and sizes, checked before anything else looks at it.

A plan comes from another machine. Nothing of it is used before `read_plan` has bounded its depth,
counts, texts and numbers and has read every section by the schema of the config; what does not fit
is a PlanRefused and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from homo_dp.config.base import Column, Count, PartyName, Section, whole
from homo_dp.config.mechanisms import SECTIONS as MECHANISM_SECTIONS
from homo_dp.config.model import ModelConfig
from homo_dp.config.privacy import EVERY_KEY, PrivacyConfig
from homo_dp.config.schema import Config, DataConfig
from homo_dp.config.train import TrainConfig
from homo_dp.core.errors import one_line
from homo_dp.privacy.errors import BudgetExceeded

PlanJson = dict[str, Any]
VERSION = 1

# What the aggregator decides in `privacy` and `data`; every other key there is the party's own.
PRIVACY_KEYS = (
    *(
        "mechanism",
        "unit",
        "target_epsilon",
        "noise_multiplier",
        "delta",
        "max_grad_norm",
        "clip_norm",
        "clipping",
    ),
    *(
        "adaptive",
        "clip_each_step",
        "sampling",
        "population",
        "cohort_size",
        "sample_rate",
        "noise_at",
    ),
    *("tolerated_dropouts", "secure_aggregation", "tolerated_colluders", "options"),
    "statistics_share",
)
# Left out of a plan that does not ask for masks, so that it is the plan that earlier versions made
# and kept.
LATER_KEYS = ("secure_aggregation", "tolerated_colluders")
LATER_SECTIONS = ("statistics", "metrics")  # the same for whole sections
DATA_KEYS = (
    *(
        "label",
        "classes",
        "use",
        "drop",
        "columns",
        "columns_from",
        "missing_values",
        "target_bounds",
        "image",
    ),
    *("scaling", "counts", "curves", "bounds_source"),
)
# in a plan only where counts are estimated, curves are asked for, or a source is stated
LATER_DATA_KEYS = ("counts", "curves", "bounds_source")
# Of each process itself. When to stop is the aggregator's business: parties answer as long as they
# are asked.
OWN_TRAIN_KEYS = (
    *("init_from", "device", "threads", "physical_batch_size", "evaluate_every"),
    *("early_stopping", "keep"),
)

MOST_DEPTH = 12
MOST_VALUES = 100_000  # of all lists and objects together
MOST_TEXT = 4096
MOST_PARTIES = 10_000
MOST_LAYERS = 64
MOST_PIXELS = 1 << 24
LEAST_NUMBER, MOST_NUMBER = 1e-30, 1e38  # apart from zero: what float32 and its squares can hold
# with any number of steps that caps allow, some noise reaches it, whatever the rows are
LEAST_TARGET = 1e-3
_SHOWN = 400


class PlanRefused(BudgetExceeded):
    """A plan that passes what the party's own config allows; ``reason`` is the word that the
    aggregator is told.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(
            one_line(text, _SHOWN)
        )  # text from another machine: shortened and on one line before an operator sees it
        self.reason = reason


def read_plan(plan: object) -> PlanJson:
    """The plan with every value checked and every key there, or PlanRefused; takes time and memory
    as its text does.

    >>> read_plan({"version": 1, "privacy": {"trust_aggregator": True}})
    Traceback (most recent call last):
    ...
    homo_dp.federation.sessions.plan_schema.PlanRefused: plan.model: Field required
    """
    check_sizes(plan)
    if not isinstance(plan, dict) or plan.get("version") != VERSION:
        version = plan.get("version") if isinstance(plan, dict) else None
        raise PlanRefused("version", f"plan version={version}, this homo_dp reads {VERSION}")
    try:
        read = _PlanSchema.model_validate(plan)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in ("plan", *first["loc"]))
        raise PlanRefused(
            "plan", f"{where}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
    optional = ("order", *LATER_SECTIONS)
    found = {
        name: value
        for name, value in read.model_dump(mode="json").items()
        if name in plan or name not in optional
    }
    given = plan["privacy"]
    # Keys that came later are in a plan only if they are asked for, so that kept plans of before
    # are the same job.
    found["privacy"] = {
        name: value
        for name, value in found["privacy"].items()
        if name not in LATER_KEYS or name in given
    }
    found["data"] = {
        name: value
        for name, value in found["data"].items()
        if name not in LATER_DATA_KEYS or name in plan["data"]
    }
    return found


def check_sizes(plan: object) -> None:
    """Refuse nesting, counts, texts and numbers beyond every use, by a walk that does not
    recurse.
    """
    level, depth, values = [plan], 0, 0
    while level:
        depth += 1
        values += len(level)
        if depth > MOST_DEPTH or values > MOST_VALUES:
            raise PlanRefused(
                "plan",
                f"the plan is nested deeper than {MOST_DEPTH} or has over {MOST_VALUES} values",
            )
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.keys())
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            else:
                _check_value(value)
        level = below


def _check_value(value: object) -> None:
    if isinstance(value, str):
        if len(value) > MOST_TEXT:
            raise PlanRefused(
                "plan", f"the plan has a text of {len(value)} characters, allowed {MOST_TEXT}"
            )
    elif isinstance(value, int | float) and not isinstance(value, bool):
        size = abs(value)
        large = (
            size > 1 << 64
            if isinstance(value, int)
            else not (size == 0 or LEAST_NUMBER <= size <= MOST_NUMBER)
        )
        if large:
            raise PlanRefused(
                "plan",
                f"the plan has a number that is not 0 nor of a size from {LEAST_NUMBER:g} to "
                f"{MOST_NUMBER:g}",
            )
    elif value is not None and not isinstance(value, bool):
        raise PlanRefused("plan", f"the plan has a value of type {type(value).__name__}")


def _part(name: str, known: Mapping[str, FieldInfo], names: Collection[str]) -> Any:
    """A section with some of the known keys, each read and bounded as there; nothing else is let
    in.
    """
    fields: dict[str, Any] = {key: (known[key].annotation, known[key]) for key in names}
    return create_model(f"Plan{name}", __base__=Section, **fields)


def _checked(check: Callable[[Any], str | None]) -> BeforeValidator:
    def look(value: Any) -> Any:
        problem = check(value)
        if problem is not None:
            raise ValueError(problem)
        return value

    return BeforeValidator(look)


def _model(value: Any) -> str | None:
    lists = [value.get(name) for name in ("layers", "channels")] if isinstance(value, dict) else []
    if any(isinstance(widths, list) and len(widths) > MOST_LAYERS for widths in lists):
        return f"layers and channels: at most {MOST_LAYERS} each"
    return None


def _data(value: Any) -> str | None:
    if isinstance(value, dict) and value.get("bounds_source") == "draft":
        return "bounds_source=draft: bounds and categories of a plan must not be read from rows"
    image = value.get("image") if isinstance(value, dict) else None
    shape = image.get("shape") if isinstance(image, dict) else None
    sides = shape if isinstance(shape, list) else []
    if any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
        return "image.shape: must be whole numbers above 0"
    return (
        f"image.shape: at most {MOST_PIXELS} values" if math.prod(sides[:4]) > MOST_PIXELS else None
    )


def _privacy(value: Any) -> str | None:
    if isinstance(value, dict) and value.get("delta") is None:
        return "delta: is missing"
    target = value.get("target_epsilon") if isinstance(value, dict) else None
    if isinstance(target, int | float) and target < LEAST_TARGET:
        return f"target_epsilon: must be at least {LEAST_TARGET:g}"
    return None


_SHARED_TRAIN = [name for name in TrainConfig.model_fields if name not in OWN_TRAIN_KEYS]
_Train = _part("Train", TrainConfig.model_fields, _SHARED_TRAIN)
_Privacy = _part(
    "Privacy", {**EVERY_KEY, "mechanism": PrivacyConfig.model_fields["mechanism"]}, PRIVACY_KEYS
)
_Data = _part("Data", DataConfig.model_fields, DATA_KEYS)
_FIELDS: dict[str, Any] = {
    "version": (
        Annotated[int, BeforeValidator(lambda v: whole(v, least=VERSION, most=VERSION))],
        ...,
    ),
    "model": (Annotated[ModelConfig, _checked(_model)], ...),
    "train": (_Train, ...),
    "privacy": (Annotated[_Privacy, _checked(_privacy)], ...),
    **{
        name: (Config.model_fields[name].annotation, ...)
        for name in MECHANISM_SECTIONS
        if name not in LATER_SECTIONS
    },
    **{
        name: (Config.model_fields[name].annotation, Config.model_fields[name])
        for name in LATER_SECTIONS
    },
    "data": (Annotated[_Data, _checked(_data)], ...),
    "encoding": (Annotated[str, Field(min_length=64, max_length=64)], ...),
    "rows": (Annotated[dict[PartyName, Count | None], Field(max_length=MOST_PARTIES)], ...),
    "order": (tuple[Column, ...], ()),  # of data.columns: a message sorts the keys of an object
}
_PlanSchema = create_model("PlanSchema", __base__=Section, **_FIELDS)
