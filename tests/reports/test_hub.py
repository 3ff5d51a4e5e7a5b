"""`export --push` against a small server that speaks the hub's HTTP API; the hub itself was not tried.

The client's own requests arrive here: create, validate-yaml, preupload, Git LFS and commit. Xet, its other way to send
large files, needs the hub's own storage and is turned off.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from huggingface_hub import ModelCard, constants, parse_eval_result_entries
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.exports import eval_result
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.local_servers import QuietHandler, free_ports, served_by
from meltpoint.tests.reports.stored_sweeps import store_sweep
from meltpoint.tests.tiny_parts import BAD, GOOD

TOKEN = "hf_notForAnyonesEyes"
SETTING = {"learning_rate": 2e-3, "dropout": 0.1, "epochs": 1, "batch_size": 8, "precision": "fp32"}
REPO = "someone/reviews"


@dataclass
class Hub:
    """The state of the hub: what arrived.

    Attributes:
        repos: repository → whether it is private.
        files: path → bytes, of the last commit's state.
        commits: the number of commits and of the files in each.
        stored: sha256 → bytes of large files.
        tokens, storage_tokens: the `Authorization` headers that came to the API, and to the store of large files.
        refuses: a status for each request that writes; 0 for none.
    """

    url: str = ""
    repos: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)
    storage_tokens: set[str | None] = field(default_factory=set)
    refuses: int = 0


def handler_of(hub: Hub) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def say(self, document: object, status: int = 200) -> None:
            self.answer(status, json.dumps(document), **{"Content-Type": "application/json"})

        def get(self) -> None:
            repo = self.path.removeprefix("/api/models/")
            if hub.refuses or repo not in hub.repos:
                self.say({"error": "no"}, hub.refuses or 404)
            else:
                self.say({"id": repo, "private": hub.repos[repo], "sha": "0" * 40, "siblings": []})

        def do_PUT(self) -> None:  # noqa: N802 - http.server's name
            hub.stored[self.path.rpartition("/")[2]] = self.body()
            hub.storage_tokens.add(self.headers.get("Authorization"))
            self.answer(200)

        def post(self) -> None:
            body, path = self.body(), self.path
            hub.tokens.add(self.headers.get("Authorization"))
            if hub.refuses:
                self.say({"error": "no"}, hub.refuses)
            elif path == "/api/repos/create":
                asked = json.loads(body)
                repo = f"{asked['organization']}/{asked['name']}"
                status = 409 if repo in hub.repos else 200
                hub.repos.setdefault(repo, asked.get("visibility") == "private")
                self.say({"url": f"{hub.url}/{repo}"}, status)
            elif path == "/api/validate-yaml":
                self.say({"errors": [], "warnings": []})
            elif "/preupload/" in path:
                self.say({"files": [modes_of(one["path"]) for one in json.loads(body)["files"]]})
            elif path.endswith("/info/lfs/objects/batch"):
                self.say({"transfer": "basic", "objects": [self.action(one) for one in json.loads(body)["objects"]]})
            elif path == "/verify":
                known = json.loads(body)
                self.answer(200 if len(hub.stored[known["oid"]]) == known["size"] else 422)
            else:
                assert path == f"/api/models/{REPO}/commit/main"
                self.commit([json.loads(line) for line in body.splitlines()])
                self.say({"commitUrl": f"{hub.url}/{REPO}/commit/1", "commitOid": "1" * 40})

        def action(self, one: dict[str, Any]) -> dict[str, Any]:
            actions = {"upload": {"href": f"{hub.url}/store/{one['oid']}"}, "verify": {"href": f"{hub.url}/verify"}}
            return one if one["oid"] in hub.stored else {**one, "actions": actions}

        def commit(self, operations: list[dict[str, Any]]) -> None:
            files = [(one["key"], one["value"]) for one in operations if one["key"] != "header"]
            hub.commits.append(len(files))
            for key, value in files:
                large = key == "lfsFile"
                hub.files[value["path"]] = hub.stored[value["oid"]] if large else base64.b64decode(value["content"])
                assert not large or hashlib.sha256(hub.files[value["path"]]).hexdigest() == value["oid"]

    def modes_of(path: str) -> dict[str, object]:
        mode = "lfs" if path.endswith(".safetensors") else "regular"
        return {"path": path, "uploadMode": mode, "shouldIgnore": False}

    return Handler


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of one's own, which the client in this process finds, with a token."""
    known = Hub()
    with served_by(handler_of(known)) as url:
        known.url = url
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield known


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of MRPC, whose test labels are public and whose copy on the hub is known."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "mrpc" / "glue").mkdir(parents=True)
    for split, start, count in (("glue/train", 0, 16), ("glue/dev", 100, 8), ("msr_paraphrase_test", 200, 8)):
        rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for number in range(start, start + count):
            first, second = (GOOD, (BAD, GOOD)[number % 2])
            one, other = first[number % len(first)], second[number % len(second)]
            rows.append(f"{number % 2}\t{number}a\t{number}b\tthe film was {one}\tthe film was {other}")
        suffix = "tsv" if "glue" in split else "txt"
        (folder / "mrpc" / f"{split}.{suffix}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def storage(data: Path, tiny_bert: Path, train_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained sweep of two modes."""
    spec = SweepSpec(
        name="small", encoders=(f"hf:{tiny_bert}",), modes=("feature_extraction", "fine_tuning"), tasks=("mrpc",),
        data_dir=str(data), head="native", trials=1, seeds=1,
    )  # fmt: skip
    place: Path = train_sweep(tmp_path_factory.mktemp("storage"), spec, SETTING)
    for path in (place / "small" / "trials").glob("*-final*.json"):  # the fixture's finals have no test score
        record = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(record | {"test": {"accuracy": 0.75}}), encoding="utf-8")
    return place


@pytest.fixture
def export(storage: Path) -> Callable[..., Result]:
    def run(*words: str, name: str = "small", place: Path = storage) -> Result:
        return CliRunner().invoke(app, ["export", name, "--storage", str(place), *words])

    return run


def cell_of(storage: Path, mode: str) -> str:
    summary = json.loads((storage / "small" / "sweep.json").read_text(encoding="utf-8"))
    (cell,) = [one for one in summary["cells"] if one["mode"] == mode]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', cell['encoder']).strip('_')}.{mode}.mrpc"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_arrives_is_what_a_dry_run_writes_and_a_second_push_is_one_more_commit(
    hub: Hub, export: Callable[..., Result], storage: Path, tmp_path: Path
) -> None:
    cell = ("--cell", cell_of(storage, "fine_tuning"))
    dry = export("--push", REPO, *cell, "--dry-run", "--out", str(tmp_path))
    assert dry.exit_code == 0, dry.output
    written = contents(tmp_path / REPO)
    assert dry.output.split() == [str(tmp_path / REPO / name) for name in sorted(written)]
    assert not hub.tokens, "a dry run asks nobody"
    pushed = export("--push", REPO, *cell, "--private")
    assert pushed.exit_code == 0, pushed.output
    assert pushed.output == f"{hub.url}/{REPO}\n"
    assert hub.files == written
    assert (hub.repos, hub.commits) == ({REPO: True}, [len(written)])
    assert len(hub.stored) == 1, "the weights went by Git LFS"
    again = export("--push", REPO, *cell)
    assert (again.exit_code, hub.commits, hub.files) == (0, [len(written)] * 2, written)
    assert (hub.tokens, hub.storage_tokens) == ({f"Bearer {TOKEN}"}, {None}), "the store's addresses are signed"
    assert TOKEN not in dry.output + pushed.output + again.output


def test_the_folder_has_card_results_label_names_and_a_setting_that_trains_again(
    export: Callable[..., Result], storage: Path, data: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    done = export("--push", REPO, "--cell", cell_of(storage, "fine_tuning"), "--dry-run", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    folder = tmp_path / REPO
    card = ModelCard.load(folder / "README.md").data
    (on_test,) = [one.metric_value for one in card.eval_results if one.dataset_split == "test"]
    (entry,) = parse_eval_result_entries(yaml.safe_load((folder / ".eval_results" / "mrpc.yaml").read_text()))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("nyu-mll/glue", "mrpc", on_test)
    assert entry.source_url == f"{constants.ENDPOINT}/{REPO}"
    assert re.fullmatch(r"[0-9a-f]{40}", entry.dataset_revision or "")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry.date or "")
    assert "accuracy on test, seed 0" in (entry.notes or "")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "not_equivalent", "1": "equivalent"}
    said = b"".join(contents(folder).values())
    assert not [path for path in (data, storage, tiny_bert.parent, Path.home()) if str(path).encode() in said]
    words = ["train", str(folder / "setting.yaml"), "--data-dir", str(data), "--json"]
    again = subprocess.run(
        [sys.executable, "-m", "meltpoint.launch", *words], cwd=tiny_bert.parent, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["same"] is True


def test_the_recommended_cell_is_taken_in_the_form_that_it_can_have_unless_one_is_named(
    export: Callable[..., Result], storage: Path, tmp_path: Path
) -> None:
    from meltpoint.reports.loaded_sweep import LoadedSweep

    winner = LoadedSweep.at(str(storage / "small")).recommendation.winner
    where = ("--dry-run", "--out", str(tmp_path))
    assert export("--push", REPO, *where).exit_code == 0
    assert f"{winner.mode}.mrpc" in (tmp_path / REPO / "README.md").read_text(encoding="utf-8")
    mixed = cell_of(storage, "feature_extraction")  # a head on a mix of all layers: not for plain transformers
    assert export("--push", "someone/mixed", "--cell", mixed, *where).exit_code == 0
    assert (tmp_path / "someone" / "mixed" / "meltpoint.json").exists()
    assert not (tmp_path / "someone" / "mixed" / "config.json").exists()
    refused = export("--push", "someone/plain", "--cell", mixed, "--transformers", *where)
    assert refused.exit_code == 2
    assert "export it with --model" in refused.output


def test_each_mistake_ends_in_one_line_with_the_remedy(
    hub: Hub, export: Callable[..., Result], storage: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*words: str, status: int = 2, **more: Any) -> str:
        done = export(*words, **more)
        assert (done.exit_code, len(done.output.splitlines())) == (status, 1), done.output
        assert TOKEN not in done.output
        return done.output

    cell = ("--cell", cell_of(storage, "fine_tuning"))
    assert "must use alphanumeric chars" in refused("--push", "some one/x", *cell)
    assert "write USER/NAME" in refused("--push", "reviews", *cell)
    assert "take one of --model, --onnx" in refused("--push", REPO, *cell, "--model", "--onnx")
    assert "--push USER/NAME" in refused("--private")
    store_sweep(tmp_path, "two", ["accuracy", "pearson"], [0.8])
    several = refused("--push", REPO, name="two", place=tmp_path)
    assert "--cell, such as minilm.feature_extraction.mrpc, minilm.feature_extraction.sick_r." in several
    for hub.refuses in (401, 403):
        line = refused("--push", REPO, *cell)
        assert "refuses your token" in line
        assert "/settings/tokens" in line
    hub.refuses = 0
    hub.repos[REPO] = False
    assert "exists and is public" in refused("--push", REPO, *cell, "--private")
    (port,) = free_ports(1)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    assert "check the network" in refused("--push", REPO, *cell, status=1)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert "hf auth login" in refused("--push", REPO, *cell)
    assert not hub.commits


def test_only_a_whole_test_split_on_the_hub_becomes_an_entry(make_cell: Any, make_sweep: Any) -> None:
    def entry(task: str = "sick_r", finals: Any = ((0.8, 0.7),), **more: Any) -> Any:
        cell = make_cell(task=task, finals=finals)
        return eval_result(make_sweep(cell, **more), cell, REPO)

    assert entry("mrpc").task_id == "mrpc"
    assert entry("stsb").task_id == "default"
    assert entry("mnli").dataset_id == "nyu-mll/glue", "its test is of another repository than its train"
    assert entry("mrpc", test_from="dev[0:10]") is None
    assert entry("mnli:fiction") is None, "a part of it"
    assert entry("demo_sentiment") is None, "not on the hub"
    assert entry("mrpc", ((0.8, "hidden"),)) is None


def test_the_command_finds_hub_and_token_in_the_environment(hub: Hub, storage: Path, tmp_path: Path) -> None:
    words = ["export", "small", "--storage", str(storage), "--push", REPO, "--cell", cell_of(storage, "fine_tuning")]
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}
    done = subprocess.run(
        [sys.executable, "-m", "meltpoint.launch", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env={**os.environ, **own}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{hub.url}/{REPO}\n"), done.stderr
    assert done.stderr == ""
    assert (hub.commits, hub.repos, hub.tokens) == ([len(hub.files)], {REPO: False}, {f"Bearer {TOKEN}"})
