"""Run the notebooks of examples/ and keep their outputs: python pipelines/run_examples.py."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main() -> None:
    """Execute each notebook in place; times and ids that change at every run are left out."""
    for path in sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)
        print(path)


if __name__ == "__main__":
    main()
