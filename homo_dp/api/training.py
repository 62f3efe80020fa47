"""``homo_dp.fit``: a federation in this process, on tables in memory or in files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike, fspath
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal

from homo_dp.api.model import Model
from homo_dp.api.result import Result
from homo_dp.api.settings import Own, Settings, config_of, with_arguments
from homo_dp.api.tables import Parties, Table, frame_of
from homo_dp.config.data import ONE_TABLE
from homo_dp.config.layers import get, put
from homo_dp.config.mechanisms import DP_SGD, capabilities_of
from homo_dp.config.schema import Config
from homo_dp.console.options import use_threads
from homo_dp.console.screen import Screen
from homo_dp.core.errors import ConfigError, InputError
from homo_dp.data.in_memory import MARK, held_in_memory

if TYPE_CHECKING:
    import pandas as pd

    from homo_dp.federation.mechanisms.base import Mechanism
    from homo_dp.runs.simulation import RunOutcome, Simulation

Bounds = tuple[float, float]
Categories = Mapping[str, Sequence[Any] | Literal["private"]]
_OUTPUTS = {
    "predictFileName": "predict.csv",
    "indicatorFileName": "indicator.json",
    "modelFileName": "model.safetensors",
}


def fit(
    parties: Parties | None = None,
    *,
    label: str | None = None,
    epsilon: float | None = None,
    settings: Settings | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    categories: Categories | None = None,
    classes: Sequence[Any] | None = None,
    party: str | None = None,
    test: Table | Mapping[str, Table] | None = None,
    ledger: str | PathLike[str] | EllipsisType | None = ...,
    model: Own | None = None,
    mechanism: str | type[Mechanism] | None = None,
    output: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Result:
    """Train one model on the rows of all parties, with differential privacy; the same run as
    ``homo-dp train``.

    Args:
        parties: ``{name: table}``, where a table is a DataFrame, a path or a pair ``(X, y)`` of
            arrays; or one table, split by its column ``party``, by ``data.partition`` of
            ``settings`` for a simulation, or else one party. Without it, the tables that
            ``settings`` name.
        label: The label column; ``y`` unless settings say otherwise.
        epsilon: What the whole run may cost each party (``privacy.target_epsilon``).
        settings: Dotted names (``{"train.rounds": 30}``), nested dicts, or a ``Config``; see
            docs/config.md.
        bounds: Public ``(low, high)`` of all columns that settings do not describe, or of each by
            name. They must be known without looking at the rows.
        categories: Public categories of columns by name (``{"ward": ["A", "B"]}``), or
            ``"private"``: they are estimated under the budget first.
        classes: The values of the label, in the order of the model's outputs (``data.classes``); 0
            and 1 need none.
        party: The column of one table that names the party of each row.
        test: Test rows for all, or by party; else a fifth of each party's rows is held out
            (``data.test_fraction``).
        ledger: The file that keeps what was spent on these data, over all runs. It must be given
            for private data; ``None`` written out means that the lifetime budget is not kept:
            whoever trains again on the same rows adds up epsilon on their own.
        model: A built-in model by name, or a class or function that makes a ``torch.nn.Module``.
        mechanism: A built-in mechanism by name, or a class of one's own.
        output: A folder for predictions, indicators and model, as the command writes them; nothing
            is written without.
        progress: Show the rounds as they end.

    Guarantees:
        - nothing is on disk afterwards but ``ledger``, ``output`` and what settings name by
          ``tracking``;
        - no row count, bound or class is read off the rows of a party unless settings leave it out,
          and then the privacy statement says so.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (400, 2))
    >>> y = (X.sum(axis=1) > 0).astype(int)
    >>> result = fit({"a": (X[:200], y[:200]), "b": (X[200:], y[200:])}, epsilon=4, bounds=(-1, 1), ledger=None,
    ...                settings={"train.rounds": 2}, progress=False)
    >>> result.epsilon <= 4, result.model.predict(X[:3]).shape
    (True, (3,))
    """
    with configured(
        parties,
        label=label,
        epsilon=epsilon,
        settings=settings,
        bounds=bounds,
        categories=categories,
        classes=classes,
        party=party,
        test=test,
        ledger=ledger,
        model=model,
        mechanism=mechanism,
        output=output,
    ) as config:
        if config.train.threads != "auto":
            use_threads(config.train.threads)
        return _trained(config, screen_for(progress), write=output is not None)


@contextmanager
def configured(
    parties: Parties | None = None,
    *,
    label: str | None = None,
    epsilon: float | None = None,
    settings: Settings | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    categories: Categories | None = None,
    classes: Sequence[Any] | None = None,
    party: str | None = None,
    test: Table | Mapping[str, Table] | None = None,
    ledger: str | PathLike[str] | EllipsisType | None = ...,
    model: Own | None = None,
    mechanism: str | type[Mechanism] | None = None,
    output: str | PathLike[str] | None = None,
) -> Iterator[Config]:
    """The checked config of a run from Python; its tables and its ledger are there while the
    block lasts.
    """
    arguments: dict[str, Any] = {
        "data.label": label,
        "data.classes": classes,
        "privacy.target_epsilon": epsilon,
    }
    if output is not None:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        arguments |= {f"output.{key}": folder / name for key, name in _OUTPUTS.items()}
    own_tables = parties is not None
    tree = with_arguments(
        settings, arguments, model=model, mechanism=mechanism, own_tables=own_tables
    )
    if not _asks_for_tracking(settings):
        put(tree, ("tracking", "enabled"), False)
    if categories is not None:
        _put_categories(tree, categories, bounds)
    with ExitStack() as stack:
        stack.enter_context(_tables_named_as_given(tree))
        if parties is not None:
            _put_tables(tree, parties, party, test, bounds, stack)
        elif (
            party is not None
            or test is not None
            or not (bounds is None or isinstance(bounds, Mapping))
        ):
            raise ConfigError(
                "party, test, one pair of bounds: belong to tables; give parties too, or bounds by "
                "column: bounds={'age': (0, 120)}"
            )
        elif bounds is not None:
            _put_bounds(tree, {}, bounds)
        _put_ledger(tree, ledger, stack)
        config = config_of(tree)
        _check_epsilon(tree, config)
        yield config


def screen_for(progress: bool) -> Screen:
    """Where progress goes: a bar in a notebook's cell, or on the terminal; nothing else is
    printed.
    """
    if not progress:
        return Screen(quiet=True)
    from homo_dp.api.notebook import NotebookScreen, in_notebook

    return NotebookScreen() if in_notebook() else Screen()


def _put_tables(
    tree: dict[str, Any],
    parties: Parties,
    party: str | None,
    test: Table | Mapping[str, Table] | None,
    bounds: Bounds | Mapping[str, Bounds] | None,
    stack: ExitStack,
) -> None:
    label = get(tree, "data.label") or "y"
    given = dict(parties) if isinstance(parties, Mapping) else {ONE_TABLE: parties}
    if not given:
        raise ConfigError("parties: is empty; give {name: table} with at least one party")
    tables = {str(name): frame_of(table, label, str(name)) for name, table in given.items()}
    put(tree, ("data", "files"), _names(tables, stack))
    if party is not None:
        put(tree, ("data", "party_column"), party)
    if isinstance(test, Mapping):
        tests = {str(name): frame_of(table, label, f"test {name}") for name, table in test.items()}
        put(tree, ("data", "test_file"), _names(tests, stack))
    elif test is not None:
        put(
            tree,
            ("data", "test_file"),
            _names({"test": frame_of(test, label, "test")}, stack)["test"],
        )
    if bounds is not None:
        _put_bounds(tree, tables, bounds)


def _names(tables: Mapping[str, pd.DataFrame | str], stack: ExitStack) -> dict[str, str]:
    """Paths as they are, frames under the name that the readers know them by."""
    frames = {name: table for name, table in tables.items() if not isinstance(table, str)}
    held = stack.enter_context(held_in_memory(frames))
    return {name: table if isinstance(table, str) else held[name] for name, table in tables.items()}


@contextmanager
def _tables_named_as_given(tree: dict[str, Any]) -> Iterator[None]:
    """Let errors call a table what the caller calls it, not the name by which readers find it in
    memory.
    """
    try:
        yield
    except InputError as error:
        text = str(error)
        for key, argument in (("data.files", "parties"), ("data.test_file", "test")):
            given = get(tree, key)
            for name, path in given.items() if isinstance(given, dict) else (("", given),):
                if str(path).startswith(MARK):
                    text = text.replace(
                        path, argument if name in ("", ONE_TABLE) else f"{argument}[{name!r}]"
                    )
        error.args = (text,)
        raise


def _put_bounds(
    tree: dict[str, Any],
    tables: Mapping[str, pd.DataFrame | str],
    bounds: Bounds | Mapping[str, Bounds],
) -> None:
    data = tree["data"]
    columns = dict(data.get("columns") or {})
    if isinstance(bounds, Mapping):
        columns |= {
            name: {"bounds": list(pair)} for name, pair in bounds.items() if name not in columns
        }
    elif len(bounds) != 2 or not all(isinstance(end, int | float) for end in bounds):
        raise ConfigError(
            f"bounds={bounds!r}: must be one pair (low, high) for all columns, or pairs by name: "
            "{'age': (0, 120)}; columns of arrays are called x0, x1, ..."
        )
    else:
        from homo_dp.data.readers import header

        roles = ("label", "id", "party_column", "user_column", "split_column")
        aside = (
            {data.get(role) for role in roles}
            | set(data.get("drop") or ())
            | {"y" if "label" not in data else None}
        )
        aside |= {"id"} if "id" not in data else set()
        first = next(iter(tables.values()))
        names = header(first) if isinstance(first, str) else [str(name) for name in first.columns]
        wanted = [
            name for name in data.get("use") or names if name not in aside and name not in columns
        ]
        columns |= {name: {"bounds": list(bounds)} for name in wanted}
    put(tree, ("data", "columns"), columns)


def _put_categories(
    tree: dict[str, Any],
    categories: Categories,
    bounds: Bounds | Mapping[str, Bounds] | None,
) -> None:
    """Describe columns by their categories (the config key is ``levels``), over the settings."""
    if not isinstance(categories, Mapping):
        raise ConfigError(
            f"categories={categories!r}: must name columns: categories={{'ward': ['A', 'B']}}, or "
            "{'ward': \"private\"}"
        )
    both = sorted(set(categories) & set(bounds)) if isinstance(bounds, Mapping) else []
    if both:
        raise ConfigError(
            f"categories, bounds: both describe column {both[0]!r}; a column has either"
        )
    for name, values in categories.items():
        if values != "private" and (isinstance(values, str) or not isinstance(values, Iterable)):
            raise ConfigError(
                f"categories[{name!r}]={values!r}: must be a list of values, such as ['A', 'B'], "
                'or "private"'
            )
        listed = "private" if isinstance(values, str) else list(values)
        put(tree, ("data", "columns", name), {"levels": listed})


def _put_ledger(
    tree: dict[str, Any], ledger: str | PathLike[str] | EllipsisType | None, stack: ExitStack
) -> None:
    """The file of the ledger: the one given or, where none is needed, a temporary one that is
    deleted after the run.
    """
    private = capabilities_of(get(tree, "privacy.mechanism") or DP_SGD.name).private
    public = not get(tree, "data.files")  # an embedded set
    named = get(tree, "privacy.ledger")
    if ledger is not None and ledger is not ...:
        put(tree, ("privacy", "ledger"), fspath(ledger))
        return
    if ledger is ... and named is not None:
        return
    if ledger is ... and private and not public:
        raise ConfigError(
            "ledger: is not given; name the file that keeps what was spent on these data, or write "
            "ledger=None: the lifetime budget is then not kept, and epsilons of several runs add "
            "up unseen"
        )
    if get(tree, "privacy.lifetime_epsilon") is not None:
        raise ConfigError(
            "ledger=None: privacy.lifetime_epsilon is kept over runs; name the file of the ledger"
        )
    memory = Path("/dev/shm")  # so that it never reaches a disk, where the system has such a place
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="homo_dp-", dir=place))
    put(tree, ("privacy", "ledger"), str(Path(folder) / "ledger.sqlite"))


def _asks_for_tracking(settings: Settings | None) -> bool:
    if isinstance(settings, Config):
        return "tracking" in settings.model_fields_set
    return any(key.split(".")[0] == "tracking" for key in settings or ())


def _check_epsilon(tree: Mapping[str, Any], config: Config) -> None:
    """Require that epsilon is given, as an argument or in the settings: there is no default in
    Python.
    """
    given = ("privacy.target_epsilon", "privacy.noise_multiplier")
    record = config.privacy.capabilities
    asks = record.trains and record.target and config.privacy.built_in
    if asks and all(get(tree, key) is None for key in given):
        raise ConfigError(
            "epsilon: is not given; say what the run may cost each party (1 is strong, 8 is weak), "
            "or write mechanism='none' to train without privacy"
        )


def _trained(config: Config, screen: Screen, *, write: bool) -> Result:
    from homo_dp.runs.lifecycle import Ending, Life
    from homo_dp.runs.training import check_rounds, prepared

    with Life(config, screen) as life:
        with prepared(config, screen, life.tracker) as simulation:
            outcome = simulation.run()
        check_rounds(outcome)
        result = _result(simulation, outcome, life.tracker.draw)
        files: Mapping[str, Path] = {}
        if write:
            from homo_dp.runs.outputs import write_outputs

            files = write_outputs(outcome, simulation.ledger, simulation.gradient_norms).files
        from homo_dp.tracking.indicators import numbers_of

        statement, numbers = outcome.statement, numbers_of(result.indicators)
        interrupted = outcome.interrupted
        life.track_end(Ending(statement, files, (), {}, numbers, interrupted=interrupted))
    if simulation.ledger is not None:
        simulation.ledger.close()
    return result


def _result(
    simulation: Simulation, outcome: RunOutcome, begin: Callable[[Mapping[str, Any]], None]
) -> Result:
    import pandas as pd

    from homo_dp.federation.sessions.build import run_budget
    from homo_dp.models.files import SavedModel
    from homo_dp.runs.outputs import indicators_of, model_card
    from homo_dp.tracking.report.ledger_extract import ledger_summary

    ledger, config = simulation.ledger, outcome.config
    outcome.load_weights()
    rows = [] if ledger is None else ledger.extract(outcome.run)
    summary = None if ledger is None else ledger_summary(ledger, outcome.run, run_budget(config))
    norms = simulation.gradient_norms.histogram()
    indicators = indicators_of(outcome, summary)
    begin({"indicators": indicators, "ledger": rows, "norms": norms})
    module = outcome.model.module.cpu().eval()
    return Result(
        model=Model(SavedModel(module, model_card(outcome), outcome.model.task)),
        indicators=indicators,
        config=config,
        ledger=None if ledger is None else pd.DataFrame(rows),
        interrupted=outcome.interrupted,
        _rows=tuple(rows),
        _norms=norms,
    )
