"""What SECURITY.md says of the code, held against the code."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking import dashboard
from meltpoint.sweeps.tracking.store import configure_client

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("tasks", "adapters", "search_spaces", "sweeps", "reports")
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
}


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name, call) of every call of a module whose function is a name or an attribute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keywords(call: ast.Call) -> dict[str, str]:
    return {str(word.arg): ast.unparse(word.value) for word in call.keywords}


def found(pattern: str) -> list[tuple[str, str, dict[str, str]]]:
    """(module, dotted name, keywords) of every call whose name matches."""
    return [
        (module, name, keywords(call))
        for module, source in SOURCES.items()
        for name, call in calls(source)
        if re.fullmatch(pattern, name)
    ]


def test_pickles_are_never_read_not_by_numpy_either() -> None:
    pattern = r"^\s*(import|from) (pickle|dill|joblib)"
    assert [module for module, text in SOURCES.items() if re.search(pattern, text, re.M)] == []
    assert found(r"(torch\.load|pickle\.loads?|joblib\.load|pandas\.read_pickle)") == []
    loads = found(r"np\.load|npy\.(read|write)_array|numpy\.load")
    assert loads
    assert [load for load in loads if load[2].get("allow_pickle") != "False"] == []


def test_code_that_comes_with_a_model_is_never_run_and_only_safetensors_are_loaded() -> None:
    automatic = found(r"transformers\.Auto\w+\.from_pretrained")
    assert automatic
    assert [call for call in automatic if call[2].get("trust_remote_code") != "False"] == []
    assert not [module for module, text in SOURCES.items() if re.search(r"trust_remote_code\s*=\s*(?!False)", text)]
    models = [call for call in found(r".*\.from_pretrained") if not call[1].startswith("transformers.Auto")]
    assert models
    assert [call for call in models if call[2].get("use_safetensors") != "True"] == []


def test_downloads_name_the_files_that_they_take_and_no_pickle_is_among_them() -> None:
    from meltpoint.adapters.families.huggingface.files import HUB_FILES

    downloads = found(r"(.*\.)?(snapshot_download|hf_hub_download)")
    assert downloads
    assert all("allow_patterns" in call[2] for call in downloads)
    endings = {name.rpartition(".")[2] for name in HUB_FILES}
    assert endings <= {"json", "txt", "safetensors", "model", "md"}


def test_yaml_is_read_by_loaders_that_make_plain_values() -> None:
    import yaml

    from meltpoint.search_spaces.documents import Reader
    from meltpoint.tasks.core.files import TextLoader

    assert found(r"yaml\.\w*load\w*") == [], "all YAML is read within the bounds of parse_yaml"
    read = [call for source in SOURCES.values() for name, call in calls(source) if name == "parse_yaml"]
    assert {ast.unparse(call.args[1]) for call in read} == {"TextLoader", "Reader"}
    assert issubclass(Reader, yaml.SafeLoader)
    assert issubclass(TextLoader, yaml.BaseLoader)


def test_no_text_is_run_as_code_and_no_command_goes_through_a_shell() -> None:
    assert found(r"eval|exec|os\.system|os\.popen|subprocess\.getoutput") == []
    assert [call for call in found(r"subprocess\.\w+") if call[2].get("shell", "False") != "False"] == []


def test_the_dashboard_listens_on_this_machine_alone_and_nothing_is_reported_to_the_makers_of_ray_and_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = dashboard.command(tmp_path, 5000)
    assert words[words.index("--host") + 1] == "127.0.0.1"
    for name in ("RAY_USAGE_STATS_ENABLED", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    assert dashboard.environment(default_uri(tmp_path))["MLFLOW_DISABLE_TELEMETRY"] == "true"
    configure_client()
    monkeypatch.setattr(Cluster, "_init", lambda cluster, **options: None)
    with Cluster(None) as cluster:
        cluster.join()
    assert (os.environ["RAY_USAGE_STATS_ENABLED"], os.environ["MLFLOW_DISABLE_TELEMETRY"]) == ("0", "true")
