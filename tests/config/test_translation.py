"""What a file of another system leaves open is asked, until some file or override answers it."""

import pytest

from homo_dp.config.translation import Ask, Translation
from homo_dp.core.errors import ConfigError


def test_an_answer_by_any_of_its_keys_closes_a_question() -> None:
    made = Translation(asks=[Ask("where are the rows?", ("data.files", "data.embedded"))])
    assert made.still_asked({"privacy": {"delta": 1e-5}}) == ["where are the rows?"]
    assert made.still_asked({"data": {"embedded": "digits"}}) == []


def test_what_nothing_runs_without_is_an_error() -> None:
    made = Translation(asks=[Ask("which label?", ("data.label",), needed=True)])
    with pytest.raises(ConfigError, match="which label"):
        made.still_asked({})
    assert made.still_asked({"data": {"label": "y"}}) == []
