"""The notebooks of `examples/`: what they name exists, they hold their outputs, and they run from a clean kernel."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import meltpoint
from meltpoint.reports.loaded_sweep import LoadedSweep
from meltpoint.tests.examples.write_notebooks import EXAMPLES, NOTEBOOKS, execute


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
def test_a_notebook_is_kept_with_its_outputs_and_without_paths_of_a_machine(name: str) -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)
    notebook = read(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 5
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run from top to bottom"
    said = texts_of(notebook)
    assert len(said.splitlines()) >= 20
    assert not re.search(r"/(?:tmp|home|root|work|Users)/", said)


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
    assert attributes(name, "sweep") or attributes(name, "result")
    assert all(hasattr(LoadedSweep, used) for used in attributes(name, "sweep") - {"place", "summary"})


def texts_of(notebook: Any) -> str:
    """Everything that the cells printed or showed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [str(output.get("data", {}).get("text/plain", "")) + output.get("text", "") for output in outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    return "\n".join(shown)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_run_from_a_clean_kernel_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minilm: Path
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    hub, *said = [texts_of(execute(name, work)) for name in NOTEBOOKS]
    assert "my-name/reviews/README.md" in hub
    progress = [line for line in said[0].splitlines() if "best on dev: " in line]
    assert any("🔥" in line for line in progress), "the sweep's progress is shown in the notebook"
    assert len(said[0].splitlines()) < 500, "and does not flood it"
    assert "'done'" in said[0]
    assert "feature_extraction" in said[1]
    assert (work / "runs" / "reviews" / "report.html").is_file()
