"""A record for OpenDP's registry of differential-privacy deployments, filled from a run (tier 3 of
its schema).

What a run cannot know (who publishes, where, what for) says so in words, and the record's status is
"Draft".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from homo_dp import __version__

ASK = "To be filled in by the curator"


def registry_record(indicators: Mapping[str, Any]) -> dict[str, Any]:
    """The record; only fields and enumerated values that the registry's schema has."""
    privacy: Mapping[str, Any] = indicators["privacy"]
    run = str(indicators.get("run", "unnamed run"))
    unit, relation = (
        str(privacy.get("unit")),
        str(privacy.get("neighbouring_relation")).replace("_", " "),
    )
    observer = str(privacy.get("quoted_observer", "aggregator"))
    numbers = {name: privacy.get(name) for name in ("epsilon", "delta")}
    return {
        "url_slug": re.sub("[^a-z0-9]+", "_", run.lower()).strip("_"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": f"Model of {run}",
                "data_curators": [ASK],
                "description": str(privacy.get("statement", "")),
                "intended_use": ASK,
                "data_product_type": "Machine learning model",
                "data_product_region": ASK,
                "publication_date": str(indicators.get("finished") or "1970-01-01")[:10],
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": (
                    "Tables of the parties, with the columns and public bounds of the configuration"
                ),
                "unprotected_quantities": (
                    f"Configuration and schema are public. Row counts: {privacy.get('rows')}"
                ),
            },
            "privacy_loss": {
                "privacy_unit": unit,
                "privacy_unit_details": f"Adjacent tables differ by one {unit}: {relation}",
                "privacy_parameters": {
                    name: value for name, value in numbers.items() if value is not None
                },
                "privacy_parameters_details": (
                    f"The largest of any party, towards the {observer}; by PLD where it "
                    "exists, else by RDP"
                ),
            },
            "deployment_model": {
                "model_name": "Federated",
                "model_name_details": (
                    f"Mechanism {privacy.get('mechanism')}; noise is charged before release"
                ),
                "actors": (
                    "Parties that hold rows, an aggregator that sees messages, readers of the model"
                ),
                "release_type": "Many releases",
                "release_type_details": "One release in every round of training",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": (
                    "Averaging of updates and server optimiser, on noised values only"
                ),
                "composition": (
                    "Adaptive composition over all rounds by privacy loss distributions; RDP over "
                    "runs"
                ),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": (
                    "Columns are scaled by public bounds. Tuning runs are "
                    "charged to the same ledger; choices made outside of it are not counted"
                ),
                "mechanisms": (
                    f"{privacy.get('mechanism')}, homo_dp {__version__}; secure mode: "
                    f"{privacy.get('secure_mode')}"
                ),
                "justification": ASK,
            },
            "administrative": {"registry_authors": [ASK]},
        },
    }


def registry_yaml(indicators: Mapping[str, Any]) -> bytes:
    """As YAML with plain and quoted strings only: the registry refuses folded ones."""
    text: str = yaml.safe_dump(
        registry_record(indicators), sort_keys=False, allow_unicode=True, width=10**6
    )
    return text.encode()
