"""The page of mechanisms is what their records say."""

from pathlib import Path

from homo_dp.config.mechanism_reference import reference

ROOT = Path(__file__).parents[2]


def test_the_page_of_mechanisms_is_up_to_date() -> None:
    said = "stale: python -m homo_dp.config.mechanism_reference > docs/mechanisms.md"
    assert (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8") == reference(), said
