"""The page for people who come from another system lists every name."""

from pathlib import Path

from homo_dp.compat.reference import names_reference

ROOT = Path(__file__).parents[2]


def test_the_list_of_names_is_up_to_date() -> None:
    page = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    said = "docs/coming_from.md is stale: python -m homo_dp.compat.reference writes its last part"
    assert page.endswith(names_reference()), said
