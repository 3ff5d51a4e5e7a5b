"""The whole files that are mutated, made once, and one process's share of the inputs.

That process is one of its own, so that a crash or a hang in C code ends it alone.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path

from meltpoint.adapters import encoders
from meltpoint.adapters.exported_model import save_folder
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.settings import complete
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.tasks import get
from meltpoint.tests.adapters.conftest import save_tiny, save_tiny_elmo
from meltpoint.tests.adapters.published_skip_thoughts import save_tiny_skip_thoughts
from meltpoint.tests.fuzz import ledgers, watch
from meltpoint.tests.fuzz.ledgers import rng_of
from meltpoint.tests.fuzz.targets import Target, data_targets, encoder_targets, setting_targets

MEMORY_BYTES = 4 * 2**30
"""What reading one input may need beside what the process has already."""

Input = tuple[str, int]
"""A target's name, and the input's number."""


def make_bases(base: Path) -> None:
    """Write all of them into a folder, unless this version of the code has written them there."""
    made = base / "made"
    if made.exists() and made.read_text() == code_version():
        return
    shutil.rmtree(base, ignore_errors=True)
    save_tiny(base / "hf", "bert")
    save_tiny_elmo(base / "elmo")
    save_tiny_skip_thoughts(base / "skipthoughts")
    (base / "sharded").mkdir()
    shutil.copy(base / "hf" / "model.safetensors", base / "sharded" / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": "model-00001-of-00001.safetensors"}}
    (base / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index))
    _export(base)
    ledgers.make(base / "storage", f"hf:{base / 'hf'}")
    made.write_text(code_version())


def _export(base: Path) -> None:
    task, setting = get("demo_sentiment"), complete({}, "feature_extraction", "linear")
    encoder = encoders.load(encoders.resolve(f"hf:{base / 'hf'}", task.kind))
    model = build(encoder, task, "feature_extraction", "linear", [Member(setting, 0)], "cpu")
    save_folder(base / "model", model, task, "feature_extraction", "linear", setting, "fp32", {"sweep": "first"})


@cache
def targets(base: Path) -> dict[str, Target]:
    """Every target, by name."""
    ledger = ledgers.ledger_targets(base / "storage", f"hf:{base / 'hf'}")
    every = [*data_targets(), *setting_targets(), *encoder_targets(base), *ledger]
    return {target.name: target for target in every}


def prepare(base: Path) -> None:
    """Import and load what readers import late, before anything is watched."""
    sys.dont_write_bytecode = True
    for target in targets(base).values():
        with tempfile.TemporaryDirectory() as folder:
            lay(target, Path(folder))
            target.read(Path(folder))
    watch.install()


def lay(target: Target, folder: Path, name: str = "", data: bytes = b"") -> None:
    """Write a target's files, one of them mutated."""
    for file, contents in target.files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if file == name else contents)


def read_one(base: Path, seed: int, one: Input) -> tuple[watch.Fault | None, bool]:
    """Mutate and read: (what is wrong with how it ended, whether it was accepted)."""
    target = targets(base)[one[0]]
    name, data = target.mutated(rng_of(seed, *one))
    with tempfile.TemporaryDirectory() as folder:
        lay(target, Path(folder), name, data)
        return watch.fault_of(target.read, Path(folder))


def plan(weights: dict[str, int], count: int) -> Iterator[Input]:
    """`count` inputs, shared out among targets by their weights, in turns."""
    total = sum(weights.values())
    numbers = Counter[str]()
    for at in range(count):
        lag = {name: weight * (at + 1) / total - numbers[name] for name, weight in weights.items()}
        name = max(lag, key=lambda one: lag[one])
        yield name, numbers[name]
        numbers[name] += 1


def limit_memory() -> None:
    """A reading that wants too much memory gets a `MemoryError` instead of all the machine's."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))


def run(base: Path, seed: int, inputs: Iterable[Input]) -> None:
    """Read inputs, with a line of JSON on standard output before and after each."""
    prepare(base)
    limit_memory()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is written there by C code is none of the lines
    sys.stdout = sys.stderr
    for one in inputs:
        out.write(json.dumps({"begins": one}) + "\n")
        out.flush()
        fault, accepted = read_one(base, seed, one)
        out.write(json.dumps({"input": one, "accepted": accepted, "fault": asdict(fault) if fault else None}) + "\n")
    out.flush()
