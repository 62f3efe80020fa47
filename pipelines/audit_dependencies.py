"""Known holes in the pinned dependencies, and the list of them: ``make audit-dependencies``.

Writes ``sbom.cdx.json`` (CycloneDX 1.5) from ``constraints.txt``, then asks pip-audit, installed
into a temporary environment, what is known about each version. Ends with 1 if something is known,
with 0 if nothing is, or if the data of pip-audit cannot be reached: then it says so, and the list
can be given to a scanner elsewhere.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONSTRAINTS, SBOM = ROOT / "constraints.txt", ROOT / "sbom.cdx.json"
MOST_SECONDS = 300


def main() -> int:
    """Write the list, then audit it."""
    SBOM.write_text(sbom(CONSTRAINTS.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{SBOM.name}: {len(pins(CONSTRAINTS.read_text(encoding='utf-8')))} components")
    return audit()


def pins(constraints: str) -> dict[str, str]:
    """Versions by name.

    >>> pins("torch==2.13.0\\n# a comment\\nPyYAML==6.0.3\\n")
    {'torch': '2.13.0', 'PyYAML': '6.0.3'}
    """
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", constraints, re.MULTILINE))


def sbom(constraints: str) -> str:
    """The pinned packages as CycloneDX; without time or serial number, so that the same pins
    give the same file.
    """
    from homo_dp import __version__

    components: list[dict[str, Any]] = []
    for name, version in sorted(pins(constraints).items(), key=lambda pin: pin[0].lower()):
        purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
        components.append(
            {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        )
    about = {
        "type": "application",
        "bom-ref": "homo_dp",
        "name": "homo_dp",
        "version": __version__,
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": about},
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def audit() -> int:
    """Run pip-audit on the pins; 1 if it knows a hole, 0 if not or if it cannot work here."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        install = [python, "-m", "pip", "install", "-qq", "pip-audit"]
        command = [
            python,
            "-m",
            "pip_audit",
            "--requirement",
            str(CONSTRAINTS),
            "--no-deps",
            "--disable-pip",
        ]
        options = ["--format", "json", "--progress-spinner", "off"]
        try:
            subprocess.run(install, stderr=subprocess.DEVNULL, check=True, timeout=MOST_SECONDS)
            done = subprocess.run(
                [*command, *options],
                capture_output=True,
                text=True,
                timeout=MOST_SECONDS,
                check=False,
            )
            found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
        except (
            subprocess.CalledProcessError,
            subprocess.TimeoutExpired,
            ValueError,
            KeyError,
        ) as error:
            return _not_here(
                f"pip-audit cannot be installed here or has no answer ({type(error).__name__})"
            )
    return verdict(found)


def verdict(found: list[dict[str, Any]]) -> int:
    """Say what pip-audit found. It calls packages that it has no data about skipped, and then
    reports no holes.

    >>> verdict([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}])
    audited 1 packages, no known holes; no data about 1: b
    0
    """
    skipped = [each["name"] for each in found if "skip_reason" in each]
    audited = [each for each in found if "skip_reason" not in each]
    if not audited:
        return _not_here("pip-audit has no data about any of the packages")
    holes = [(each["name"], each["version"], hole) for each in audited for hole in each["vulns"]]
    for name, version, hole in holes:
        print(
            f"{name} {version}: {hole['id']}, mended in "
            f"{', '.join(hole['fix_versions']) or 'no version yet'}"
        )
    known = f"{len(holes)} known holes" if holes else "no known holes"
    unknown = f"; no data about {len(skipped)}: {', '.join(skipped)}" if skipped else ""
    print(f"audited {len(audited)} packages, {known}{unknown}")
    return 1 if holes else 0


def _not_here(reason: str) -> int:
    print(f"not audited: {reason}; give {SBOM.name} to a scanner that reads CycloneDX")
    return 0


if __name__ == "__main__":
    sys.exit(main())
