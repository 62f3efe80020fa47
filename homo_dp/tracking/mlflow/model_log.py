"""Logs a model file to MLflow as a servable model, and finds the file behind a ``models:/``
address again.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.config.addresses import masked, without_secrets
from homo_dp.core.errors import ModelFileError, error_text
from homo_dp.tracking.mlflow.environment import set_defaults
from homo_dp.tracking.mlflow.signature import describe, example_of, privacy_tags, signature_of
from homo_dp.tracking.mlflow.uris import missing_file

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

LOADER = "homo_dp.tracking.pyfunc"
REQUIREMENTS = ("homo_dp", "torch", "safetensors", "pandas", "pyarrow")
SCHEMES = ("models:/", "runs:/", "mlflow-artifacts:/")


def log_model(
    client: MlflowClient, experiment: Any, run_id: str, path: Path, register: str | None
) -> str:
    """Log a model file under its run, and register it if a name is given; the model's id.

    MLflow's own log_model loads the model to try it, which takes seconds and torch; the pieces are
    the same.
    """
    from mlflow.entities import LoggedModelOutput

    logged = client.create_logged_model(experiment, name="model", source_run_id=run_id)
    try:
        with tempfile.TemporaryDirectory() as folder:
            save_pyfunc(path, Path(folder) / "model", model_id=logged.model_id, run_id=run_id)
            client.log_model_artifacts(logged.model_id, str(Path(folder) / "model"))
    except Exception:
        with contextlib.suppress(Exception):
            client.delete_logged_model(logged.model_id)
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    if register is not None:
        _register(client, register, logged.model_id, run_id, privacy_tags(path))
    return str(logged.model_id)


def save_pyfunc(
    path: Path, folder: Path, model_id: str | None = None, run_id: str | None = None
) -> None:
    """Write the folder of an MLflow model: our file, how to load it, its signature and its
    made-up example.
    """
    import mlflow.pyfunc
    from mlflow.models import Model

    description = describe(path)
    mlflow.pyfunc.save_model(
        str(folder),
        loader_module=LOADER,
        data_path=str(path),
        mlflow_model=Model(run_id=run_id, model_id=model_id, model_uuid=model_id),
        signature=signature_of(description),
        input_example=example_of(description),
        pip_requirements=[f"{name}=={version(name)}" for name in REQUIREMENTS],
    )


def warm_up() -> None:
    """Let MLflow read, before it matters, what it needs to know about the installed packages to
    save a model.
    """
    import mlflow.pyfunc

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").touch()
        mlflow.pyfunc.save_model(
            f"{folder}/model",
            loader_module=LOADER,
            data_path=f"{folder}/data",
            pip_requirements=[REQUIREMENTS[0]],
        )


@contextlib.contextmanager
def model_file(name: str, uri: str) -> Iterator[str]:
    """The path of a model file: the path itself, or a copy of what an address such as
    ``models:/name/1`` holds.
    """
    if not name.startswith(SCHEMES):
        yield name
        return
    shown = masked(uri)
    if missing_file(uri) is not None:
        raise ModelFileError(
            f"modelFileName={name}: tracking.uri={shown} is not a store (no such file); set "
            "tracking.uri"
        )
    set_defaults()
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import set_tracking_uri

    set_tracking_uri(uri)  # names are looked up there, whatever the environment says
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = Path(download_artifacts(artifact_uri=name, dst_path=folder, tracking_uri=uri))
        except (MlflowException, OSError) as error:
            text = without_secrets(error_text(error, 2000), uri)[:200]
            raise ModelFileError(
                f"modelFileName={name}: cannot be fetched from tracking.uri={shown} ({text}); "
                "check name and version"
            ) from error
        files = [found] if found.is_file() else sorted(found.glob("data/*"))
        if len(files) != 1:
            raise ModelFileError(
                f"modelFileName={name}: is not a model that homo_dp logged; give one of ours"
            )
        yield str(files[0])


def _register(
    client: MlflowClient, name: str, model_id: str, run_id: str, tags: Mapping[str, str]
) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    statement = tags.get("statement")
    said = {key: value for key, value in tags.items() if key != "statement"}
    client.create_model_version(
        name, f"models:/{model_id}", run_id, said, description=statement, model_id=model_id
    )
