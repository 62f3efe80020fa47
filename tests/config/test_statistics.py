"""The statistics section: questions of a closed list, each once."""

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.statistics import StatisticsConfig
from homo_dp.core.errors import ConfigError

ASKED = {"privacy.mechanism": "statistics"}


def test_questions_may_be_one_text() -> None:
    assert StatisticsConfig(ask="rows, means").ask == ("rows", "means")  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", ["", "rows,rows", "salaries", []])
def test_no_question_a_double_one_or_one_of_ones_own_is_refused(ask: object) -> None:
    with pytest.raises(ConfigError, match=r"statistics\.ask"):
        load_config(None, {**ASKED, "statistics.ask": ask})
