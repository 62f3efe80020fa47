"""The list of dependencies in the repository is that of the pins, and what was not audited is
not called safe.
"""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "pipelines" / "audit_dependencies.py"))
sbom, verdict = SCRIPT["sbom"], SCRIPT["verdict"]


def test_the_list_is_that_of_the_pins() -> None:
    said = "sbom.cdx.json is stale: make audit-dependencies"
    assert (ROOT / "sbom.cdx.json").read_text() == sbom((ROOT / "constraints.txt").read_text()), (
        said
    )


def test_packages_without_data_are_not_called_safe(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict([{"name": "a", "skip_reason": "not found"}]) == 0
    assert capsys.readouterr().out.startswith("not audited: ")
    hole = {"id": "CVE-1", "fix_versions": ["2"]}
    assert (
        verdict([{"name": "a", "version": "1", "vulns": [hole]}, {"name": "b", "skip_reason": "?"}])
        == 1
    )
    assert capsys.readouterr().out.splitlines() == [
        "a 1: CVE-1, mended in 2",
        "audited 1 packages, 1 known holes; no data about 1: b",
    ]
