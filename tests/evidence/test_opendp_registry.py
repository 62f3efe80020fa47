"""The registry record keeps the rules of opendp/deployments-registry-data
(deployments-schema.yaml, 3e9c812).
"""

from typing import Any

import yaml

from homo_dp.evidence.opendp_registry import registry_yaml

FIELDS = {
    "basic": (
        "name data_curators intended_use data_product_type data_product_region description "
        "publication_date data_product_sector"
    ),
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": (
        "privacy_unit privacy_unit_details privacy_parameters privacy_parameters_details"
    ),
    "deployment_model": (
        "model_name model_name_details actors release_type release_type_details data_source_type "
        "data_source_type_details access_type access_type_details"
    ),
    "accounting": "post_processing composition",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
    "administrative": "sources notes registry_authors",
}
PRIVACY: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "unit": "record",
    "statement": "a: b",
    "mechanism": "dp_sgd",
}


def test_a_record_has_the_fields_and_values_of_the_schema() -> None:
    text = registry_yaml({"run": "run-1", "finished": "2026-01-02T03:04", "privacy": PRIVACY})
    record = yaml.safe_load(text)
    assert set(record) == {"url_slug", "status", "tier", "deployment"}
    assert (record["status"], record["tier"]) == ("Draft", 3)
    for section, found in record["deployment"].items():
        assert set(found) <= set(FIELDS[section].split())
    basic = record["deployment"]["basic"]
    assert set(FIELDS["basic"].split()) - set(basic) == {"data_product_sector"}
    assert basic["publication_date"] == "2026-01-02"  # a string: the schema refuses a YAML date
    assert basic["data_product_type"] == "Machine learning model"
    assert record["deployment"]["dp_variant"]["variant_name"] == "Approximate DP"
    assert record["deployment"]["deployment_model"]["model_name"] == "Federated"
    assert record["deployment"]["privacy_loss"]["privacy_parameters"] == {
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    styles = {token.style for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)}
    assert styles <= {None, "'", '"', "|"}
