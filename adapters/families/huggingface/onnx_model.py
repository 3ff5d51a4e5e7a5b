"""A plain model of transformers as an ONNX file, exported by torch and compared with torch's own scores."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.families.huggingface.native_head import auto_class
from meltpoint.adapters.families.huggingface.pretrained import quiet
from meltpoint.adapters.quiet_logging import quiet_logger
from meltpoint.tasks.core.task import Kind

FILE = "model.onnx"
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


def write(folder: Path, kind: Kind, split: EncodedSplit, pad_piece: int, path: Path) -> OnnxCheck:
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
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
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
