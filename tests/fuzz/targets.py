"""The readers of files that other people may have written: whole files to mutate, and a function that reads them."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow
import yaml
from pyarrow import parquet

from meltpoint.adapters import settings
from meltpoint.adapters.encoders import resolve
from meltpoint.search_spaces import files as spaces
from meltpoint.sweeps.command_line.spec_from_options import checked_spec
from meltpoint.sweeps.specification import spec_files
from meltpoint.sweeps.specification.sweep_options import SweepOptions
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.core.user_task import read_task_file
from meltpoint.tests.fuzz.mutations import as_json, mutate_bytes, mutate_table, mutate_tree, odd_value, with_header

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        name: on the command line.
        files: file → its whole contents; one of them is mutated each time.
        read: reads the folder, in the ways of the commands.
        mutations: file → how it is mutated beside its bytes; nothing for those that are bytes alone.
        fixed: files that are not mutated.
    """

    name: str
    files: Mapping[str, bytes]
    read: Callable[[Path], object]
    mutations: Mapping[str, Mutation] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()

    def lay(self, folder: Path, mutated: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Write the files, with other contents for some."""
        for file, contents in {**self.files, **mutated}.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)

    def mutated(self, seed: int, number: int) -> tuple[str, bytes]:
        """A file's name and new contents, the same each time for a seed and a number."""
        rng = random.Random(f"{seed}/{self.name}/{number}")
        name = rng.choice(sorted(set(self.files) - self.fixed))
        data = self.files[name]
        pool = list(self.files.values())
        if name in self.mutations and rng.random() < 0.6:
            data = self.mutations[name](rng, data, pool)
            return name, mutate_bytes(rng, data, pool) if rng.random() < 0.1 else data
        return name, mutate_bytes(rng, data, pool)


# Mutations by format.


def json_tree(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """A JSON document with changed nodes."""
    return as_json(rng, mutate_tree(rng, json.loads(data)))


def json_lines(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """JSON lines with a changed line."""
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = as_json(rng, mutate_tree(rng, json.loads(lines[at]))).decode("utf-8", "surrogatepass")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def yaml_tree(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """A YAML document with changed nodes, written as YAML or as JSON, which is YAML too."""
    tree = mutate_tree(rng, yaml.safe_load(data))
    if rng.random() < 0.5:
        return as_json(rng, tree)
    try:
        return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, RecursionError):
        return as_json(rng, tree)


def table(separator: str) -> Mutation:
    """Lines and cells."""
    return lambda rng, data, pool: mutate_table(rng, data, separator)


def parquet_table(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """A parquet file whose columns have other values, types or names."""
    columns = parquet.read_table(io.BytesIO(data)).to_pydict()
    name = rng.choice(list(columns))
    length = len(columns[name])
    values: list[Any] = rng.choice((
        [None] * length, [b"\xff\x00"] * length, [[["x"]]] * length, [{"a": 1}] * length, [float("nan")] * length,
        [odd_value(rng)] * length, [*columns[name][:-1], None], [""] * length, [2**40] * length, [[]] * length,
    ))  # fmt: skip
    columns[rng.choice((name, name, "other"))] = values
    out = io.BytesIO()
    try:
        parquet.write_table(pyarrow.table(columns), out, compression=rng.choice(("none", "snappy", "zstd")))
    except (pyarrow.ArrowException, TypeError, OverflowError, UnicodeError, RecursionError):
        return data
    return out.getvalue()


def safetensors_header(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """A safetensors file with a changed header."""
    length = int.from_bytes(data[:8], "little")
    header = as_json(rng, mutate_tree(rng, json.loads(data[8 : 8 + length])))
    return with_header(rng, header, data[8 + length :])


# Tasks and their data.

TEXTS = (("a warm film", "good"), ("a dull film", "bad"), ("lovely, quiet, long", "good"), ("poor and cold", "bad"))
HEAD = "name: reviews\nkind: sentence_classification\nlabels: [bad, good]\ncolumns: {text: text, label: label}\n"
LINE_HEAD = HEAD.replace("columns: {text: text, label: label}\n", "")
PAIRS = "name: pairs\nkind: pair_regression\nrange: [0, 5]\ncolumns: {text_a: a, text_b: b, label: score}\n"
TAGS = "name: genes\nkind: sequence_labelling\nlabels: [O, B-X, I-X]\n"


def _files(form: str) -> str:
    return f"format: {form}\nfiles: {{train: data.{form}, dev: data.{form}}}\n"


def read_task(folder: Path) -> None:
    """Read a task file, and the data that it names."""
    file = str(folder / "task.yaml")
    read_task_file(file, ["mnli"])
    sources.check(DataSpec(file))
    sources.read_split(DataSpec(file), "train")


def _user_task(form: str, head: str, data: bytes, mutation: Mutation | None) -> Target:
    task = (head + _files(form)).encode()
    changes = {} if mutation is None else {f"data.{form}": mutation}
    files = {"task.yaml": task, f"data.{form}": data}
    return Target(f"data_{form}", files, read_task, changes, frozenset({"task.yaml"}))


def _parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": [t for t, _ in TEXTS], "label": [label for _, label in TEXTS]}), out)
    return out.getvalue()


def _rows(separator: str) -> bytes:
    quoted = [(f'"{text}"' if separator == "," else text, label) for text, label in TEXTS]
    return "\n".join(separator.join(row) for row in [("text", "label"), *quoted]).encode()


def data_targets() -> list[Target]:
    """The formats of a user's data, and the task file itself."""
    lines = "\n".join(json.dumps({"a": text, "b": "x", "score": 2.5}) for text, _ in TEXTS).encode()
    conll = b"-DOCSTART- O\n\nShe B-X\nsleeps I-X\n. O\n\nNo O\n"
    tsv = _rows("\t")
    lines_of_text = "\n".join(f"{label} {text}" for text, label in TEXTS).encode()
    task = (HEAD + _files("tsv") + "metric: accuracy\nheader: true\nquoting: false\ndescription: a task\n").encode()
    return [
        Target("task_yaml", {"task.yaml": task, "data.tsv": tsv}, read_task, {"task.yaml": yaml_tree},
               frozenset({"data.tsv"})),
        _user_task("tsv", HEAD, tsv, table("\t")), _user_task("csv", HEAD, _rows(","), table(",")),
        _user_task("jsonl", PAIRS, lines, json_lines), _user_task("conll", TAGS, conll, table(" ")),
        _user_task("parquet", HEAD, _parquet(), parquet_table),
        _user_task("lines", f"{LINE_HEAD}pattern: '(?P<label>\\w+) (?P<text>.+)'\n", lines_of_text, table(" ")),
    ]  # fmt: skip


# Spaces, specifications, exported settings.

SPACE = b"""parameters:
  learning_rate: {log_uniform: [1.0e-4, 1.0e-2], first: 1.0e-3, grid: [1.0e-3, 1.0e-2], source: ours}
  dropout: {choice: [0.0, 0.1], first: 0.1}
  weight_decay: {uniform: [0, 0.1]}
  batch_size: {integer: [8, 64]}
  epochs: 2
  schedule: {choice: [constant, slanted_triangular]}
  slanted_triangular.cut_fraction: {uniform: [0.05, 0.2], when: {schedule: slanted_triangular}}
modes:
  fine_tuning: {parameters: {learning_rate: 2.0e-5, discriminative_rates: {choice: [true, false]}}}
"""
SPEC = b"""name: mine
summary: two blocks
source: ours
trials: 4
seeds: 2
folders: {elmo: the released files}
blocks:
  - name: frozen
    encoders: [minilm, elmo]
    modes: [feature_extraction]
    tasks: [demo_sentiment]
    set: {epochs: 3, dropout: {choice: [0.1, 0.2]}}
  - name: tuned
    encoders: minilm
    modes: fine_tuning
    tasks: [demo_entailment]
    variant: large
    trials: 3
"""
POINT = b"""encoder: minilm
mode: fine_tuning
task: demo_sentiment
head: linear
parameters: {learning_rate: 2.0e-5, epochs: 3, batch_size: 16}
provenance:
  sweep: first
  metric: accuracy
  seed: 0
  dev: 0.75
  finals: [{seed: 0, dev: 0.75, test: {accuracy: 0.7}, trial: 0123456789abcdef, mlflow_run_id: null}]
  data: {task: demo_sentiment, data_dir: null, max_train_examples: null, test_from: null, fingerprint: null}
  encoder_fingerprint: null
  hardware: {device: cpu, threads: 1, gpu_share: 0.0, precision: fp32, name: AVX2, host: here}
  code: abc
  versions: {torch: 2.13.0}
"""


def read_space(folder: Path) -> None:
    """Read a space as `sweep --space` does."""
    path = folder / "space.yaml"
    every = {parameter.name: parameter for parameter in settings.all_parameters()}
    spaces.check(path, every)
    for mode in ("feature_extraction", "fine_tuning"):
        allowed = {parameter.name: parameter for parameter in settings.parameters(mode, "linear")}
        space = spaces.load(path, allowed, mode=mode, every=every)
        space.first()
        assert isinstance(space.is_finite, bool)
        space.from_params(space.first())
        space.fingerprint()
        assert spaces.documents.parse(space.dump(), "dump") is not None


def read_spec(folder: Path) -> None:
    """Read a specification as `sweep --spec` does."""
    path = str(folder / "spec.yaml")
    spec_files.read(path)
    checked_spec(SweepOptions(spec=path))


def read_point(folder: Path) -> None:
    """Read an exported setting as `train` does, up to the training."""
    from meltpoint.search_spaces.files import check_setting
    from meltpoint.sweeps.specification.provenance import reasons, recorded_code, recorded_dev
    from meltpoint.sweeps.worker.retrain import prepared

    check_setting(str(folder / "point.yaml"))
    order, facts = prepared(str(folder / "point.yaml"), None, None, str(folder))
    recorded_dev(facts, order.seed)
    reasons({**facts, "code": recorded_code(facts, order.seed)}, "", {}, {})


def setting_targets() -> list[Target]:
    """Spaces, specifications and exported settings."""
    return [
        Target("space", {"space.yaml": SPACE}, read_space, {"space.yaml": yaml_tree}),
        Target("spec", {"spec.yaml": SPEC}, read_spec, {"spec.yaml": yaml_tree}),
        Target("point", {"point.yaml": POINT}, read_point, {"point.yaml": yaml_tree}),
    ]


# Encoders and exported models.


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def read_encoder(folder: Path) -> None:
    """Read an encoder's folder as `sweep` does before the first trial."""
    from meltpoint.adapters import encoders

    for word in ("hf:{}", "elmo:{}", "skipthoughts:{}#uni"):
        if (folder / word.partition(":")[0]).is_dir():
            reference = resolve(word.format(folder / word.partition(":")[0]), "sentence_classification")
            encoders.check(reference)
            encoders.state_size(reference)
            encoders.weights_without_embeddings(reference)
            encoders.fingerprint(reference)


def load_encoder(folder: Path) -> None:
    """The same, then load it as a worker does."""
    from meltpoint.adapters import encoders

    read_encoder(folder)
    kind = next(path.name for path in folder.iterdir())
    variant = "#uni" if kind == "skipthoughts" else ""
    encoders.load(resolve(f"{kind}:{folder / kind}{variant}", "sentence_classification"))


def read_model(folder: Path) -> None:
    """Read an exported model."""
    from meltpoint.adapters.exported_model import load_folder

    load_folder(folder)


def make_encoders(base: Path) -> None:
    """Write the folders that `encoder_targets` mutates."""
    from meltpoint.adapters import encoders
    from meltpoint.adapters.exported_model import save_folder
    from meltpoint.adapters.model import Member, build
    from meltpoint.tasks import get
    from meltpoint.tests.adapters.conftest import save_tiny, save_tiny_elmo
    from meltpoint.tests.adapters.published_skip_thoughts import save_tiny_skip_thoughts

    save_tiny(base / "hf", "bert")
    save_tiny_elmo(base / "elmo")
    save_tiny_skip_thoughts(base / "skipthoughts")
    (base / "sharded").mkdir()
    shutil.copy(base / "hf" / "model.safetensors", base / "sharded" / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": "model-00001-of-00001.safetensors"}}
    (base / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index))
    task, setting = get("demo_sentiment"), settings.complete({}, "feature_extraction", "linear")
    encoder = encoders.load(resolve(f"hf:{base / 'hf'}", task.kind))
    model = build(encoder, task, "feature_extraction", "linear", [Member(setting, 0)], "cpu")
    save_folder(base / "model", model, task, "feature_extraction", "linear", setting, "fp32", {"sweep": "first"})


def encoder_targets(base: Path) -> list[Target]:
    """Encoders of every family, and an exported model.

    Args:
        base: the folder with `hf`, `elmo`, `skipthoughts`, `sharded` and `model`.
    """

    def files(name: str, under: str) -> dict[str, bytes]:
        return {f"{under}{path}": data for path, data in folder_bytes(base / name).items()}

    hugging, model = files("hf", "hf/"), files("model", "")
    weights = "hf/model.safetensors"
    by_name: dict[str, Mutation] = {name: json_tree for name in (*hugging, *model) if name.endswith(".json")}
    by_name |= {weights: safetensors_header, "head.safetensors": safetensors_header}
    sharded = {name: data for name, data in hugging.items() if name != weights} | files("sharded", "hf/")
    only = {name: data for name, data in model.items() if name in ("meltpoint.json", "head.safetensors")}
    return [
        Target("safetensors", hugging, read_encoder, by_name, frozenset(set(hugging) - {weights})),
        Target("encoder_files", hugging, load_encoder, by_name, frozenset({weights})),
        Target("sharded", sharded, read_encoder, {"hf/model.safetensors.index.json": json_tree},
               frozenset(set(sharded) - {"hf/model.safetensors.index.json"})),
        Target("elmo", files("elmo", "elmo/"), load_encoder, {"elmo/options.json": json_tree}),
        Target("skip_thoughts", files("skipthoughts", "skipthoughts/"), load_encoder),
        Target("model", model, read_model, by_name, frozenset(set(model) - set(only))),
    ]  # fmt: skip
