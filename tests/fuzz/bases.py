"""The whole files that are mutated: tiny encoders of every family, an exported model, a ledger; made once."""

from __future__ import annotations

import json
import shutil
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
from meltpoint.tests.fuzz import ledgers
from meltpoint.tests.fuzz.targets import Target, data_targets, encoder_targets, setting_targets


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
