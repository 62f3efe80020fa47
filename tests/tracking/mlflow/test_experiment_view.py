"""The first view of an experiment: columns that exist, none twice, in an address that opens it."""

import json

from homo_dp.tracking.mlflow.charts import FIRST_COLUMNS
from homo_dp.tracking.mlflow.experiment_view import VIEW, view_address, view_tags


def test_the_view_shows_our_first_columns_each_with_a_width() -> None:
    tags = view_tags()
    state = json.loads(tags[f"mlflow.sharedViewState.{VIEW}"])
    shown = state["selectedColumns"]
    assert [f"metrics.`{name}`" for name in FIRST_COLUMNS] == shown[: len(FIRST_COLUMNS)]
    assert len(set(shown)) == len(shown)
    assert set(state["columnOrder"]) - {"duration"} == set(state["columnWidths"])
    assert view_address("http://a", "3").endswith(f"={VIEW}")
