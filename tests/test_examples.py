"""The notebooks of examples/: they run from first to last cell, and what they show is in them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


class ThisPython(KernelSpecManager):  # type: ignore[misc]
    """The kernel of the interpreter that runs the tests, whatever kernels the machine knows."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=arguments, display_name="tests", language="python")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_notebook_runs_and_holds_its_outputs(path: Path, tmp_path: Path) -> None:
    from jupyter_client import AsyncKernelManager

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    shown = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert len(shown) >= 2, f"{path.name} has no outputs: run pipelines/run_examples.py"
    assert len(json.dumps(notebook)) < 300_000
    kernel = AsyncKernelManager(kernel_spec_manager=ThisPython(), kernel_name="python3")
    NotebookClient(
        notebook, km=kernel, timeout=240, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert not list(tmp_path.iterdir()), "a notebook left files behind"


def test_there_are_three_of_them() -> None:
    assert {path.stem for path in EXAMPLES} == {"quickstart", "own_model", "federation"}
