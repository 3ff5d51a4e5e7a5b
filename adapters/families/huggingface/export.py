"""An encoder under its family's head as a plain folder, which an Auto class of transformers loads, and as an ONNX file.

torch exports the ONNX file from that folder; its scores are compared with torch's own.
"""

from __future__ import annotations

import copy
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.huggingface.files import first_line, weight_files
from meltpoint.adapters.families.huggingface.native_head import PlainHead, TransformersHead, auto_class, output_layer
from meltpoint.adapters.families.huggingface.pretrained import quiet
from meltpoint.adapters.files import give_usual_mode
from meltpoint.adapters.process import quiet_logger
from meltpoint.tasks.core.task import Kind, Task

PROBLEMS = {"score": "regression", "label": "single_label_classification", "labels": "multi_label_classification"}
"""Target of a kind → `problem_type` of transformers; tags have none."""
SCORE = "score"
"""The name of the one output of a regression in `id2label`."""


def family_class(native: TransformersHead, task: Task) -> tuple[str, list[str]]:
    """The name of the family's own class for a task, and the names of its head's weights."""
    (head,) = native.build(task.kind, task.outputs, "fresh", [torch.Generator().manual_seed(0)])
    assert isinstance(head, PlainHead)
    return type(head.model).__name__, [name for name, _ in head.model.named_parameters()]


def save_plain(folder: Path, encoder: Encoder, task: Task, weights: Mapping[str, Tensor], max_pieces: int) -> None:
    """Write configuration, tokenizer and weights; a regressed score comes out in the task's own range.

    Args:
        weights: the head's, named as in the family's class.
        max_pieces: the longest input in subword tokens.
    """
    native = encoder.native
    assert isinstance(native, TransformersHead), "the encoder is of transformers"
    config = copy.deepcopy(native.config)
    config.update(_labels(task))
    with quiet(), tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        encoder.save(Path(scratch))
        model = auto_class(task.kind).from_pretrained(
            scratch, config=config, dtype=torch.float32, use_safetensors=True, local_files_only=True,
            attn_implementation="eager", trust_remote_code=False,
        )  # fmt: skip
        found = model.load_state_dict(dict(weights), strict=False)
        assert not found.unexpected_keys, f"{type(model).__name__} has no {found.unexpected_keys}"
        if task.label_range is not None:
            fold_range(model, *task.label_range)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            scratch, local_files_only=True, trust_remote_code=False
        )  # fmt: skip
        tokenizer.model_max_length = max_pieces
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for path in weight_files(folder):
        give_usual_mode(path)


def fold_range(model: nn.Module, low: float, high: float) -> None:
    """Let the output layer give scores from low to high, where it was trained to give them from -1 to 1.

    Raises:
        ValueError: it has no bias, so that it cannot.
    """
    output = model.get_submodule(output_layer(model))
    assert isinstance(output, nn.Linear), "scores come from a linear layer"
    assert output.out_features == 1, "a regression has one score"
    if output.bias is None:
        name, limits = type(model).__name__, f"{low:g} to {high:g}"
        raise ValueError(f"{name} has no bias in its output layer to give scores of {limits}; export it with --model.")
    with torch.no_grad():
        output.weight.mul_((high - low) / 2)
        output.bias.mul_((high - low) / 2).add_((low + high) / 2)


def _labels(task: Task) -> dict[str, Any]:
    """The part of config.json on a task's outputs."""
    names = task.labels or (SCORE,)
    problem = PROBLEMS.get(task.of_kind.target)
    kind = {} if problem is None else {"problem_type": problem}
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}, **kind}


ONNX_FILE = "model.onnx"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
"""The largest difference of a score, in parts of the largest score where that is above 1. Tiny random encoders of nine
families differed by at most 5e-7 (ONNX Runtime 1.32, float32)."""
MOST_ROWS, ROWS = 256, 16
"""Rows that are compared, from all over the split, and rows of a batch; torch and ONNX Runtime read each once."""
AXES = {0: "batch", 1: "length"}


@dataclass(frozen=True)
class OnnxCheck:
    """The comparison of an exported file with torch.

    Attributes:
        rows: dev rows that both scored.
        difference: the largest difference of a score, as `TOLERANCE` counts it.
    """

    rows: int
    difference: float


def require_packages() -> None:
    """Check that the exporter and the runtime are installed.

    Raises:
        ValueError: one is missing; the line says what to install.
    """
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        raise ValueError(f'ONNX needs {", ".join(absent)}; install the extra: pip install "meltpoint[onnx]".')


def write_onnx(folder: Path, kind: Kind, split: EncodedSplit, pad_piece: int, path: Path) -> OnnxCheck:
    """Export the model of a plain folder of transformers, with any batch size and length, and compare it with torch.

    Args:
        folder: as `plain_model.save` writes it.
        kind: the task's kind.
        split: the task's dev split, tokenised.
        pad_piece: the subword token of padded positions.
        path: the file to write.

    Raises:
        ValueError: torch cannot export it, or its scores are others; one line.
    """
    with quiet():
        model = auto_class(kind).from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            attn_implementation="eager",
            use_safetensors=True,
            trust_remote_code=False,
        )
    model.eval()
    inputs = [_inputs(batch) for batch in _batches(split, pad_piece, kind)]
    _export(model, inputs[0], path)
    return _compare(model, inputs, path)


def _batches(split: EncodedSplit, pad_piece: int, kind: Kind) -> list[Batch]:
    """Rows from all over a split; each batch has two at least, since torch takes an axis of 1 for a constant."""
    count = len(split.rows)
    chosen = sorted({number * count // min(count, MOST_ROWS) for number in range(min(count, MOST_ROWS))})
    groups = [chosen[start : start + ROWS] for start in range(0, len(chosen), ROWS)]
    return [collate(split.rows, group * 2 if len(group) == 1 else group, pad_piece, kind) for group in groups]


def _inputs(batch: Batch) -> dict[str, Tensor]:
    """A batch by the names of transformers."""
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    return {"input_ids": batch.pieces, "attention_mask": batch.piece_mask.long(), **segments}


def _export(model: Any, example: dict[str, Tensor], path: Path) -> None:
    model.config.return_dict = True
    try:
        with quiet_logger("torch.onnx"), torch.no_grad():
            program = torch.onnx.export(
                model, (), kwargs=example, dynamo=True, dynamic_shapes=dict.fromkeys(example, AXES),
                input_names=list(example), output_names=["logits"], verbose=False,
            )  # fmt: skip
            assert program is not None, "torch gives a program where it writes no file itself"
            program.save(path)
    except Exception as error:  # noqa: BLE001 - the exporter raises errors of many packages
        reason = first_line(error)[:200]
        raise ValueError(
            f"torch cannot export {type(model).__name__} to ONNX ({reason}); take --transformers."
        ) from None


def _compare(model: Any, batches: Sequence[dict[str, Tensor]], path: Path) -> OnnxCheck:
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
    if not worst <= TOLERANCE:  # also where it is no number
        raise ValueError(
            f"its scores in ONNX Runtime are not those of torch (up to {worst:.1e} apart, {TOLERANCE:.0e} is allowed); "
            "take --transformers."
        )
    return OnnxCheck(rows, worst)
