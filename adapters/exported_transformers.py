"""A finalist exported for other tools, which load it without this project: a folder of transformers, or an ONNX file.

```python
import numpy, onnxruntime, transformers

folder = "runs/demo/exports/bert-base.fine_tuning.mrpc"
classify = transformers.pipeline("text-classification", f"{folder}.transformers")

tokenise = transformers.AutoTokenizer.from_pretrained(f"{folder}.onnx")
inputs = tokenise(["A man eats."], ["Someone eats."], return_tensors="np")
(logits,) = onnxruntime.InferenceSession(f"{folder}.onnx/model.onnx").run(["logits"], dict(inputs))
```
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.exported_model import FACTS
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.model import AdaptedModel
from meltpoint.tasks.core.task import Task

if TYPE_CHECKING:
    from meltpoint.adapters.families.huggingface.export import OnnxCheck


NATIVE, LINEAR, POOLER = "native", "linear", "native.pooler"
GLOBAL_ATTENTION = {"longformer"}
"""Model types whose class for sentences runs the encoder in another way than the encoder runs alone."""

_TOP = "head.top.module.model."
_LAST = "head.scores.linear."


def save_transformers_folder(
    folder: Path, model: AdaptedModel, task: Task, mode: str, head: str, setting: Setting, facts: Mapping[str, Any]
) -> None:
    """Write a model as `AutoModelForSequenceClassification` or `AutoModelForTokenClassification` loads it.

    Raises:
        ValueError: transformers has no class for it; one line with the remedy.
    """
    from meltpoint.adapters.families.huggingface import export  # transformers takes seconds to import

    weights = head_weights(model, task, head, setting)
    folder.mkdir(parents=True, exist_ok=True)
    limit = min(int(setting["max_pieces"]), model.encoder.max_pieces)
    export.save_plain(folder, model.encoder, task, weights, limit)
    document = {"task": task.name, "metric": task.metric, "mode": mode, "head": head, "setting": dict(setting), **facts}
    (folder / FACTS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def head_weights(model: AdaptedModel, task: Task, head: str, setting: Setting) -> dict[str, Tensor]:
    """The head's and pooler's weights, named as in the class of the encoder's family.

    Raises:
        ValueError: that class cannot give the model's scores; one line with the remedy.
    """
    if task.of_kind.target == "grade":
        raise ValueError("transformers has no class for ordered classes; export it with --model.")
    if head not in (NATIVE, LINEAR):
        raise ValueError(f"transformers has no class for the head {head}; heads {NATIVE} and {LINEAR} are exported so.")
    if model.encoder.native is None:
        raise ValueError(f"{model.encoder.revision} is no encoder of transformers; export it with --model.")
    if model.mix is not None:
        remedy = "take --set feature_extraction.layers=top, or export it with --model"
        raise ValueError(f"the head reads a learned mix of all layers, which transformers has no class for; {remedy}.")
    native: Any = model.encoder.native
    if native.config.model_type in GLOBAL_ATTENTION and not task.of_kind.labels_words:
        name = f"the {native.config.model_type} class of transformers lets the first piece attend to all others"
        raise ValueError(f"{name}, which the finalist's encoder did not; export it with --model.")
    own = {name: parameter.detach()[0].cpu() for name, parameter in model.own_parameters().items()}
    from meltpoint.adapters.families.huggingface.export import family_class  # transformers takes seconds to import

    name, wanted = family_class(native, task)
    return _of_linear(own, name, wanted) if head == LINEAR else _of_native(own, name, wanted, setting)


def _of_native(own: Mapping[str, Tensor], name: str, wanted: Sequence[str], setting: Setting) -> dict[str, Tensor]:
    weights = {key.removeprefix(_TOP): tensor for key, tensor in own.items()}
    if weights.keys() != set(wanted):
        raise ValueError(
            f"{name} always applies its pooler, and the finalist was trained with native.pooler={setting[POOLER]}; "
            f"take pretrained or fresh, or export it with --model."
        )
    return weights


def _of_linear(own: Mapping[str, Tensor], name: str, wanted: Sequence[str]) -> dict[str, Tensor]:
    layer = wanted[-1].rpartition(".")[0]
    others = [weight for weight in wanted if weight.rpartition(".")[0] != layer]
    if others:
        raise ValueError(
            f"{name} has a layer with an activation under its scores ({others[0]}), which the head {LINEAR} was "
            f"trained without; train with --head {NATIVE}, or export it with --model."
        )
    return {f"{layer}.{part}": own[f"{_LAST}{part}"] for part in ("weight", "bias")}


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
    from meltpoint.adapters.families.huggingface import export  # transformers takes seconds to import

    export.require_packages()
    with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        plain, made = Path(scratch) / "plain", Path(scratch) / export.ONNX_FILE
        save_transformers_folder(plain, model, task, mode, head, setting, facts)
        check = export.write_onnx(plain, task.kind, dev, model.encoder.tokenizer.pad_piece, made)
        document = json.loads((plain / FACTS).read_text(encoding="utf-8")) | {"onnx": asdict(check)}
        (plain / FACTS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        beside = [path for path in plain.iterdir() if path.is_file() and ".safetensors" not in path.name]
        for path in (*beside, *Path(scratch).glob(f"{export.ONNX_FILE}*")):  # large weights lie in a file beside it
            shutil.copy(path, folder / path.name)
    return check
