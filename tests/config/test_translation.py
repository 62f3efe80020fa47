"""What a file of another system leaves open is asked for only where nothing else answers it."""

from __future__ import annotations

import pytest

from homo_dp.config.translation import Ask, Translation
from homo_dp.core.errors import ConfigError

ROWS = Ask("data.type=femnist: is not shipped; give data.files", ("data.files", "data.embedded"), needed=True)
CLASSES = Ask("classes: are not listed; give data.classes", ("data.classes",))


def test_one_answer_of_several_is_enough() -> None:
    assert ROWS.is_open({"data": {"classes": [0, 1]}})
    assert not ROWS.is_open({"data": {"embedded": "digits"}})


def test_what_is_needed_is_an_error_and_the_rest_is_told() -> None:
    found = Translation(asks=[ROWS, CLASSES])
    with pytest.raises(ConfigError, match="is not shipped"):
        found.still_asked({})
    assert found.still_asked({"data": {"files": {"a": "a.csv"}}}) == [CLASSES.text]
    assert found.still_asked({"data": {"files": {"a": "a.csv"}, "classes": [0, 1]}}) == []
