"""A finalist exported for tools outside this project: a transformers folder, or an ONNX file.

```python
import numpy, onnxruntime, transformers

folder = "runs/demo/exports/bert-base.fine_tuning.mrpc"
classify = transformers.pipeline("text-classification", f"{folder}.transformers")

tokenise = transformers.AutoTokenizer.from_pretrained(f"{folder}.onnx")
inputs = tokenise(["A man eats."], ["Someone eats."], return_tensors="np")
session = onnxruntime.InferenceSession(f"{folder}.onnx/model.onnx")
(logits,) = session.run(["logits"], {one.name: inputs[one.name] for one in session.get_inputs()})
```

torch exports the ONNX file from the transformers folder; the file's scores are compared with torch's.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.data.tokenising import PieceTokenizer
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.exported_model import FACTS
from meltpoint.adapters.families.huggingface import pretrained
from meltpoint.adapters.families.huggingface.files import first_line, weight_files
from meltpoint.adapters.files import give_usual_mode
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.model import AdaptedModel
from meltpoint.tasks.core.task import Kind, Task

PROBLEMS = {"score": "regression", "label": "single_label_classification", "labels": "multi_label_classification"}
"""Target of a kind → `problem_type` of transformers; tags have none."""
WORDS = ["Anna", "was", "in", "Oslo"]
"""Words that a tagger's saved tokenizer is tried on."""
SCORE = "score"
"""The name of a regression's single output in `id2label`."""


def save_plain(folder: Path, encoder: Encoder, task: Task, weights: Mapping[str, Tensor], max_pieces: int) -> None:
    """Write configuration, tokenizer and weights; a regression's scores come out in the task's own range.

    Args:
        weights: the head's weights, named as in the family's class.
        max_pieces: the longest input in subword tokens.
    """
    native = encoder.native
    assert isinstance(native, pretrained.TransformersHead), "the encoder is of transformers"
    config = copy.deepcopy(native.config)
    config.update(_labels(task))
    with pretrained.quiet(), tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        encoder.save(Path(scratch))
        model = _read(task.kind, scratch, config=config)
        found = model.load_state_dict(dict(weights), strict=False)
        assert not found.unexpected_keys, f"{type(model).__name__} has no {found.unexpected_keys}"
        if task.label_range is not None:
            fold_range(model, *task.label_range)
        tokenizer = pretrained.read_tokenizer(Path(scratch), task.name)
        tokenizer.model_max_length = max_pieces
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if task.of_kind.labels_words:
        _read_words_alone(folder, cast(PieceTokenizer, encoder.tokenizer))
    for path in weight_files(folder):
        give_usual_mode(path)


def _read_words_alone(folder: Path, trained: PieceTokenizer) -> None:
    """Make the saved tokenizer give each of several words the pieces that it has in mid-sentence, as in training.

    Raises:
        ValueError: it cannot.
    """
    path = folder / "tokenizer.json"
    if trained.word_prefix:
        document = json.loads(path.read_text(encoding="utf-8"))
        parts = [document.get("pre_tokenizer") or {}]
        for part in parts:
            parts += part.get("pretokenizers", [])
            part |= {"add_prefix_space": True} if part.get("type") == "ByteLevel" else {}
        path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
        config = folder / "tokenizer_config.json"
        facts = json.loads(config.read_text(encoding="utf-8")) | {"add_prefix_space": True}
        config.write_text(json.dumps(facts, indent=2, ensure_ascii=False), encoding="utf-8")
    with pretrained.quiet():
        saved = pretrained.read_tokenizer(folder, folder.name)
    found = saved([WORDS], is_split_into_words=True, add_special_tokens=False)["input_ids"][0]
    if found != [piece for word in WORDS for piece in trained.word(word)]:
        raise ValueError("its saved tokenizer would read separate words otherwise than in training; use --model")


def _read(kind: Kind, folder: Path | str, **more: Any) -> Any:
    """The model of a plain folder."""
    return pretrained.auto_class(kind).from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, local_files_only=True, attn_implementation="eager",
        trust_remote_code=False, **more,
    )  # fmt: skip


def fold_range(model: nn.Module, low: float, high: float) -> None:
    """Make the output layer give scores from low to high; it was trained to give scores from -1 to 1.

    Raises:
        ValueError: it has no bias, so it cannot.
    """
    output = model.get_submodule(pretrained.output_layer(model))
    assert isinstance(output, nn.Linear), "scores come from a linear layer"
    if output.bias is None:
        name, limits = type(model).__name__, f"{low:g} to {high:g}"
        raise ValueError(f"{name} has no bias in its output layer to give scores of {limits}; export it with --model.")
    with torch.no_grad():
        output.weight.mul_((high - low) / 2)
        output.bias.mul_((high - low) / 2).add_((low + high) / 2)


def _labels(task: Task) -> dict[str, Any]:
    """The part of config.json that describes a task's outputs."""
    names = task.labels or (SCORE,)
    problem = PROBLEMS.get(task.of_kind.target)
    kind = {} if problem is None else {"problem_type": problem}
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}, **kind}


ONNX_FILE = "model.onnx"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
"""The largest difference of a score, relative to the largest score if that exceeds 1. Tiny random encoders of nine
families differed by at most 5e-7 (ONNX Runtime 1.32, float32)."""
MOST_ROWS, ROWS = 256, 16
"""The number of rows compared, from all over the split, and rows per batch; torch and ONNX Runtime read each once."""
AXES = {0: "batch", 1: "length"}


def write_onnx(folder: Path, kind: Kind, split: EncodedSplit, pad_piece: int, path: Path) -> dict[str, Any]:
    """Export the model of a plain transformers folder for any batch size and length, and compare it with torch.

    Args:
        folder: as `save_plain` writes it.
        kind: the task's kind.
        split: the task's dev split, tokenised.
        pad_piece: the subword token of padded positions.
        path: the file to write.

    Returns:
        `rows`, the dev rows that both scored, and `difference`, the largest of a score, as `TOLERANCE` counts it.

    Raises:
        ValueError: torch cannot export it, or its scores differ; one line.
    """
    with pretrained.quiet():
        model = _read(kind, folder)
    model.eval()
    inputs = [_inputs(batch) for batch in _batches(split, pad_piece, kind)]
    _export(model, inputs[0], path)
    return _compare(model, inputs, path)


def _batches(split: EncodedSplit, pad_piece: int, kind: Kind) -> list[Batch]:
    """Rows from all over a split; each batch has at least two, since torch treats an axis of 1 as constant."""
    count = len(split.rows)
    chosen = sorted({number * count // min(count, MOST_ROWS) for number in range(min(count, MOST_ROWS))})
    groups = [chosen[start : start + ROWS] for start in range(0, len(chosen), ROWS)]
    return [collate(split.rows, group * 2 if len(group) == 1 else group, pad_piece, kind) for group in groups]


def _inputs(batch: Batch) -> dict[str, Tensor]:
    """A batch under the names that transformers uses."""
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    return {"input_ids": batch.pieces, "attention_mask": batch.piece_mask.long(), **segments}


def _export(model: Any, example: dict[str, Tensor], path: Path) -> None:
    model.config.return_dict = True
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            program = torch.onnx.export(
                model, (), kwargs=example, dynamo=True, dynamic_shapes=dict.fromkeys(example, AXES),
                input_names=list(example), output_names=["logits"], verbose=False,
            )  # fmt: skip
            assert program is not None, "torch returns a program if it writes no file itself"
            program.save(path)
    except Exception as error:  # noqa: BLE001 - the exporter raises errors of many packages
        name, reason = type(model).__name__, first_line(error)[:200]
        raise ValueError(f"torch cannot export {name} to ONNX ({reason}); use --transformers.") from None
    finally:
        logger.setLevel(before)


def _compare(model: Any, batches: Sequence[dict[str, Tensor]], path: Path) -> dict[str, Any]:
    from onnxruntime import InferenceSession

    session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst, rows = 0.0, 0
    for inputs in batches:
        with torch.no_grad():
            expected = model(**inputs).logits
        (found,) = session.run(["logits"], {name: tensor.numpy() for name, tensor in inputs.items()})
        apart = (torch.from_numpy(found) - expected).abs()
        real = inputs["attention_mask"].bool() if expected.dim() == 3 else slice(None)
        scale = max(1.0, float(expected[real].abs().max()))
        worst, rows = max(worst, float(apart[real].max()) / scale), rows + len(expected)
    if not worst <= TOLERANCE:  # also if it is NaN
        raise ValueError(
            f"its scores in ONNX Runtime differ from torch's (by up to {worst:.1e}, {TOLERANCE:.0e} is allowed); "
            "use --transformers."
        )
    return {"rows": rows, "difference": worst}


NATIVE, LINEAR, POOLER = "native", "linear", "native.pooler"
GLOBAL_ATTENTION = {"longformer"}
"""Model types whose sentence class runs the encoder differently from the encoder alone."""

_TOP = "head.top.module.model."
_LAST = "head.scores.linear."


def save_transformers_folder(
    folder: Path, model: AdaptedModel, task: Task, mode: str, head: str, setting: Setting, facts: Mapping[str, Any]
) -> None:
    """Write a model for `AutoModelForSequenceClassification` or `AutoModelForTokenClassification` to load.

    Raises:
        ValueError: transformers has no class for it; one line with the remedy.
    """
    weights = head_weights(model, task, head, setting)
    folder.mkdir(parents=True, exist_ok=True)
    limit = min(int(setting["max_pieces"]), model.encoder.max_pieces)
    with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:  # a refusal leaves the folder as it was
        save_plain(Path(scratch), model.encoder, task, weights, limit)
        for path in Path(scratch).iterdir():
            shutil.copy(path, folder / path.name)
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
        raise ValueError(f"transformers has no class for head {head}; only {NATIVE} and {LINEAR} can be exported so.")
    if model.encoder.native is None:
        raise ValueError(f"{model.encoder.revision} is not a transformers encoder; export it with --model.")
    if model.starts_at is None and model.layers_read != (model.encoder.layers - 1,):
        states = "a learned mix of all layers" if model.mix is not None else "other states than the top layer's"
        raise ValueError(f"transformers has no class for a head on {states}; export it with --model.")
    native: Any = model.encoder.native
    if native.config.model_type in GLOBAL_ATTENTION and not task.of_kind.labels_words:
        name = f"the {native.config.model_type} class of transformers lets the first piece attend to all others"
        raise ValueError(f"{name}, which the finalist's encoder did not; export it with --model.")
    own = {name: parameter.detach()[0].cpu() for name, parameter in model.own_parameters().items()}
    (plain,) = native.build(task.kind, task.outputs, "fresh", [torch.Generator().manual_seed(0)])
    name, wanted = type(plain.model).__name__, [name for name, _ in plain.model.named_parameters()]
    return _of_linear(own, name, wanted) if head == LINEAR else _of_native(own, name, wanted, setting)


def _of_native(own: Mapping[str, Tensor], name: str, wanted: Sequence[str], setting: Setting) -> dict[str, Tensor]:
    weights = {key.removeprefix(_TOP): tensor for key, tensor in own.items()}
    if weights.keys() != set(wanted):
        raise ValueError(
            f"{name} always applies its pooler, but the finalist was trained with native.pooler={setting[POOLER]}; "
            f"use pretrained or fresh, or export it with --model."
        )
    return weights


def _of_linear(own: Mapping[str, Tensor], name: str, wanted: Sequence[str]) -> dict[str, Tensor]:
    layer = wanted[-1].rpartition(".")[0]
    others = [weight for weight in wanted if weight.rpartition(".")[0] != layer]
    if others:
        raise ValueError(
            f"{name} has a layer with an activation before its scores ({others[0]}), but the head {LINEAR} was trained "
            f"without it; train with --head {NATIVE}, or export it with --model."
        )
    return {f"{layer}.{part}": own[f"{_LAST}{part}"] for part in ("weight", "bias")}


def save_onnx_folder(
    folder: Path, model: AdaptedModel, task: Task, mode: str, head: str, setting: Setting, facts: Mapping[str, Any],
    dev: EncodedSplit,
) -> None:  # fmt: skip
    """Write a model as `model.onnx`, which gives the same scores as the plain transformers folder.

    Args:
        dev: the task's dev split, tokenised; rows of it are scored by torch and by ONNX Runtime, and compared.

    Raises:
        ValueError: as `save_transformers_folder`; also the extra `onnx` is not installed, torch cannot export the
            model, or the scores differ. Nothing is written then.
    """
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        raise ValueError(f'ONNX needs {", ".join(absent)}; install the extra: pip install "meltpoint[onnx]".')
    with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        plain, made = Path(scratch) / "plain", Path(scratch) / ONNX_FILE
        save_transformers_folder(plain, model, task, mode, head, setting, facts)
        check = write_onnx(plain, task.kind, dev, model.encoder.tokenizer.pad_piece, made)
        document = json.loads((plain / FACTS).read_text(encoding="utf-8")) | {"onnx": check}
        (plain / FACTS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        companions = [path for path in plain.iterdir() if path.is_file() and ".safetensors" not in path.name]
        for path in (*companions, *Path(scratch).glob(f"{ONNX_FILE}*")):  # large weights are in a separate file
            shutil.copy(path, folder / path.name)
