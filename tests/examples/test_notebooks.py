"""The notebooks of `examples/`: what they name exists, they hold no outputs, and they run from a clean kernel."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meltpoint
from meltpoint.reports.loaded_sweep import LoadedSweep

nbformat = pytest.importorskip("nbformat", reason='nbclient is not installed (the extra "dev")')
pytest.importorskip("ipykernel", reason='ipykernel is not installed (the extra "dev")')

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = ("own_data_in_ten_minutes", "reading_a_sweep")
"""In the order in which they are read: the second one reads the first one's sweep."""


def read(name: str) -> Any:
    return nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)


def trees(name: str) -> Iterator[ast.Module]:
    """The code cells, with the lines of a shell as calls."""
    from IPython.core.inputtransformer2 import TransformerManager

    for cell in read(name).cells:
        if cell.cell_type == "code":
            yield ast.parse(TransformerManager().transform_cell(cell.source))


def attributes(name: str, of: str) -> set[str]:
    """The attributes of a variable that a notebook uses."""
    return {
        node.attr for tree in trees(name) for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == of
    }  # fmt: skip


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs(name: str) -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)
    notebook = read(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 5
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_import_and_name_of_meltpoint_in_a_notebook_exists(name: str) -> None:
    for tree in trees(name):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert all(importlib.import_module(alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "options":
                assert set(ast.literal_eval(node.value)) <= set(inspect.signature(meltpoint.sweep).parameters)
    assert attributes(name, "mp") <= set(meltpoint.__all__)
    assert attributes(name, "sweep")
    assert all(hasattr(LoadedSweep, used) for used in attributes(name, "sweep") - {"place", "summary"})


def texts_of(notebook: Any) -> str:
    """Everything that the cells printed or showed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [str(output.get("data", {}).get("text/plain", "")) + output.get("text", "") for output in outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    return "\n".join(shown)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_both_run_from_a_clean_kernel_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minilm: Path
) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    said = []
    for name in NOTEBOOKS:
        notebook = read(name)
        resources = {"metadata": {"path": str(work)}}
        NotebookClient(notebook, timeout=800, kernel_name="python3", resources=resources).execute()
        said.append(texts_of(notebook))
    progress = [line for line in said[0].splitlines() if "best on dev: " in line]
    assert any("🔥" in line for line in progress), "the sweep's progress is shown in the notebook"
    assert len(said[0].splitlines()) < 500, "and does not flood it"
    assert "'done'" in said[0]
    assert "feature_extraction" in said[1]
    assert (work / "runs" / "reviews" / "report.html").is_file()
