"""The CPU kernels: only `adapters/ops.py` imports them, and they are an extra. And one file changes classes."""

from __future__ import annotations

import ast
import tomllib

import pytest
from packaging.requirements import Requirement

from meltpoint.tests.house import architecture

OPS, ANNEX = "adapters.ops", "adapters.cpu"
COMPILERS = {"numba", "llvmlite"}


def of_kernels(module: str, source: str) -> list[str]:
    """What a module outside the kernels' folder imports of them, or of what compiles them."""
    if module == ANNEX or module.startswith(f"{ANNEX}."):
        return []
    names = [name for _, name in architecture.imports(ast.parse(source))]
    inside = [name for name in names if f"{name}.".startswith(f"meltpoint.{ANNEX}.") and module != OPS]
    return inside + [name for name in names if name.partition(".")[0] in COMPILERS]


def test_only_ops_imports_the_kernels_and_only_they_import_what_compiles_them() -> None:
    found = {name: of_kernels(name, path.read_text(encoding="utf-8")) for name, path in architecture.modules().items()}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from meltpoint.adapters.cpu import operations",
        "from meltpoint.adapters import cpu",
        "def late():\n    import meltpoint.adapters.cpu.kernels",
        "import numba.core",
    ],
)
def test_the_search_sees_each_way_to_import_them(source: str) -> None:
    assert of_kernels("adapters.layers.crf", source)
    assert not of_kernels("adapters.cpu.gelu", source)


def test_ops_imports_the_kernels_inside_a_function_and_else_for_types_alone() -> None:
    tree = ast.parse(architecture.modules()[OPS].read_text(encoding="utf-8"))
    at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name for node in at_import for _, name in architecture.imports(node)]
    assert "meltpoint.adapters.data.unpadding.Unpadded" in names
    assert not [name for name in names if name.startswith(f"meltpoint.{ANNEX}")]


def test_what_compiles_the_kernels_is_an_extra_that_make_install_takes_and_the_image_for_gpus_does_not() -> None:
    root = architecture.ROOT
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not COMPILERS & {Requirement(line).name for line in project["dependencies"]}
    assert {Requirement(line).name for line in project["optional-dependencies"]["cpu"]} == COMPILERS
    assert '".[minilm,cpu,cluster,s3,onnx,docs,dev]"' in (root / "Makefile").read_text(encoding="utf-8")
    assert '".[minilm,cluster,energy,s3]"' in (root / "Dockerfile").read_text(encoding="utf-8")


def class_changes(source: str) -> list[int]:
    """Lines that assign an object's class."""
    targets = [
        target
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return [one.lineno for one in targets if isinstance(one, ast.Attribute) and one.attr == "__class__"]


def test_one_file_changes_the_class_of_an_object() -> None:
    found = [n for n, path in architecture.modules().items() if class_changes(path.read_text(encoding="utf-8"))]
    assert found == ["adapters.families.huggingface.specialise"]
