"""What is told of a run beside its numbers."""

from __future__ import annotations

from homo_dp.config.load import load_config
from homo_dp.core.errors import DataError
from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.runs.run_facts import failure_tags, run_params, short_name


def test_why_a_run_failed_is_told_elsewhere_only_in_words_that_quote_no_row() -> None:
    elsewhere = load_config(None, {"tracking.uri": "http://127.0.0.1:1"})
    quoting = DataError("a.csv: row 7, column age: 'Alice' is no number")
    assert failure_tags(elsewhere, quoting) == {"reason": "DataError"}
    assert failure_tags(load_config(None), quoting)["reason"].endswith("is no number")
    assert failure_tags(elsewhere, BudgetExceeded("epsilon=2"))["reason"] == "epsilon=2"


def test_parameters_of_a_run_leave_out_where_its_files_go() -> None:
    params = run_params(load_config(None, {"privacy.target_epsilon": 2.0}))
    assert params["privacy.target_epsilon"] == "2.0"
    assert not [key for key in params if key.startswith(("output.", "tracking."))]


def test_a_name_of_a_run_has_its_whole_target_however_large() -> None:
    config = load_config(None, {"privacy.target_epsilon": 168_000.0})
    assert short_name(config, "run-ee99ed", private=True) == "lr eps168000 ee99ed"
