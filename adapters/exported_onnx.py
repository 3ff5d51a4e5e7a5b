"""A finalist exported as an ONNX file beside its tokenizer and configuration, for runtimes without torch.

```python
import numpy, onnxruntime, transformers

folder = "runs/demo/exports/bert-base.fine_tuning.mrpc.onnx"
inputs = transformers.AutoTokenizer.from_pretrained(folder)(["A man eats."], ["Someone eats."], return_tensors="np")
(logits,) = onnxruntime.InferenceSession(f"{folder}/model.onnx").run(["logits"], dict(inputs))
```
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.exported_model import FACTS
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.model import AdaptedModel
from meltpoint.tasks.core.task import Task

if TYPE_CHECKING:
    from meltpoint.adapters.families.huggingface.onnx_model import OnnxCheck
from meltpoint.adapters.exported_transformers import save_transformers_folder


def save_onnx_folder(
    folder: Path, model: AdaptedModel, task: Task, mode: str, head: str, setting: Setting, facts: Mapping[str, Any],
    dev: EncodedSplit,
) -> OnnxCheck:  # fmt: skip
    """Write a model as `model.onnx`, whose scores are those of the plain folder of transformers.

    Args:
        dev: the task's dev split, tokenised; rows of it are scored by torch and by ONNX Runtime, and compared.

    Raises:
        ValueError: as `save_transformers_folder`; the extra `onnx` is not installed, torch cannot export the model, or
            the scores differ. Nothing is written then.
    """
    from meltpoint.adapters.families.huggingface import onnx_model  # transformers takes seconds to import

    onnx_model.require_packages()
    with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        plain, made = Path(scratch) / "plain", Path(scratch) / onnx_model.FILE
        save_transformers_folder(plain, model, task, mode, head, setting, facts)
        check = onnx_model.write(plain, task.kind, dev, model.encoder.tokenizer.pad_piece, made)
        document = json.loads((plain / FACTS).read_text(encoding="utf-8")) | {"onnx": asdict(check)}
        (plain / FACTS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        beside = [path for path in plain.iterdir() if path.is_file() and ".safetensors" not in path.name]
        for path in (*beside, *Path(scratch).glob(f"{onnx_model.FILE}*")):  # large weights lie in a file beside it
            shutil.copy(path, folder / path.name)
    return check
