"""An audit's outcome in MLflow: on the run that was audited if it is named, else as a run of its
own.
"""

from __future__ import annotations

from pathlib import Path

from homo_dp.config.addresses import masked, without_secrets
from homo_dp.config.schema import Config
from homo_dp.core.errors import error_text
from homo_dp.evidence.audit import Outcome
from homo_dp.tracking.mlflow.environment import set_defaults

METRICS = ("claimed_epsilon", "lower_bound", "ceiling", "point_estimate", "confidence")


def log_audit(outcome: Outcome, config: Config, folder: Path, run_id: str | None) -> str:
    """Log figures, tags and files; a line that says where. A store that is down costs the line,
    never the audit.
    """
    from homo_dp.tracking.mlflow.uris import absolute

    set_defaults()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    uri = config.tracking.uri
    try:
        # MLflow keeps a store by its name for the life of the process
        client = MlflowClient(absolute(uri))
        own = run_id is None
        if run_id is None:
            known = client.get_experiment_by_name(config.tracking.experiment)
            experiment = (
                known.experiment_id
                if known
                else client.create_experiment(config.tracking.experiment)
            )
            run_id = client.create_run(experiment, run_name=f"audit {outcome.attack}").info.run_id
        values = outcome.to_json()
        for name in METRICS:
            if values[name] is not None:
                client.log_metric(run_id, f"audit_{name}", float(values[name]))
        for name in ("attack", "observer", "refuted"):
            client.set_tag(run_id, f"audit_{name}", str(values[name]))
        for name in ("audit.json", "roc.png"):
            client.log_artifact(run_id, str(folder / name))
        if own:
            client.set_terminated(run_id)
    except (MlflowException, OSError) as error:
        return f"MLflow: not logged ({without_secrets(error_text(error, 2000), uri)[:200]})"
    return f"MLflow run: {run_id} in {masked(uri)}"
