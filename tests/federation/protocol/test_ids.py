"""Ids become parts of paths and subjects."""

from __future__ import annotations

import pytest

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.ids import check_id


@pytest.mark.parametrize("good", ["a", "7", "bank_a", "run-1", "v1.2", "A" * 64])
def test_ids(good: str) -> None:
    assert check_id("run", good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        ".",
        "..",
        "a..b",
        "a.",
        "-a",
        ".a",
        "a/b",
        "a\\b",
        "a b",
        "a\n",
        "ä",
        "A" * 65,
        "*",
        ">",
        7,
        None,
        b"a",
    ],
)
def test_what_could_leave_its_folder_or_subject_is_refused(bad: object) -> None:
    with pytest.raises(MessageError, match="cannot be an id"):
        check_id("run", bad)


def test_the_refusal_is_bounded() -> None:
    with pytest.raises(MessageError) as refused:
        check_id("run", "/" * 10_000)
    assert len(str(refused.value)) < 250
