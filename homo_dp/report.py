"""A privacy report from a run's outputs: ``python -m homo_dp.report RUN_OR_DIR -o report.html``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from homo_dp.console.options import (
    Parser,
    Screen,
    add_screen_arguments,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import InputError
from homo_dp.core.files import check_writable, write_whole

if TYPE_CHECKING:
    from homo_dp.tracking.report.contents import Checks
    from homo_dp.tracking.report.run_files import Record

EXAMPLES = """examples:
  python -m homo_dp.report out -o report.html
      from the output folder alone; files are found by what is in them
  python -m homo_dp.report out --published -o published.html
      without anything that was computed from private rows without noise
  python -m homo_dp.report 3f0c9f5e9d0e4c1d --uri sqlite:///mlflow.db -o report.html
      from a run in MLflow
  python -m homo_dp.report out --key keys/a.key -o report.html
  python -m homo_dp.report --check report.html --key a.pub
      signed, and checked by somebody who has the public key
exit codes:
  0 done, 1 the report was written and says that the ledger is not in order, 2 bad input"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, verify, write; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    if options.check is not None:
        return _check(options.check, options.key, screen)
    if options.source is None:
        raise InputError(
            "RUN_OR_DIR: is missing; give the output folder of a run, or --check REPORT"
        )
    check_writable(options.output, "-o")
    with _record(options.source, options.uri) as record:
        shown = record.published() if options.published else record
        if options.registry is not None:
            write_registry(shown, options.registry, screen)
        return write_report(
            shown, options.output, options.ledger, options.plots, screen, options.key
        )


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.report", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "source",
        metavar="RUN_OR_DIR",
        nargs="?",
        help="output folder, indicators file, or id of an MLflow run",
    )
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="default: report.html"
    )
    parser.add_argument(
        "--published", action="store_true", help="leave out what must stay where the rows are"
    )
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        help="the whole ledger (default: privacy.ledger of the run, if there)",
    )
    parser.add_argument(
        "--registry", metavar="FILE.yaml", help="also write a draft record for OpenDP's registry"
    )
    parser.add_argument(
        "--plots", metavar="DIR", help="also write the plots as PNG files into this folder"
    )
    parser.add_argument(
        "--key",
        metavar="FILE",
        help="sign with this private key; with --check, the public key to trust",
    )
    parser.add_argument(
        "--check", metavar="REPORT", help="check the signature of a report instead of writing one"
    )
    parser.add_argument(
        "--uri",
        default="sqlite:///mlflow.db",
        help="MLflow store of the run (default: %(default)s)",
    )
    add_screen_arguments(parser)
    return parser


def _check(report: str, key: str | None, screen: Screen) -> int:
    from homo_dp.runs.signed_report import check_report
    from homo_dp.transport.keys import read_public_key

    found = check_report(report, None if key is None else read_public_key(Path(key)))
    for good, text in found:
        screen.line(f"{'ok' if good else 'BAD'}: {text}")
    screen.summary({"ok": all(good for good, _ in found), "report": report})
    return 0 if all(good for good, _ in found) else 1


def write_registry(record: Record, output: str, screen: Screen) -> None:
    """Write the record for the registry of deployments; a run without a guarantee has nothing to
    register.
    """
    from homo_dp.evidence.opendp_registry import registry_yaml

    if not record.privacy.get("private"):
        raise InputError(
            f"--registry {output}: the run is NOT PRIVATE, so there is no deployment to register"
        )
    write_whole(output, registry_yaml(record.indicators), "--registry")
    screen.line(f"registry record: {output} (draft: fill in what it asks the curator for)")


def write_report(
    record: Record,
    output: str,
    ledger: str | None,
    plots: str | None,
    screen: Screen,
    key: str | None = None,
) -> int:
    """Verify, draw and write; 1 if something about the ledger is wrong."""
    from homo_dp.tracking.report.contents import Checks, report_page
    from homo_dp.tracking.report.report_files import plots_of

    checks = Checks(findings(record, ledger), plots_of(record))
    pair = None
    if key is not None:
        from homo_dp.transport.keys import read_key_pair

        pair = read_key_pair(Path(key))
    signer = None if pair is None else f"{pair.name}, fingerprint {pair.public.fingerprint}"
    write_whole(output, report_page(record, checks, signer).encode(), "-o")
    if pair is not None:
        from homo_dp.runs.signed_report import sign_report

        screen.line(f"signature: {sign_report(output, pair)} ({signer})")
    for name, data in checks.pictures.items() if plots else ():
        write_whole(Path(str(plots)) / f"{name}.png", data, "--plots")
    for good, text in checks.findings:
        screen.line(f"{'ok' if good else 'BAD'}: {text}")
    screen.line(f"report: {output}")
    screen.summary(_summary(record, output, checks))
    return 0 if checks.good else 1


def findings(record: Record, ledger: str | None) -> tuple[tuple[bool, str], ...]:
    """Everything that can be checked about the ledger: the extract, its sum, and the ledger it
    came from.
    """
    from homo_dp.tracking.report.ledger_extract import (
        verify_against,
        verify_epsilon,
        verify_extract,
        verify_statement,
    )

    summary = record.indicators.get("ledger") or {}
    if not record.ledger:
        missing = (
            "the extract of this run's ledger rows is not in the folder: what the run released "
            "cannot be checked"
        )
        return ((False, missing),) if summary.get("datasets") else ()
    found = verify_extract(record.ledger, summary.get("head"), summary.get("releases"))
    found += verify_statement(record.privacy, record.ledger)
    if record.privacy.get("private"):
        interrupted = bool(record.indicators.get("interrupted"))
        found += verify_epsilon(
            record.ledger, record.privacy.get("parties") or {}, interrupted=interrupted
        )
    whole = _whole_ledger(record, ledger)
    if whole is not None:
        found += verify_against(whole, record.ledger)
    else:
        found.append(
            (True, "the whole ledger is not at hand (--ledger): only this run's rows were checked")
        )
    return tuple(found)


def _whole_ledger(record: Record, given: str | None) -> Path | None:
    """The ledger that is given, the one beside the outputs, or one of the same name here if it
    knows the run.
    """
    if given is not None:
        if not Path(given).is_file():
            raise InputError(f"--ledger {given}: no such file; give the path of the ledger")
        return Path(given)
    name = record.ledger_name
    if name is None:
        return None
    for place in (record.folder.parent / name, record.folder / Path(name).name):
        if place.is_file():
            return place
    from homo_dp.tracking.report.ledger_extract import knows_run

    return Path(name) if Path(name).is_file() and knows_run(Path(name), record.run) else None


@contextlib.contextmanager
def _record(source: str, uri: str) -> Iterator[Record]:
    from homo_dp.tracking.report.run_files import fetched, find_record

    if os.path.exists(source):
        yield find_record(Path(source))
        return
    if not source.isalnum():
        raise InputError(
            f"{source}: no such folder or file; give the output folder of a run, or an MLflow "
            "run id"
        )
    with fetched(source, uri) as record:
        yield record


def _summary(record: Record, output: str, checks: Checks) -> dict[str, object]:
    findings = [{"ok": good, "text": text} for good, text in checks.findings]
    return {"run": record.run, "report": output, "ledger_ok": checks.good, "findings": findings}


if __name__ == "__main__":
    run(main)
