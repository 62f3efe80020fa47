"""The first view of an experiment in MLflow's pages: which columns its table of runs has.

MLflow keeps a view that somebody shares as a tag of the experiment, and an address opens it by its
name. Without one the table shows no metric at all.
"""

from __future__ import annotations

import json
from typing import Any

from homo_dp.tracking.mlflow.charts import FIRST_COLUMNS

VIEW = "homo_dp"
_ATTRIBUTES = ("Dataset", "Source", "Description")
# columns that are always first: pixels
_FIXED = {"0": 50, "attributes.`Run Name`": 180, "runDateAndNestInfo": 140}
_WIDTHS = (80, 90, 80, 170, 90, 320)


def view_state() -> dict[str, Any]:
    """Our first view as MLflow's pages keep a view."""
    columns = [f"metrics.`{name}`" for name in FIRST_COLUMNS] + [
        f"attributes.`{name}`" for name in _ATTRIBUTES
    ]
    return {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        "columnOrder": [*_FIXED, *columns, "duration"],
        "columnWidths": _FIXED | dict(zip(columns, _WIDTHS, strict=True)),
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "FIRST_10_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "groupBy": None,
        "groupsExpanded": {},
        "autoRefreshEnabled": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "globalLineChartConfig": {
            "xAxisKey": "step",
            "lineSmoothness": 0,
            "selectedXAxisMetricKey": "",
        },
    }


def view_tags() -> dict[str, str]:
    """The tags of an experiment that give it our first view, and say that it is about models
    (not about prompts).
    """
    return {
        f"mlflow.sharedViewState.{VIEW}": json.dumps(view_state()),
        "mlflow.experimentKind": "custom_model_development",
    }


def runs_address(server: str, experiment: str) -> str:
    """The page of an experiment, in the view that the browser keeps.

    >>> runs_address("http://127.0.0.1:5000", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs'
    """
    return f"{server}/#/experiments/{experiment}/runs"


def view_address(server: str, experiment: str) -> str:
    """The page of an experiment in our first view, on a server that does not know it.

    >>> view_address("http://127.0.0.1:5000", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=homo_dp'
    """
    return f"{runs_address(server, experiment)}?viewStateShareKey={VIEW}"
