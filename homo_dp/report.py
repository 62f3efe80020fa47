"""A privacy report from a run's outputs: ``python -m homo_dp.report RUN_OR_DIR -o report.html``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from homo_dp.cli import Parser, Screen, add_screen_arguments, run, screen_from_arguments
from homo_dp.errors import InputError
from homo_dp.files import check_writable, write_whole

if TYPE_CHECKING:
    from homo_dp.tracking.record import Record
    from homo_dp.tracking.report import Checks

EXAMPLES = """examples:
  python -m homo_dp.report out -o report.html
      from the output folder alone; files are found by what is in them
  python -m homo_dp.report out --published -o published.html
      without anything that was computed from private rows without noise
  python -m homo_dp.report 3f0c9f5e9d0e4c1d --uri sqlite:///mlflow.db -o report.html
      from a run in MLflow
exit codes:
  0 done, 1 the report was written and says that the ledger is not in order, 2 bad input"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, verify, write; the exit code."""
    parser = Parser(prog="python -m homo_dp.report", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("source", metavar="RUN_OR_DIR", help="output folder, indicators file, or id of an MLflow run")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="default: report.html")
    parser.add_argument("--published", action="store_true", help="leave out what must stay where the rows are")
    parser.add_argument(
        "--ledger", metavar="FILE", help="the whole ledger (default: privacy.ledger of the run, if there)"
    )
    parser.add_argument("--plots", metavar="DIR", help="also write the plots as PNG files into this folder")
    parser.add_argument("--uri", default="sqlite:///mlflow.db", help="MLflow store of the run (default: %(default)s)")
    add_screen_arguments(parser)
    options = parser.parse_args(arguments)
    screen = screen_from_arguments(options)
    check_writable(options.output, "-o")
    with _record(options.source, options.uri) as record:
        shown = record.published() if options.published else record
        return write_report(shown, options.output, options.ledger, options.plots, screen)


def write_report(record: Record, output: str, ledger: str | None, plots: str | None, screen: Screen) -> int:
    """Verify, draw and write; 1 if something about the ledger is wrong."""
    from homo_dp.tracking.pictures import plots_of
    from homo_dp.tracking.report import Checks, report_page

    checks = Checks(_findings(record, ledger), plots_of(record))
    write_whole(output, report_page(record, checks).encode(), "-o")
    for name, data in checks.pictures.items() if plots else ():
        write_whole(Path(str(plots)) / f"{name}.png", data, "--plots")
    for good, text in checks.findings:
        screen.line(f"{'ok' if good else 'BAD'}: {text}")
    screen.line(f"report: {output}")
    screen.summary(_summary(record, output, checks))
    return 0 if checks.good else 1


def _findings(record: Record, ledger: str | None) -> tuple[tuple[bool, str], ...]:
    """Everything that can be checked about the ledger: the extract, its sum, and the ledger it came from."""
    if not record.ledger:
        return ()
    from homo_dp.tracking.ledger_extract import verify_against, verify_epsilon, verify_extract

    summary = record.indicators.get("ledger") or {}
    verdicts = [
        verify_extract(record.ledger, summary.get("head"), summary.get("releases")),
        verify_epsilon(record.ledger, record.privacy.get("parties") or {}),
    ]
    whole = _whole_ledger(record, ledger)
    if whole is not None:
        verdicts.append(verify_against(whole, record.ledger))
    found = [(verdict.good, text) for verdict in verdicts for text in verdict.findings]
    if whole is None:
        found.append((True, "the whole ledger is not at hand (--ledger): only this run's rows were checked"))
    return tuple(found)


def _whole_ledger(record: Record, given: str | None) -> Path | None:
    if given is not None:
        if not Path(given).is_file():
            raise InputError(f"--ledger {given}: no such file; give the path of the ledger")
        return Path(given)
    name = (record.config.get("privacy") or {}).get("ledger")
    if not isinstance(name, str):
        return None
    places = [Path(name), record.folder.parent / name, record.folder / Path(name).name]
    return next((place for place in places if place.is_file()), None)


@contextlib.contextmanager
def _record(source: str, uri: str) -> Iterator[Record]:
    from homo_dp.tracking.record import fetched, find_record

    if Path(source).exists():
        yield find_record(Path(source))
        return
    if not source.isalnum():
        raise InputError(f"{source}: no such folder or file; give the output folder of a run, or an MLflow run id")
    with fetched(source, uri) as record:
        yield record


def _summary(record: Record, output: str, checks: Checks) -> dict[str, object]:
    findings = [{"ok": good, "text": text} for good, text in checks.findings]
    return {"run": record.run, "report": output, "ledger_ok": checks.good, "findings": findings}


if __name__ == "__main__":
    run(main)
