"""Executes the notebooks of `examples/` in an empty folder and keeps their outputs, all or those that are named."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = ("frame_to_hub", "own_data_in_ten_minutes", "reading_a_sweep")
"""In the order in which they are read: the last one reads the sweep of the one before."""


def execute(name: str, folder: Path) -> Any:
    """Run a notebook in a folder; its outputs are without the paths and the warnings of this machine."""
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=1500, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs = [tidy(output, folder) for output in joined(cell.outputs)]
    notebook.metadata.pop("language_info")
    return notebook


def joined(outputs: list[Any]) -> list[Any]:
    """The outputs, with neighbouring pieces of a stream as one; without the warning of tqdm for a missing widget."""
    found: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and "TqdmWarning" in output.text:
            continue
        if output.output_type == "stream" and found and found[-1].get("name") == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def tidy(output: Any, folder: Path) -> Any:
    """An output without the paths of this machine."""
    for part in [output, *([output.data] if "data" in output else [])]:
        for key, text in part.items():
            if isinstance(text, str):
                part[key] = re.sub(rf"{re.escape(str(folder.resolve()))}/?", "", text)
    return output


def main() -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = f"{folder}/.ipython"
        for name in sys.argv[1:] or NOTEBOOKS:
            nbformat.write(execute(name, Path(folder)), EXAMPLES / f"{name}.ipynb")


if __name__ == "__main__":
    main()
