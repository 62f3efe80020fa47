"""The reference of keys is what the schema says."""

from pathlib import Path

from homo_dp.config.reference import reference

ROOT = Path(__file__).parents[2]


def test_reference_is_up_to_date() -> None:
    said = "docs/config.md is stale: python -m homo_dp.config.reference > docs/config.md"
    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == reference(), said
