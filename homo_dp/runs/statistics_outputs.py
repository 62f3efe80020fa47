"""What a run of statistics leaves: a table on screen, JSON, a picture of each histogram, and a
run in MLflow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from homo_dp import __version__
from homo_dp.config.load import dump_yaml
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.core.files import write_whole
from homo_dp.data.encoding import short
from homo_dp.federation.mechanisms.base import Mechanism, Weights
from homo_dp.federation.mechanisms.statistics import Statistics
from homo_dp.federation.sessions.statement import statement_lines
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.lifecycle import UNLISTED, Ending, Table
from homo_dp.statistics.private_levels import LEVEL_NAMES
from homo_dp.statistics.questions import Question, quantiles
from homo_dp.statistics.working_bounds import WITH_SPREADS
from homo_dp.tracking.files import write_json

Results = dict[str, Any]
_SHOWN = 60  # rows of the table on screen


def results_of(
    mechanism: Mechanism, weights: Weights, run: str, statement: Mapping[str, Any]
) -> Results:
    """All answers with their standard errors and prices, ready for JSON."""
    if not isinstance(mechanism, Statistics):
        raise ConfigError(
            f"privacy.mechanism={mechanism.name}: asks no statistics; use homo-dp stats"
        )
    found: dict[str, Any] = {}
    for number, question in enumerate(mechanism.questions, 1):
        if number not in mechanism.answers:
            continue  # the round did not count
        total, sigma, parties = mechanism.total_of(number)
        asked = mechanism.run.sums[number]
        found[question.name] = {
            **question.read(total, sigma),
            "noise_multiplier": asked.private_sum.noise_multiplier,
            "epsilon": epsilon(asked.event, mechanism.config.delta).quoted,
            **_by_party(question, parties, asked.private_sum.sigma),
        }
    for number, asked in mechanism.run.sums.items():
        if asked.name == LEVEL_NAMES and number in mechanism.answers:
            found[LEVEL_NAMES] = {
                **mechanism.level_names.read(mechanism.answers[number].values()),
                "noise_multiplier": asked.private_sum.noise_multiplier,
                "epsilon": epsilon(asked.event, mechanism.config.delta).quoted,
            }
    if "bounds" in mechanism.config.statistics.ask:
        low_high = mechanism.working_bounds(weights)
        spent = [asked for asked in mechanism.run.sums.values() if asked.name in WITH_SPREADS]
        found["bounds"] = {
            "values": {
                name: dict(zip(("low", "high"), pair, strict=True))
                for name, pair in low_high.items()
            },
            "standard_errors": {name: dict.fromkeys(("low", "high")) for name in low_high},
            "noise_multipliers": [asked.private_sum.noise_multiplier for asked in spent],
            "epsilon": epsilon(
                compose(*(asked.event for asked in spent)), mechanism.config.delta
            ).quoted,
            "noise_multiplier": spent[-1].private_sum.noise_multiplier,
        }
    if "quantiles" in mechanism.config.statistics.ask and "histograms" in found:
        found["quantiles"] = quantiles(found["histograms"])
    return {
        "run": run,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "data": mechanism.config.data.dataset,
        "privacy": dict(statement),
        "questions": found,
    }


def _by_party(question: Question, parties: Mapping[str, Any], sigma: float) -> dict[str, Any]:
    """What each party's own answer says, where the aggregator sees those; histograms are not
    repeated.
    """
    if not parties or question.name not in ("rows", "classes"):
        return {}
    return {"parties": {name: question.read(part, sigma) for name, part in parties.items()}}


def published(config: Config, results: Results) -> Ending:
    """Write the files of a run of statistics; what it leaves."""
    path = Path(config.output.indicatorFileName)
    files = {"statistics": path.with_name(f"{path.stem}_statistics.json")}
    write_json(files["statistics"], results, "statistics")
    files["config"] = path.with_name(f"{path.stem}_statistics_config.yaml")
    write_whole(files["config"], dump_yaml(config).encode(), "resolved config")
    for name, answer in _histograms(results):
        place = path.with_name(f"{path.stem}_histogram_{_file_name(name)}.png")
        draw_histogram(place, name, *answer)
        files[f"{UNLISTED}{_file_name(name)}"] = place
    numbers = {f"stat.{_metric(item)}": value for item, value, _ in rows_of(results)}
    privacy = results["privacy"]
    return Ending(
        statement=privacy,
        files=files,
        guarantee=[str(text) for text in (*statement_lines(privacy), *privacy.get("notes", ()))],
        summary=results,
        numbers=numbers,
        tables=list(_tables(results)),
        lines=list(_lines(results, files["statistics"])),
    )


def write_statement(
    config: Config, run: str, statement: Mapping[str, Any], ledger: Ledger
) -> dict[str, Path]:
    """The files of a party that answered questions: what it spent, and the extract of its
    ledger.
    """
    path = Path(config.output.indicatorFileName)
    files = {"statement": path, "ledger": path.with_name(f"{path.stem}_ledger.json")}
    write_json(files["ledger"], ledger.extract(run), "ledger extract")
    write_json(files["statement"], {"run": run, "privacy": dict(statement)}, "indicators")
    return files


def ending_of_party(run: str, statement: Mapping[str, Any], files: Mapping[str, Path]) -> Ending:
    """What a party that answered questions leaves."""
    summary = {"run": run, "privacy": dict(statement)}
    return Ending(statement, files, statement_lines(statement), summary)


def rows_of(results: Results) -> Iterator[tuple[str, float, float | None]]:
    """Every number with its name and standard error, histograms, matrices and names left out."""
    for question, answer in results["questions"].items():
        if question in ("histograms", "second_moments", LEVEL_NAMES):
            continue
        errors = answer["standard_errors"]
        for item, value in answer["values"].items():
            if isinstance(value, dict):
                error = errors[item]
                for inner, number in value.items():
                    yield (
                        f"{question} {item} {inner}",
                        number,
                        error[inner] if isinstance(error, dict) else error,
                    )
            else:
                yield f"{question} {item}" if item != question else question, value, errors[item]


def draw_histogram(
    path: Path, name: str, edges: list[float], counts: list[float], error: float
) -> None:
    """A histogram with bars of 95 % for the noise of its counts."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    widths = [high - low for low, high in itertools.pairwise(edges)]
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.bar(middles, counts, width=widths, color="#8fb3d9")
    axes.errorbar(
        middles, counts, yerr=1.96 * error, fmt="none", ecolor="#333333", elinewidth=1, capsize=2
    )
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.set_xlabel(name)
    axes.set_ylabel("rows (bars: 95 % of the noise)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _histograms(results: Results) -> Iterator[tuple[str, tuple[list[float], list[float], float]]]:
    answer = results["questions"].get("histograms")
    if answer is not None:
        for name, counts in answer["values"].items():
            yield name, (answer["edges"][name], counts, answer["standard_errors"][name])


def _tables(results: Results) -> Iterator[Table]:
    cells = [[item, value, error] for item, value, error in rows_of(results)][:_SHOWN]
    if cells:
        yield Table("answers", ["question", "value", "standard error"], cells)
    columns = [name for name, _ in _histograms(results)][:_SHOWN]
    if columns:
        answer = results["questions"]["histograms"]
        rows = [
            [
                name,
                f"{answer['edges'][name][0]:g} to {answer['edges'][name][-1]:g}",
                answer["standard_errors"][name],
            ]
            for name in columns
        ]
        yield Table("histograms", ["column", "bounds", "standard error of a count"], rows)
    asked = {name: one for name, one in results["questions"].items() if "epsilon" in one}
    prices = [[name, one["noise_multiplier"], one["epsilon"]] for name, one in asked.items()]
    yield Table("price", ["question", "noise multiplier", "epsilon alone"], prices)


def _lines(results: Results, path: Path) -> Iterator[str]:
    more = len(list(rows_of(results))) - _SHOWN
    if more > 0:
        yield f"and {more} more numbers in {path}"
    for name, levels in results["questions"].get(LEVEL_NAMES, {"values": {}})["values"].items():
        yield f"levels of {name}: {short(levels, _SHOWN) or 'none reached the threshold'}"


def _file_name(name: str) -> str:
    return (
        "".join(sign if sign.isalnum() and sign.isascii() else "_" for sign in name)[:80]
        or "column"
    )


def _metric(item: str) -> str:
    return "".join(
        sign if (sign.isalnum() and sign.isascii()) or sign in "_-. /" else "_" for sign in item
    )
