"""The `data` section: which tables, which columns, and what is publicly known about them."""

import codecs
import datetime
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, field_validator, model_validator

from homo_dp.config.base import (
    Bounds,
    Column,
    Columns,
    Conflict,
    Count,
    Counts,
    FilePath,
    Flag,
    Fraction,
    PartyName,
    Positive,
    Section,
    Text,
    Value,
    Values,
    key,
    listed,
    mapping,
    shorthand,
)
from homo_dp.config.yaml_text import parse_scalar

ONE_TABLE = "all"  # the name under which a single table that is split later stands in data.files
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
DatePart = Literal["days", "year", "month", "weekday"]


def _days(value: object) -> object:
    """Two days in ISO form, the first before the last."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("must be a list of two days, [2015-01-01, 2026-12-31]")
    try:
        first, last = (datetime.date.fromisoformat(str(day)) for day in value)
    except ValueError:
        raise ValueError("must be two days such as 2015-01-31") from None
    if first >= last:
        raise ValueError("must have its first day before its last")
    return (first.isoformat(), last.isoformat())


def _day_form(value: object) -> object:
    """Refuse a date format that does not write a whole day and read it back: it would fail
    later, on the rows.
    """
    day = datetime.datetime(2015, 12, 31)
    try:
        whole = (
            isinstance(value, str) and datetime.datetime.strptime(day.strftime(value), value) == day
        )
    except (ValueError, re.error):
        whole = False
    if not whole:
        raise ValueError("must write day, month and year once each, such as %d.%m.%Y")
    return value


def _separator(value: object) -> object:
    value = SEPARATORS.get(value, value) if isinstance(value, str) else value
    if (
        not isinstance(value, str)
        or len(value) != 1
        or ord(value) > 127
        or value in "\"'\r\n"
        or value.isalnum()
    ):
        raise ValueError("must be one sign, or comma, semicolon, tab or bar")
    return value


def _encoding(value: object) -> object:
    try:
        return codecs.lookup(value if isinstance(value, str) else "").name
    except LookupError:
        raise ValueError(
            "must be the name of an encoding, such as utf-8, latin1 or cp1252"
        ) from None


def _rows_per_person(value: object) -> object:
    """Accept true, or `unknown`, which means the same as leaving the key out; refuse false with
    advice.
    """
    if value is False:
        raise ValueError(
            "must be true or unknown; where persons have several rows, hide persons: "
            "privacy.unit=user"
        )
    if value not in (None, True, "unknown"):
        raise ValueError("must be true or unknown")
    return True if value is True else None


class ColumnConfig(Section):
    """Public knowledge about one column: numeric bounds, or the list of levels."""

    bounds: Bounds | None = key(
        None, "Numeric: `[low, high]`; values are clipped to it and scaled to [-1, 1]."
    )
    levels: Literal["private"] | Values | None = key(
        None,
        "Categorical: every declared level; any other value has a slot of its own. `private`: "
        "privately estimated, by a noisy threshold (docs/statistics.md).",
    )
    date: Annotated[tuple[str, str], BeforeValidator(_days)] | None = key(
        None,
        "Date: `[first, last]` day, such as `[2015-01-01, 2026-12-31]`; other days are clipped "
        "to it.",
    )
    parts: Annotated[tuple[DatePart, ...], BeforeValidator(listed)] = key(
        ("days",),
        "What a date becomes: `days` within the bounds, `year`, `month`, `weekday`; one or "
        "several.",
    )
    format: Annotated[Text, BeforeValidator(_day_form)] | None = key(
        None, "How the file writes dates, such as `%d.%m.%Y`; null: ISO (2024-05-31) or typed."
    )
    missing: Value | None = key(
        None,
        "A missing value is an `error` (numeric default), or becomes `middle`, `low`, `high` or a "
        "number (numeric); has a slot of its own, `level` (categorical default), or becomes "
        "`unknown` or one of the levels.",
    )
    indicator: Flag = key(False, "Add a 0/1 column that says where a value was missing.")
    source: Text | None = key(
        None, "Where this knowledge comes from, in your words; the report repeats it."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("missing") is None:
            return {**given, "missing": "error" if given.get("levels") is None else "level"}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(given is not None for given in (self.bounds, self.levels, self.date)) != 1:
            raise ValueError(
                "must have either bounds: [low, high] (numeric), levels: [...] (categorical) or "
                "date: [first, last]"
            )
        if self.date is None and (self.parts != ("days",) or self.format is not None):
            raise ValueError("parts and format belong to a date: [first, last]")
        if self.levels == "private":
            if self.missing not in ("error", "unknown", "level"):
                raise ValueError("missing must be error, unknown or level where levels are private")
        elif self.levels is not None:
            if len(set(map(str, self.levels))) != len(self.levels) or not self.levels:
                raise ValueError("levels must be a list of different values")
            if (
                self.missing not in ("error", "unknown", "level")
                and self.missing not in self.levels
            ):
                raise ValueError("missing must be error, unknown, level, or one of the levels")
        elif self.missing not in ("error", "middle", "low", "high") and (
            self.date is not None or not isinstance(self.missing, int | float)
        ):
            raise ValueError(
                "missing must be error, middle, low, high, or (where there are bounds) a number"
            )
        return self


class PartitionConfig(Section):
    """How one table is split over simulated parties."""

    kind: Literal["iid", "dirichlet", "by_label"] = key(
        "iid", "Random, label-skewed by a Dirichlet, or by label."
    )
    parties: Count = key(3, "Number of parties.")
    alpha: Positive = key(0.5, "Concentration of the Dirichlet: small is skewed.")


class ImageConfig(Section):
    """Public shape and value range of images."""

    shape: Counts | None = key(None, "`[channels, height, width]`; null: read from the image file.")
    scale: Bounds = key((0.0, 255.0), "Value range of a pixel; scaled to [-1, 1].")

    @field_validator("shape")
    @classmethod
    def _three(cls, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if shape is not None and len(shape) != 3:
            raise ValueError("must be [channels, height, width], for example [1, 28, 28]")
        return shape


def _one_table(value: object) -> object:
    return {ONE_TABLE: value} if isinstance(value, str) else value


def _partition(value: object) -> object:
    """`by_label` is short for its kind, `dirichlet(0.1)` for its kind and alpha."""
    given = (
        re.fullmatch(r"\s*dirichlet\s*\(([^()]*)\)\s*", value) if isinstance(value, str) else None
    )
    return (
        {"kind": "dirichlet", "alpha": parse_scalar(given[1])}
        if given
        else shorthand("kind")(value)
    )


class DataConfig(Section):
    """Tables, columns and how rows fall to parties."""

    name: Text | None = key(
        None,
        "Declared name of the data: the lifetime budget is kept per name. Null: `embedded`; of "
        "files `unnamed`.",
    )
    embedded: Literal["breast_cancer", "digits", "users"] | None = key(
        None,
        "A bundled data set; null: breast_cancer unless files, columns or images are described.",
    )
    files: Annotated[dict[PartyName, FilePath], BeforeValidator(_one_table)] = mapping(
        "`{party: path}`, a table (CSV, .csv.gz, Parquet), an SQLAlchemy address with `#table`, or "
        "images (.npz, IDX, a zip or folder with `file_name,y` annotations) for each party. One "
        "path alone is one table: one party, unless `party_column`, `user_column` or `partition` "
        "splits it."
    )
    registry: Annotated[tuple[FilePath, ...], BeforeValidator(listed)] = key(
        (),
        "Files that say where named data sets are, in PrimiHub's form (`datasets:` of its node "
        "config).",
    )
    party_column: Column | None = key(
        None, "Column of the one table that names the party of a row."
    )
    user_column: Column | None = key(
        None, "Column of the one table that names the user of a row (unit: user)."
    )
    partition: Annotated[PartitionConfig | None, BeforeValidator(_partition)] = key(
        None,
        "How one table is split; `iid`, `dirichlet`, `dirichlet(0.5)` or `by_label` alone is short "
        "for its kind (and alpha). Null: one party; iid over 3 for an embedded set.",
    )
    rows: dict[PartyName, Count] = mapping(
        "Declared, public row counts by party: figures that are known without the tables. See "
        "`counts` where absent."
    )
    counts: Literal["public", "declared", "private"] | None = key(
        None,
        "Row counts that `rows` does not declare: `public`, the true ones may be known; "
        "`declared`, a private run is refused; `private`, they are privately estimated in the "
        "first rounds, under `privacy.statistics_share`. Null: a party process refuses, a run in "
        "one process makes "
        "them public and says so.",
    )
    test_file: FilePath | dict[PartyName, FilePath] | None = key(
        None, "Test table, or one for each party."
    )
    test_fraction: Fraction | None = key(
        None, "Share of each party's rows held out; null: 0.2 without other test rows."
    )
    split_column: Column | None = key(None, "Column whose value `test` marks a test row.")
    public_test: Flag = key(
        False, "The test table is public: metrics on it are released without charge."
    )
    id: Column = key("id", "Identifier column: kept in predictions, never a feature.")
    label: Column = key("y", "Label column.")
    classes: Values | None = key(
        None, "Declared classes in order; null: 0/1, or those of the embedded set."
    )
    use: Columns | None = key(
        None, "Feature columns to use; null: all but id, label and the columns named above."
    )
    drop: Columns = key((), "Columns to leave out.")
    columns: dict[Column, ColumnConfig] = mapping(
        "Public knowledge by column: `{bounds: [low, high]}`, `{levels: []}` or `{date: [first, "
        "last]}`; a pattern such as `drug_*` describes all columns that it matches."
    )
    columns_from: Literal["breast_cancer", "digits"] | None = key(
        None, "Shipped public description for columns not listed; null: that of the embedded set."
    )
    bounds_source: Literal["codebook", "public", "private", "draft"] | None = key(
        None,
        "Where bounds and levels come from: a `codebook` (form, dictionary), `public` knowledge or "
        "tables, `private` (found under a privacy budget), or a `draft` of describe, read from "
        "rows: a run in one process says so, parties refuse it.",
    )
    one_row_per_person: Annotated[bool | None, BeforeValidator(_rows_per_person)] = key(
        None,
        "Whether each person has one row: `true`, or `unknown`. Epsilon is per row; who has k rows "
        "has k times as much. The report asks for it.",
    )
    scaling: Literal["bounds", "private"] = key(
        "bounds",
        "How numeric columns are scaled: by their `bounds` (free), or `private`: bounds may be "
        "very wide, and working bounds are privately estimated in the first rounds, under "
        "`privacy.statistics_share` of the budget (docs/statistics.md).",
    )
    default_bounds: Bounds | None = key(
        None,
        "Bounds of every column that is not described, such as `[-1e6, 1e6]`; for `scaling: "
        "private`.",
    )
    curves: Flag | None = key(
        None,
        "A square and a root of each number behind the columns, fixed functions of its bounds; not "
        "where these are [0, 1], mostly of flags. It costs no privacy. Null: as the model in "
        "`train.init_from` has it, else by rule where `train.auto` chooses and no model is named "
        "(docs/auto.md), else false.",
    )
    public: Flag = key(
        False, "All rows are public: a fit without privacy is shown beside the result."
    )
    separator: Annotated[str, BeforeValidator(_separator)] = key(
        ",",
        "What separates the columns of CSV files: one sign, or `comma`, `semicolon`, `tab`, `bar`.",
    )
    encoding: Annotated[str, BeforeValidator(_encoding)] = key(
        "utf-8", "Encoding of the text of CSV files, such as `latin1` or `cp1252`."
    )
    decimal: Literal[".", ","] = key(".", "Decimal sign of numbers that are text.")
    thousands: Literal[".", ",", " ", "'"] | None = key(
        None, "Sign between groups of three digits, if there is one."
    )
    missing_values: Values = key(
        ("", "NA", "NaN", "nan", "null"), "Cell texts that mean a missing value."
    )
    target_bounds: Bounds | None = key(None, "Public `[low, high]` of a regression target.")
    image: ImageConfig | None = key(None, "Rows are images of this shape and range.")

    def count_is_public(self, party: str) -> bool:
        """Whether noise and sampling may depend on a party's row count: declared, said to be
        public, or shipped.
        """
        shipped = self.embedded is not None and not self.files
        return party in self.rows or self.counts == "public" or self.public or shipped

    @property
    def private_levels(self) -> list[str]:
        """The columns whose levels are still to be estimated."""
        return [name for name, block in self.columns.items() if block.levels == "private"]

    @property
    def dataset(self) -> str:
        """The declared name under which budgets are kept."""
        return self.name or self.embedded or "unnamed"

    @property
    def one_table(self) -> str | None:
        """The path of the single table that is split into parties or users, if there is one."""
        splits = self.party_column or self.user_column or self.partition
        return next(iter(self.files.values())) if len(self.files) == 1 and splits else None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        # as an aggregator does
        described = any(filled.get(name) for name in ("columns", "columns_from", "image"))
        if not filled.get("files") and filled.get("embedded") is None and not described:
            filled["embedded"] = "breast_cancer"
        if filled.get("columns_from") is None and filled.get("embedded") in (
            "breast_cancer",
            "digits",
        ):
            filled["columns_from"] = filled["embedded"]
        splits = ("partition", "party_column", "user_column")
        embedded = filled.get("embedded") in ("breast_cancer", "digits")
        if embedded and all(filled.get(name) is None for name in splits):
            filled["partition"] = {"kind": "iid"}
        if all(filled.get(name) is None for name in ("test_file", "test_fraction", "split_column")):
            filled["test_fraction"] = 0.2
        return filled

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.embedded and self.files:
            raise Conflict(
                "data.embedded, data.files: only one can be given; leave one of them out"
            )
        if len(self.files) > 1:
            for name in ("party_column", "partition"):
                if getattr(self, name) is not None:
                    raise Conflict(
                        f"data.{name}: splits one table, but data.files has {len(self.files)}; "
                        "leave it out"
                    )
        if self.partition is not None and self.party_column is not None:
            raise Conflict(
                "data.partition, data.party_column: only one can split the table; leave one of "
                "them out"
            )
        tests = [
            n
            for n in ("test_file", "test_fraction", "split_column")
            if getattr(self, n) is not None
        ]
        if len(tests) > 1:
            raise Conflict(
                f"data.{tests[0]}, data.{tests[1]}: only one can give the test rows; leave one of "
                "them out"
            )
        if self.decimal == self.thousands:
            raise Conflict(
                f"data.thousands={self.thousands!r}: is data.decimal too; they must differ"
            )
        if self.separator == self.decimal and self.separator != ",":
            raise Conflict(
                f"data.separator={self.separator!r}: is data.decimal too; they must differ"
            )
        if self.id == self.label:
            raise Conflict(
                f"data.id={self.id}: is also data.label; the label cannot be the identifier"
            )
        if self.use is not None and (both := sorted(set(self.use) & set(self.drop))):
            raise Conflict(f"data.drop={both[0]}: is in data.use too; keep it in one of them")
        if self.classes is not None and len(set(map(str, self.classes))) != len(self.classes):
            raise Conflict("data.classes: has a class twice; list each class once")
        if self.classes is not None and len(self.classes) < 2:
            raise Conflict("data.classes: must list at least two classes")
        self._check_names()
        return self

    def _check_names(self) -> None:
        known = set(self.files) if self.one_table is None else set()
        named: dict[str, set[str]] = {"rows": set(self.rows)}
        if isinstance(self.test_file, dict):
            named["test_file"] = set(self.test_file)
        for name, parties in named.items():
            if known and (strangers := sorted(parties - known)):
                raise Conflict(
                    f"data.{name}.{strangers[0]}: no such party; data.files has "
                    f"{', '.join(sorted(known))}"
                )
