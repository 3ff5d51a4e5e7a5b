"""Model cards in the hub's format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from meltpoint.adapters import encoders
from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import markdown_text
from meltpoint.sweeps.results.cost import NOTHING
from meltpoint.sweeps.results.export import Form
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.scoring import axis_name, score_text
from meltpoint.tasks.core.task import Kind

LIBRARY: dict[Form, str] = {"model": "meltpoint", "transformers": "transformers", "onnx": "onnx"}
"""Form → `library_name` of the front matter."""

TEXTS = {
    "sentence": '"the soup was cold"', "pair": '("A man eats.", "Someone eats.")',
    "words": '["Anna", "Berg", "lives", "in", "Oslo"]',
}  # fmt: skip
TOKENISED = {
    "sentence": '["the soup was cold"]', "pair": '["A man eats."], ["Someone eats."]',
    "words": '[["Anna", "Berg", "lives", "in", "Oslo"]], is_split_into_words=True',
}  # fmt: skip
PIPED = {
    "sentence": '"the soup was cold"', "pair": '{"text": "A man eats.", "text_pair": "Someone eats."}',
    "words": '"Anna Berg lives in Oslo"',
}  # fmt: skip


def usage(form: Form, kind: Kind, pipeline: str) -> str:
    """A block of Python that loads the folder and predicts."""
    given = kinds.get(kind)
    if form == "model":
        code = [
            "import meltpoint as mp",
            "",
            'model = mp.load_model("FOLDER")',
            f"model.predict([{TEXTS[given.input]}])",
        ]
        code += [f"model.predict_proba([{TEXTS[given.input]}])"] if given.gives_probabilities else []
        return _block(code)
    if form == "transformers":
        words = ', aggregation_strategy="first"' if given.labels_words else ""  # the model was trained on first pieces
        code = ["from transformers import pipeline", "", f'predict = pipeline("{pipeline}", "FOLDER"{words})']
        return _block([*code, f"predict({PIPED[given.input]})"])
    code = [
        "import onnxruntime", "import transformers", "",
        'tokenizer = transformers.AutoTokenizer.from_pretrained("FOLDER")',
        'session = onnxruntime.InferenceSession("FOLDER/model.onnx")',
        f'inputs = tokenizer({TOKENISED[given.input]}, padding=True, truncation=True, return_tensors="np")',
        '(logits,) = session.run(["logits"], dict(inputs))',
    ]  # fmt: skip
    return _block(code)


def _block(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```"])


NOT_STATED = "not stated by the encoder's files"
UNKNOWN = "unknown"
"""The hub's identifier for an unknown licence."""

HUB_METRICS = {
    "matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr", "span_f1": "seqeval",
    "macro_f1": "f1", "micro_f1": "f1", "weighted_f1": "f1", "word_accuracy": "accuracy",
}  # fmt: skip
"""Metric → its name on the hub, if different."""

SPLIT_NAMES = {"dev": "validation", "test": "test"}


@dataclass(frozen=True)
class EncoderFacts:
    """The encoder of a model, as its card names it; never a path on this machine.

    Attributes:
        title: its id on the hub, its name, or the name of its folder.
        hub_id: its id on the hub; None if unknown.
        licence: as its own model card states it; None if it states none.
        fingerprint: of its files.
        revision: its `ID@COMMIT`; "" for a folder, or if it was not recorded.
    """

    title: str
    hub_id: str | None
    licence: str | None
    fingerprint: str
    revision: str = ""

    @classmethod
    def of(cls, word: str, kind: Kind, fingerprint: str, revision: str = "") -> EncoderFacts:
        """The facts of an encoder, given as on the command line; without a licence if its files are gone."""
        try:
            reference = encoders.resolve(word, kind)
            licence = encoders.stated_licence(reference)
        except ValueError:
            family, _, source = word.rpartition("=")[2].partition(":")
            return cls(Path(source).name or family, None, None, fingerprint, revision)
        title = reference.hub_id or Path(reference.source).name
        return cls(title, reference.hub_id, licence, fingerprint, revision)


@dataclass(frozen=True)
class ScoreRow:
    """A row of the table of scores; fractions.

    Attributes:
        split: dev or test.
        examples: number of examples in the split; None if not counted.
        over_seeds: mean, deviation and interval as text.
        own: the score of the model in the folder; None if it has none.
    """

    split: Literal["dev", "test"]
    examples: int | None
    over_seeds: str
    own: float | None


@dataclass(frozen=True)
class ModelCard:
    """The contents of a card.

    Attributes:
        name: of the model, the same as its cell's.
        form: of the folder.
        encoder: the adapted encoder.
        task, kind, metric, mode, head: the cell.
        origin: sentences on the origin of the model.
        scores: one row per split.
        score_notes: notes on the scores, a line each.
        data: of the task, a line each.
        setting: the complete setting.
        limits: a line each.
        provenance: a line each.
    """

    name: str
    form: Form
    encoder: EncoderFacts
    task: str
    kind: Kind
    metric: str
    mode: str
    head: str
    origin: str
    scores: Sequence[ScoreRow]
    score_notes: Sequence[str]
    data: Sequence[str]
    setting: Mapping[str, Value]
    limits: Sequence[str]
    provenance: Sequence[str]

    def text(self) -> str:
        """The `README.md`."""
        body = "\n".join(self._body()).rstrip()
        return f"---\n{self._front_matter()}\n---\n\n{body}\n"

    @property
    def pipeline(self) -> str:
        """The transformers pipeline for the kind of task; regression also uses text classification."""
        return "token-classification" if kinds.get(self.kind).labels_words else "text-classification"

    def _front_matter(self) -> str:
        from huggingface_hub import EvalResult, ModelCardData  # slow to import

        name = HUB_METRICS.get(self.metric.partition(".")[0], self.metric.partition(".")[0])
        results = [
            EvalResult(
                task_type=self.pipeline, dataset_type=self.task, dataset_name=self.task,
                dataset_split=SPLIT_NAMES[row.split], metric_type=name, metric_value=row.own, metric_name=self.metric,
            )
            for row in self.scores if row.own is not None
        ]  # fmt: skip
        data = ModelCardData(
            license=self.encoder.licence or UNKNOWN, base_model=self.encoder.hub_id, library_name=LIBRARY[self.form],
            pipeline_tag=self.pipeline, tags=["meltpoint", self.mode, self.head], metrics=[name],
            model_name=self.name if results else None, eval_results=results or None,
        )  # fmt: skip
        return data.to_yaml()

    def _body(self) -> Iterator[str]:
        yield f"# {markdown_text(self.name)}\n"
        yield f"{markdown_text(self.origin)}\n"
        yield f"## Use\n\n{usage(self.form, self.kind, self.pipeline)}\n"
        yield from self._score_lines()
        yield from _section("Data", self.data)
        setting = yaml.safe_dump(dict(self.setting), sort_keys=False, allow_unicode=True).rstrip()
        yield f"## Setting\n\n```yaml\n{setting}\n```\n"
        yield from _section("Limits", self.limits)
        yield from _section("Licence", self._licence())
        yield from _section("Provenance", self.provenance)

    def _score_lines(self) -> Iterator[str]:
        yield f"## Scores\n\n{axis_name(self.metric)}:\n"
        yield "| split | examples | mean over seeds, 95 % interval | this model |\n| --- | ---: | ---: | ---: |"
        for row in self.scores:
            examples = NOTHING if row.examples is None else str(row.examples)
            own = NOTHING if row.own is None else score_text(row.own, self.metric)
            yield f"| {row.split} | {examples} | {row.over_seeds} | {own} |"
        yield ""
        yield from (f"- {markdown_text(line)}" for line in self.score_notes)
        yield ""

    def _licence(self) -> list[str]:
        stated = self.encoder.licence
        source = NOT_STATED if stated is None else f"`{stated}`, as the encoder's own model card states"
        return [
            f"The encoder's licence ({self.encoder.title}): {source}.",
            "These weights were trained on the data named above, whose terms are unknown here and may bind them too.",
        ]  # fmt: skip


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"## {title}\n"
    yield from (f"- {markdown_text(line)}" for line in lines)
    yield ""
