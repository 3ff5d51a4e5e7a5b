"""Predictions from a finalist's exported folder (encoder in its family's format, head weights, `meltpoint.json`).

```python
from meltpoint.adapters.exported_model import load_folder

model = load_folder("minilm.fine_tuning.sst2.model")
model.predict(["a gorgeous, witty, seductive movie ."])   # → ["positive"]
model.predict([("A man eats.", "Someone eats.")])          # pairs; a list of words for sequence labelling
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, FiniteFloat
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from meltpoint.adapters import encoders, heads
from meltpoint.adapters.data.input_format import InputFormat, input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.files import replacing
from meltpoint.adapters.hardware import Precision, resolve_precision
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.model import AdaptedModel, Member, build
from meltpoint.adapters.settings import complete
from meltpoint.adapters.training.evaluation import Evaluation, evaluate
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import parse_json, read_bytes
from meltpoint.tasks.core.metrics import Prediction
from meltpoint.tasks.core.rows import scalar_text
from meltpoint.tasks.core.task import Example, Task

CPU = torch.device("cpu")
FACTS, HEAD, ENCODER, ADAPTER = "meltpoint.json", "head.safetensors", "encoder", "adapter"

Text = str | tuple[str, str] | Sequence[str]
"""A sentence, a pair (a tuple), or the words of a sentence (a list), depending on the task's kind."""


@dataclass(frozen=True)
class ExportedModel:
    """A finalist loaded for prediction.

    Attributes:
        model: encoder and head, in evaluation mode on `device`.
        task: the task's kind, labels and range; without data.
        precision: the precision of its forward passes.
        max_pieces: the longest input.
        input_format: the form in which the encoder gets the texts.
        facts: the contents of `meltpoint.json`: cell, setting, scores, seed.
        device: the device for predictions.
    """

    model: AdaptedModel
    task: Task
    precision: Precision
    max_pieces: int
    input_format: InputFormat
    facts: Mapping[str, Any]
    device: torch.device = CPU

    def __repr__(self) -> str:
        """The cell and the labels; without the layers."""
        labels = ", ".join(self.task.labels[:10]) + (", …" if len(self.task.labels) > 10 else "")
        return (
            f"ExportedModel({self.facts['encoder_family']}, {self.facts['mode']}, {self.facts['head']}, "
            f"{self.task.name}: {labels or self.task.of_kind.words}; on {self.device})"
        )

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels' names, in the order of `predict_proba`'s columns; scikit-learn's name for them."""
        return np.array(self.task.labels)

    def predict(
        self, texts: Sequence[Text], probabilities: bool = False, documents: Sequence[str] | None = None
    ) -> list[Any]:
        """Predict for each text a label name, a list of label names, a score, or a list of one label name per word.

        Args:
            texts: any number of texts; they go through the model in batches of similar length.
            probabilities: for classification, return a mapping from each label's name to its probability instead.
            documents: the document of each sentence, for a model with `context: document`; each is alone without it.

        Raises:
            ValueError: a text does not fit the task's kind, a single string is passed instead of a list, or a model
                that does not classify has no probabilities.
        """
        if probabilities:
            return [dict(zip(self.task.labels, row, strict=True)) for row in self.predict_proba(texts).tolist()]
        result = self._evaluate(texts, documents)
        if not self.task.labels:
            return list(result.predictions)
        return self.named(result.predictions)

    def predict_proba(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """The probability of each label, (texts, labels) float64, in the order of `task.labels`.

        Raises:
            ValueError: as `predict`.
        """
        return self.predict_both(texts)[1]

    def score(self, texts: Sequence[Text], labels: Sequence[str]) -> float:
        """The share of texts whose label is predicted.

        Raises:
            ValueError: as `predict`; also another number of labels, only unknown labels, or a model that does not give
                each text one label.
        """
        if self.task.of_kind.target not in ("label", "grade"):
            raise ValueError(f"score needs a model that gives each text one label, not {self.task.of_kind.words}.")
        if len(texts) != len(labels):
            raise ValueError(f"score needs one label per text, not {len(labels)} labels for {len(texts)} texts.")
        spelled = [_spellings(label) for label in labels]
        if spelled and not any(names & set(self.task.labels) for names in spelled):
            raise ValueError(f"no label is one of the model's: {', '.join(self.task.labels[:10])}.")
        return float(np.mean([found in names for found, names in zip(self.predict(texts), spelled, strict=True)]))

    def predict_both(self, texts: Sequence[Text]) -> tuple[list[Any], NDArray[np.float64]]:
        """The results of `predict` and of `predict_proba`, from one pass.

        Raises:
            ValueError: as `predict_proba`.
        """
        if not self.task.of_kind.gives_probabilities:
            raise ValueError(f"a model for {self.task.of_kind.words} gives no probabilities; use predict.")
        result = self._evaluate(texts)
        shares = np.array(result.probabilities, dtype=np.float64).reshape(len(texts), len(self.task.labels))
        return self.named(result.predictions), shares

    def named(self, predictions: Sequence[Prediction]) -> list[Any]:
        """Predictions of label ids as label names."""
        names = self.task.labels
        if self.task.of_kind.has_labels:
            rows = [p for p in predictions if isinstance(p, list)]  # one number per label
            return [[name for name, has in zip(names, row, strict=True) if has] for row in rows]
        return [[names[i] for i in p] if isinstance(p, list) else names[int(p)] for p in predictions]

    def _evaluate(self, texts: Sequence[Text], documents: Sequence[str] | None = None) -> Evaluation:
        if isinstance(texts, str):
            raise ValueError(f"predict takes a list of texts, not the one text {texts!r}; write predict([...]).")
        if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterating gives its column names
            name = type(texts).__name__
            raise ValueError(
                f"predict takes a list of texts, not a {name}; name a column: predict(list(data['text']))."
            )
        examples = [self._example(index, text) for index, text in enumerate(texts)]
        if documents is not None:
            examples = [replace(one, group=document) for one, document in zip(examples, documents, strict=True)]
        split = encode_split(self.task.kind, examples, self.model.encoder.tokenizer, self.max_pieces, self.input_format)
        (result,) = evaluate(self.model, self.task, split, examples, self.device, self.precision)
        return result

    def _example(self, index: int, text: Text) -> Example:
        kind = self.task.of_kind
        parts = tuple(text) if isinstance(text, list | tuple) and all(isinstance(part, str) for part in text) else None
        if kind.input == "sentence" and isinstance(text, str):
            return Example(str(index), texts=(text,))
        if kind.is_pair and parts is not None and len(parts) == 2:
            return Example(str(index), texts=parts)
        if kind.labels_words and parts is not None:
            return Example(str(index), words=parts)
        wanted = {"sentence": "a string", "words": "a list of words", "pair": "a pair of strings"}
        raise ValueError(f"text {index} is {text!r}; {kind.words} takes {wanted[kind.input]}.")


def _spellings(label: Any) -> set[str | None]:
    """The names of a label in Python and in files: `True` and `true`, `1.0` and `1`."""
    plain = label.item() if hasattr(label, "item") else label
    return {str(plain), scalar_text(plain)}


def save_folder(
    folder: Path, model: AdaptedModel, task: Task, mode: str, head: str, setting: Setting, precision: Precision,
    facts: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write a model to a folder that loads without the sweep, the data or the original encoder."""
    folder.mkdir(parents=True, exist_ok=True)
    model.encoder.save(folder / ENCODER)
    model.encoder.save_lora(folder / ADAPTER)
    weights = {k: v.contiguous().cpu() for k, v in model.state_dict().items() if not k.startswith("encoder.")}
    with replacing(folder / HEAD) as temporary:
        save_file(weights, temporary, {"kind": task.kind, "head": head, "mode": mode})
    document = {
        "kind": task.kind, "task": task.name, "metric": task.metric, "labels": task.labels,
        "label_range": task.label_range, "conll_columns": task.conll_columns, "text_columns": task.text_columns,
        "joiner": task.joiner, "mode": mode, "head": head, "setting": dict(setting),
        "precision": precision, "encoder_family": model.encoder.family, **facts,
    }  # fmt: skip
    (folder / FACTS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load_folder(folder: str | Path, device: str = "cpu") -> ExportedModel:
    """Load an exported model.

    Args:
        device: `cpu`, `cuda` or `cuda:0`.

    Raises:
        ValueError: the folder is not an exported model, or is damaged; or the device is not available. One line
            with the remedy.
    """
    path, place = Path(folder), _device(device)
    try:
        stored = _Stored.model_validate(parse_json(read_bytes(path / FACTS)))
        weights = load_file(path / HEAD)
        _check(stored, path / HEAD)
        mode, head = stored.mode, stored.head
        task = Task(  # enough for predictions, without data
            name=stored.task, kind=stored.kind, metric=stored.metric, folder="", readers={}, labels=stored.labels,
            label_range=stored.label_range, conll_columns=stored.conll_columns, text_columns=stored.text_columns,
            joiner=stored.joiner,
        )  # fmt: skip
        setting = complete(stored.setting, mode, head)
        is_foreign = stored.precision == "bf16" and place.type == "cuda"  # this GPU may lack it
        precision = resolve_precision("auto" if is_foreign else stored.precision, place.type)
    except (OSError, ValueError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split()[:40])}"
        raise ValueError(
            f"{path} is not an exported model ({reason}); write one with `meltpoint export NAME --model`."
        ) from None
    encoder = encoders.load(encoders.resolve(f"{stored.encoder_family}:{(path / ENCODER).absolute()}", task.kind))
    model = build(encoder, task, mode, head, [Member(setting, 0)], "cpu", trains=False)
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items() if not name.startswith("encoder.")}
    if wanted != {name: tensor.shape for name, tensor in weights.items()}:
        raise ValueError(f"{path / HEAD} does not hold the weights of a {head} head for {task.name}; export it again.")
    model.load_state_dict(weights, strict=False)  # the encoder's weights are already loaded
    limit = min(int(setting["max_pieces"]), encoder.max_pieces)
    input_format = input_format_of(setting, heads.get(head).joint_pairs)
    facts = stored.model_dump(mode="json")
    return ExportedModel(model.eval().to(place), task, precision, limit, input_format, facts, place)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown; write cpu, cuda or cuda:0.") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device {name!r} is not available here; write cpu, or see `meltpoint doctor`.")
    return device


def _check(stored: _Stored, weights: Path) -> None:
    """Refuse facts that belong to other weights, or that contradict one another.

    Raises:
        ValueError: another kind, head or mode than the weights were saved with, or a head of another kind.
    """
    with safe_open(weights, "pt") as file:
        saved = file.metadata() or {}  # None in folders of older versions
    for name, value in saved.items():
        if (stated := getattr(stored, name, value)) != value:
            raise ValueError(f"its {name} is {stated}, but its weights are of {value}")
    if stored.kind not in heads.get(stored.head).kinds:
        raise ValueError(f"its head, {stored.head}, does not serve {kinds.get(stored.kind).words}")


class _Stored(BaseModel):
    """The keys of `meltpoint.json` that loading reads, among others; folders of older versions lack the family."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, AfterValidator(lambda name: kinds.get(name).name)]
    task: str
    metric: str
    labels: tuple[str, ...]
    label_range: tuple[FiniteFloat, FiniteFloat] | None
    mode: str
    head: str
    setting: dict[str, Any]
    precision: Literal["auto", "bf16", "fp32"]
    encoder_family: str = "hf"
    conll_columns: tuple[int, int] | None = None
    text_columns: tuple[tuple[str, ...], ...] = ()
    joiner: str = " "
