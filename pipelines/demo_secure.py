"""The same as demo_federation.py with parties that share their noise under masks
(docs/secure_aggregation.md).

python -m pipelines.demo_secure     (make demo-secure)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pipelines.demo_federation import PARTIES, main

RECIPES = {
    "aggregator": "federation_secure",
    **{name: name.replace("_", "_secure_") for name in PARTIES},
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="homo_dp-demo-") as place:
        sys.exit(main(Path(place), RECIPES))
