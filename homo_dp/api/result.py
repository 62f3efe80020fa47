"""What a training in Python ends with: the model, what it cost, how it went; written to disk
only when asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.api.model import Model
from homo_dp.federation.sessions.statement import statement_lines
from homo_dp.tracking.indicators import no_better_than_majority

if TYPE_CHECKING:
    import pandas as pd

    from homo_dp.config.schema import Config
    from homo_dp.tracking.report.run_files import Record

_SHOWN = ("loss", "acc", "auc", "f1", "r2", "mse")


class Figures(Mapping[str, bytes]):
    """Plots by name, as PNG; a notebook shows them, ``save`` writes them."""

    def __init__(self, pictures: Mapping[str, bytes]) -> None:
        self._pictures = dict(pictures)

    def __getitem__(self, name: str) -> bytes:
        return self._pictures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pictures)

    def __len__(self) -> int:
        return len(self._pictures)

    def __repr__(self) -> str:
        return f"Figures({', '.join(self)})"

    def save(self, folder: str | PathLike[str]) -> list[Path]:
        """Write ``<name>.png`` files; their paths."""
        from homo_dp.core.files import write_whole

        Path(folder).mkdir(parents=True, exist_ok=True)
        paths = [Path(folder) / f"{name}.png" for name in self]
        for path, picture in zip(paths, self.values(), strict=True):
            write_whole(path, picture, "folder")
        return paths

    def _repr_html_(self) -> str:
        from homo_dp.tracking.report.page import render

        return render("plots.html", plots=self)


@dataclass(frozen=True, repr=False)
class Result:
    """A finished (or interrupted) training.

    ``indicators`` holds metrics of private rows: what ``indicators["local_only"]`` names stays
    where the rows are.
    """

    model: Model
    indicators: Mapping[str, Any]
    config: Config
    ledger: pd.DataFrame | None  # this run's rows of the ledger; None for a run without privacy
    interrupted: bool = False
    _rows: tuple[Mapping[str, Any], ...] = ()
    _norms: Mapping[str, Any] | None = None
    _drawn: dict[str, bytes] = field(default_factory=dict)

    @property
    def privacy(self) -> Mapping[str, Any]:
        """The privacy statement: unit, relation, observers, and epsilon by party and accountant."""
        found: Mapping[str, Any] = self.indicators["privacy"]
        return found

    @property
    def epsilon(self) -> float | None:
        """The largest epsilon over the parties towards the quoted observer; None for a run that
        is not private.
        """
        return self.privacy["epsilon"]  # type: ignore[no-any-return]

    @property
    def delta(self) -> float:
        """The delta that epsilon goes with."""
        return float(self.privacy["delta"])

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row for each round: loss and accuracy on test rows, epsilon so far, noise, seconds."""
        import pandas as pd

        return pd.DataFrame(self.indicators["rounds"])

    def plot(self) -> Figures:
        """Learning, epsilon by party, what epsilon bought, gradient norms, budget left: as far
        as there are numbers.
        """
        from homo_dp.tracking.report.report_files import plots_of

        if not self._drawn:
            self._drawn.update(plots_of(self._record()))
        return Figures(self._drawn)

    def report(self, path: str | PathLike[str], *, published: bool = False) -> Path:
        """Write the privacy report, one HTML page; ``published`` leaves out what must stay where
        the rows are.
        """
        from homo_dp.console.screen import Screen
        from homo_dp.report import write_report

        record = self._record()
        whole = self.config.privacy.ledger if Path(self.config.privacy.ledger).is_file() else None
        write_report(
            record.published() if published else record, str(path), whole, None, Screen(quiet=True)
        )
        return Path(path)

    def __repr__(self) -> str:
        return f"Result({' '.join((*self._guarantee(), *self._metrics()))})"

    def _repr_html_(self) -> str:
        from homo_dp.tracking.report.page import HtmlTable, render

        parties = self.privacy["parties"]
        keys = ("rows", "steps", "noise_multiplier", "epsilon_pld", "epsilon_rdp", "delta")
        rows = [[name, *(party[key] for key in keys)] for name, party in parties.items()]
        plot = self.plot()
        first = next(
            (name for name in ("accuracy_epsilon", "learning", "epsilon") if name in plot), None
        )
        return render(
            "result.html",
            statement=" ".join(self._guarantee()),
            metrics=" ".join(self._metrics()),
            parties=HtmlTable(["party", *keys], rows),
            plot=plot[first] if first else None,
            name=first,
        )

    def _guarantee(self) -> list[str]:
        return [_sentence(line) for line in statement_lines(self.privacy)]

    def _metrics(self) -> list[str]:
        found = [(name, self.indicators.get(f"test_{name}")) for name in _SHOWN]
        shown = ", ".join(f"{name} {value:.4g}" for name, value in found if value is not None)
        useless = no_better_than_majority(self.indicators)
        return [
            f"On test rows: {shown}." if shown else "There are no test rows.",
            *([] if useless is None else [_sentence(useless)]),
        ]

    def _record(self) -> Record:
        from homo_dp.config.load import dump_yaml
        from homo_dp.tracking.report.run_files import Record

        return Record(self.indicators, self._rows, dump_yaml(self.config), self._norms)


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:].rstrip('.')}."
