"""Settings that all tests share."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples every time: a check that fails must fail again when somebody looks at it.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def _logging_back_on() -> Iterator[None]:
    """A command with --quiet turns warnings off for its whole process: turn them on again for the next test."""
    yield
    logging.disable(logging.NOTSET)
