"""An encoder and its family's head as a plain folder of transformers, which an Auto class loads."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.huggingface.files import weight_files
from meltpoint.adapters.families.huggingface.native_head import PlainHead, TransformersHead, auto_class, output_layer
from meltpoint.adapters.families.huggingface.pretrained import quiet
from meltpoint.adapters.files import give_usual_mode
from meltpoint.tasks.core.task import Task

PROBLEMS = {"score": "regression", "label": "single_label_classification", "labels": "multi_label_classification"}
"""Target of a kind → `problem_type` of transformers; tags have none."""
SCORE = "score"
"""The name of the one output of a regression in `id2label`."""


def family_class(native: TransformersHead, task: Task) -> tuple[str, list[str]]:
    """The name of the family's own class for a task, and the names of its head's weights."""
    (head,) = native.build(task.kind, task.outputs, "fresh", [torch.Generator().manual_seed(0)])
    assert isinstance(head, PlainHead)
    return type(head.model).__name__, [name for name, _ in head.model.named_parameters()]


def save(folder: Path, encoder: Encoder, task: Task, weights: Mapping[str, Tensor], max_pieces: int) -> None:
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
