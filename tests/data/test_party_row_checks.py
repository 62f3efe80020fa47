"""A party's table against its own config, in the form in which the config says that it is
written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homo_dp.core.errors import DataError
from homo_dp.data.parties import load_federation
from homo_dp.data.party_row_checks import check_own_rows
from tests.data.parts import config

FORM: dict[str, Any] = {"separator": ";", "decimal": ",", "thousands": "."}
COLUMNS = {
    "lab_*": {"bounds": [0, 5000]},
    "seen": {"date": ["2020-01-01", "2021-12-31"], "format": "%d.%m.%Y", "missing": "error"},
    "smokes": {"levels": [True, False], "missing": "error"},
}
ROWS = [f"{n};1.234,{n};0,5;0{n}.02.2020;TRUE;{n % 2}" for n in range(1, 9)]
WRONG = {
    "a number of another form": "9;1,234.5;0,5;01.02.2020;true;0",
    "a number in words": "9;tall;0,5;01.02.2020;true;0",
    "no date": "9;1,5;0,5;31.02.2020;true;0",
    "a missing date": "9;1,5;0,5;;true;0",
    "a missing level": "9;1,5;0,5;01.02.2020;;0",
    "another class": "9;1,5;0,5;01.02.2020;false;2",
}


def table(folder: Path, *rows: str) -> str:
    path = folder / "t.csv"
    path.write_text("\n".join(["id;lab_a;lab_b;seen;smokes;y", *ROWS, *rows]) + "\n")
    return str(path)


def test_a_table_of_the_stated_form_passes(tmp_path: Path) -> None:
    check_own_rows(
        config(files={"a": table(tmp_path)}, columns=COLUMNS, classes=[0, 1], **FORM), "a"
    )


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused_is_what_is_left_out(tmp_path: Path, wrong: str) -> None:
    """Finding the rows that do not fit reads a value as writing it does: else a good row goes,
    or a bad one stays.
    """
    data = config(
        files={"a": table(tmp_path, WRONG[wrong])},
        columns=COLUMNS,
        classes=[0, 1],
        test_fraction=0.0,
        **FORM,
    )
    for check in (lambda: check_own_rows(data, "a"), lambda: load_federation(data)):
        with pytest.raises(DataError, match="row 9"):
            check()
    held = load_federation(data, leave_out=True).parties["a"]
    assert (len(held.train), held.left_out) == (len(ROWS), 1)
    whole = load_federation(
        config(**{**data.data.model_dump(exclude_unset=True), "files": {"a": table(tmp_path)}})
    )
    assert held.train.features.equal(whole.parties["a"].train.features)
