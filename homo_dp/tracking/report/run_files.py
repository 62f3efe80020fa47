"""The files of one run, read back: found in a folder by what is in them, or fetched from MLflow."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from homo_dp.config.addresses import masked, without_secrets
from homo_dp.config.yaml_text import parse_yaml
from homo_dp.core.errors import InputError, error_text
from homo_dp.core.untrusted_text import Foreign
from homo_dp.tracking.mlflow.environment import set_defaults
from homo_dp.tracking.mlflow.uris import missing_file
from homo_dp.tracking.report.evidence import AuditOnFile, audits_in
from homo_dp.tracking.report.run_files_schema import (
    EXTRACT,
    ConfigFacts,
    Indicators,
    Norms,
    Setup,
)
from homo_dp.tracking.tracker import CONFIG, INDICATORS, LEDGER, NORMS

LARGEST_FILE = 100 << 20  # bytes; what we look for is smaller
LARGEST_CONFIG = 1 << 20


@dataclass(frozen=True)
class Record:
    """One run: its indicators, and as far as they are there its ledger rows, resolved config,
    norms and audits.
    """

    indicators: Mapping[str, Any]
    ledger: tuple[Mapping[str, Any], ...] = ()
    config_text: str = ""
    norms: Mapping[str, Any] | None = None
    folder: Path = Path()
    audits: tuple[AuditOnFile, ...] = ()

    @cached_property
    def settings(self) -> ConfigFacts.Privacy:
        """What the resolved configuration says about privacy; nothing where it is missing or not
        readable.
        """
        with contextlib.suppress(InputError):
            found = parse_yaml(self.config_text, "config")
            return Foreign("config", "correct it").check(ConfigFacts, found).privacy
        return ConfigFacts.Privacy()

    @property
    def ledger_name(self) -> str | None:
        """The path of the whole ledger, as the resolved configuration names it."""
        return self.settings.ledger

    @property
    def run(self) -> str:
        return str(self.indicators.get("run", "unnamed run"))

    @property
    def privacy(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.indicators["privacy"]
        return found

    @property
    def rounds(self) -> list[Mapping[str, Any]]:
        return list(self.indicators["rounds"])

    @property
    def setup(self) -> Setup:
        """Who ran what; without a role where the file does not say it."""
        return Setup.model_validate(self.indicators.get("setup") or {})

    @property
    def local(self) -> bool:
        """Whether it holds values that were computed from private rows without noise."""
        return bool(self.indicators.get("local_only")) or self.norms is not None

    def published(self) -> Record:
        """The part that may leave the place where the rows are."""
        from homo_dp.tracking.indicators import published

        return replace(self, indicators=published(self.indicators), norms=None)


def read_record(files: Mapping[str, Path]) -> Record:
    """A record from files whose roles are known."""
    read = {
        role: _read(path) for role, path in files.items() if role in (INDICATORS, LEDGER, NORMS)
    }
    text = _text(files[CONFIG]) if CONFIG in files else ""
    _check(files[INDICATORS], Indicators, read[INDICATORS])
    if read.get(LEDGER):
        _check(files[LEDGER], EXTRACT, read[LEDGER])
    if read.get(NORMS) is not None:
        _check(files[NORMS], Norms, read[NORMS])
    return Record(
        read[INDICATORS],
        tuple(read.get(LEDGER) or ()),
        text,
        read.get(NORMS),
        files[INDICATORS].parent,
    )


def find_record(place: Path) -> Record:
    """The record of the one run whose outputs are in a folder, whatever their names; or beside
    an indicators file.
    """
    folder = place if place.is_dir() else place.parent
    try:
        found = {path: _read(path) for path in sorted(folder.iterdir()) if path.is_file()}
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be read ({error.strerror or error}); check its permissions"
        ) from None
    trainings = {
        path: value
        for path, value in found.items()
        if _is_indicators(value) and (place.is_dir() or path == place)
    }
    if not trainings:
        raise InputError(
            f"{place}: holds no indicators of a training (JSON with privacy and rounds); give its "
            "folder"
        )
    finished = {path: value for path, value in trainings.items() if not value.get("interrupted")}
    if len(finished) == 1:  # an interrupted run beside a finished one has names of its own
        trainings = finished
    if len(trainings) > 1:
        names = ", ".join(path.name for path in trainings)
        raise InputError(
            f"{place}: holds the indicators of several trainings ({names}); give one of these files"
        )
    path, indicators = trainings.popitem()
    _check(path, Indicators, indicators)
    run = indicators.get("run")
    extracts = [
        each for each, value in found.items() if _is_extract(value) and value[0].get("run") == run
    ]
    norms = [each for each, value in found.items() if _is_norms(value) and value.get("run") == run]
    for each in extracts[:1]:
        _check(each, EXTRACT, found[each])
    for each in norms[:1]:
        _check(each, Norms, found[each])
    return Record(
        indicators,
        tuple(found[extracts[0]]) if extracts else (),
        _config(found, path),
        found[norms[0]] if norms else None,
        folder,
        audits_in(folder),
    )


@contextlib.contextmanager
def fetched(run_id: str, uri: str) -> Iterator[Record]:
    """The record of a run in MLflow, by its id; its files are there while the block runs."""
    shown = masked(uri)
    if missing_file(uri) is not None:
        raise InputError(
            f"{run_id}: is not a folder, and --uri {shown} is not a store (no such file); give an "
            "output folder"
        )
    set_defaults()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        try:
            client = MlflowClient(uri)
            for item in client.list_artifacts(run_id):
                if not item.is_dir and (item.file_size or 0) <= LARGEST_FILE:
                    client.download_artifacts(run_id, item.path, folder)
        except (MlflowException, OSError) as error:
            text = without_secrets(error_text(error, 2000), uri)[:200]
            raise InputError(
                f"{run_id}: is neither a folder nor a run of --uri {shown} ({text}); give an "
                "output folder or a run id"
            ) from error
        yield find_record(Path(folder))


def _read(path: Path) -> Any:
    """JSON or YAML in a file; None for anything else."""
    file = Foreign(str(path), "write it again", InputError, LARGEST_FILE)
    with contextlib.suppress(OSError, InputError):
        if path.stat().st_size > LARGEST_FILE:
            return None
        if path.suffix.lower() in (".yaml", ".yml"):
            return parse_yaml(_text(path), str(path))
        with path.open("rb") as opened:
            start = opened.read(LARGEST_CONFIG)
        if start.lstrip()[:1] not in (b"{", b"["):
            is_config = b"\nprivacy:" in start and path.stat().st_size <= LARGEST_CONFIG
            return parse_yaml(file.text(start), str(path)) if is_config else None
        return file.json(file.read(path))
    return None


def _text(path: Path) -> str:
    file = Foreign(str(path), "write it again", InputError, LARGEST_CONFIG)
    return file.text(file.read(path))


def _check(path: Path, schema: Any, tree: Any) -> None:
    Foreign(
        str(path), "the file is damaged or not of a run: write it again by training", InputError
    ).check(schema, tree)


def _is_indicators(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("privacy"), dict):
        return False
    return (
        "mechanism" in value["privacy"] and isinstance(value.get("rounds"), list) and "run" in value
    )


def _is_extract(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(r, dict) and "previous_hash" in r for r in value)
    )


def _is_norms(value: Any) -> bool:
    return isinstance(value, dict) and {"edges", "clip_norm", "parties"} <= set(value)


def _config(found: Mapping[Path, Any], indicators: Path) -> str:
    """The resolved config: the one named after the indicators, else the only one there is."""
    sections = {"model", "data", "privacy", "train"}
    configs = [
        path for path, value in found.items() if isinstance(value, dict) and sections <= set(value)
    ]
    named = [path for path in configs if path.stem == f"{indicators.stem}_config"]
    chosen = named or configs
    return _text(chosen[0]) if len(chosen) == 1 else ""
