"""The model card of a cell's exported finalist, in the hub's format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from meltpoint.adapters import encoders
from meltpoint.reports.formats import markdown_text, title
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import NOTHING, spread_text
from meltpoint.sweeps.results.export import Form
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import CALIBRATION
from meltpoint.tasks.core.scoring import axis_name, score_text
from meltpoint.tasks.core.task import Kind
from meltpoint.tasks.core.wording import counted, some

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

UNKNOWN = "unknown"
"""The hub's identifier for an unknown licence."""
HUB_METRICS = {
    "matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr", "span_f1": "seqeval",
    "macro_f1": "f1", "micro_f1": "f1", "weighted_f1": "f1", "word_accuracy": "accuracy",
}  # fmt: skip
"""Metric → its name on the hub, if different."""
SPLIT_NAMES = {"dev": "validation", "test": "test"}

ONLY_THERE = (
    "It was not evaluated on texts of another kind, period or language than the data above, nor for groups of people "
    "in them: no such split was scored."
)


def usage(form: Form, kind: Kind, pipeline: str) -> str:
    """A block of Python that loads the folder and predicts."""
    given = kinds.get(kind)
    if form == "model":
        code = ["import meltpoint as mp", "", 'model = mp.load_model("FOLDER")']
        code += [f"model.predict([{TEXTS[given.input]}])"]
        code += [f"model.predict_proba([{TEXTS[given.input]}])"] if given.gives_probabilities else []
    elif form == "transformers":
        words = ', aggregation_strategy="first"' if given.labels_words else ""  # the model was trained on first pieces
        code = ["from transformers import pipeline", "", f'predict = pipeline("{pipeline}", "FOLDER"{words})']
        code += [f"predict({PIPED[given.input]})"]
    else:
        code = [
            "import onnxruntime", "import transformers", "",
            'tokenizer = transformers.AutoTokenizer.from_pretrained("FOLDER")',
            'session = onnxruntime.InferenceSession("FOLDER/model.onnx")',
            f'inputs = tokenizer({TOKENISED[given.input]}, padding=True, truncation=True, return_tensors="np")',
            '(logits,) = session.run(["logits"], dict(inputs))',
        ]  # fmt: skip
    return "\n".join(["```python", *code, "```"])


@dataclass(frozen=True)
class EncoderFacts:
    """The encoder of a model, as its card names it; never a path on this machine.

    Attributes:
        title: its id on the hub, its name, or the name of its folder.
        hub_id: its id on the hub; None if unknown.
        licence: as its own model card states it; None if it states none, or if its files are gone.
    """

    title: str
    hub_id: str | None = None
    licence: str | None = None

    @classmethod
    def of(cls, word: str, kind: Kind) -> EncoderFacts:
        """The facts of an encoder, given as on the command line."""
        try:
            reference = encoders.resolve(word, kind)
            licence = encoders.stated_licence(reference)
        except ValueError:
            family, _, source = word.rpartition("=")[2].partition(":")
            return cls(Path(source).name or family)
        return cls(reference.hub_id or Path(reference.source).name, reference.hub_id, licence)


@dataclass(frozen=True)
class _Card:
    """The parts of a card.

    Attributes:
        final: the exported finalist.
    """

    summary: SweepSummary
    cell: CellSummary
    form: Form
    final: TrialRecord
    encoder: EncoderFacts

    @property
    def own(self) -> dict[str, float]:
        """Split → the score of the model in the folder, if it has one."""
        scores = {"dev": self.final.dev, "test": (self.final.test or {}).get(self.final.metric)}
        return {split: score for split, score in scores.items() if score is not None}

    def text(self) -> str:
        """The `README.md`."""
        head = self.cell.header
        pipeline = "token-classification" if kinds.get(head.kind).labels_words else "text-classification"
        setting = yaml.safe_dump(dict(self.final.setting), sort_keys=False, allow_unicode=True).rstrip()
        parts = [
            f"---\n{self._front_matter(pipeline)}\n---",
            f"# {markdown_text(cell_name(*head.key))}", markdown_text(self._origin()),
            f"## Use\n\n{usage(self.form, head.kind, pipeline)}",
            f"## Scores\n\n{axis_name(head.metric)}:", "\n".join(self._score_rows()), _bullets(self._score_notes()),
            f"## Data\n\n{_bullets(self._data())}", f"## Setting\n\n```yaml\n{setting}\n```",
            f"## Limits\n\n{_bullets(self._limits())}", f"## Licence\n\n{_bullets(self._licence())}",
            f"## Provenance\n\n{_bullets(self._provenance())}",
        ]  # fmt: skip
        return "\n\n".join(parts) + "\n"

    def _front_matter(self, pipeline: str) -> str:
        from huggingface_hub import EvalResult, ModelCardData  # slow to import

        head = self.cell.header
        name = HUB_METRICS.get(head.metric.partition(".")[0], head.metric.partition(".")[0])
        results = [
            EvalResult(
                task_type=pipeline, dataset_type=head.task, dataset_name=head.task, dataset_split=SPLIT_NAMES[split],
                metric_type=name, metric_value=score, metric_name=head.metric,
            )
            for split, score in self.own.items()
        ]  # fmt: skip
        data = ModelCardData(
            license=self.encoder.licence or UNKNOWN, base_model=self.encoder.hub_id, library_name=LIBRARY[self.form],
            pipeline_tag=pipeline, tags=["meltpoint", head.mode, head.head], metrics=[name],
            model_name=cell_name(*head.key) if results else None, eval_results=results or None,
        )  # fmt: skip
        return data.to_yaml()

    def _origin(self) -> str:
        head, seeds = self.cell.header, len(self.cell.finals)
        searched = some(self.cell.counts["finished"], "finished trial")
        of_seeds = "its only seed" if seeds == 1 else f"the best on dev of {counted(seeds)} seeds of that setting"
        return (
            f"{self.encoder.title}, adapted to {head.task} ({kinds.get(head.kind).words}) by {title(head.mode)} with "
            f"the head `{head.head}`. The setting is the best of {searched} of the sweep `{self.summary.name}`; this "
            f"model is seed {self.final.seed}, {of_seeds}."
        )

    def _score_rows(self) -> Iterator[str]:
        metric = self.final.metric
        yield "| split | mean over seeds | this model |\n| --- | ---: | ---: |"
        for split, over in (("dev", self.cell.dev), ("test", self.cell.test)):
            if over is not None:
                own = score_text(self.own[split], metric) if split in self.own else NOTHING
                yield f"| {split} | {spread_text(over, metric)} | {own} |"

    def _score_notes(self) -> Iterator[str]:
        final = self.final
        yield f"± is the standard deviation over {some(len(self.cell.finals), 'seed')}."
        opened = "Test was opened after that, once." if final.test_fingerprint else "Nothing else is scored."
        yield f"Setting, epoch and seed were chosen on dev, so the dev score is optimistic. {opened}"
        for split, scores in (("dev", final.dev_metrics), ("test", final.test or {})):
            others = [f"{name} {score_text(value, name)}" for name, value in scores.items() if name != final.metric]
            if others:
                yield f"Other metrics of this model on {split}: {', '.join(others)}."
        errors = [epoch.dev.get(CALIBRATION) for epoch in final.epochs if epoch.epoch in (1, final.best_epoch)]
        if len(errors) == 2 and None not in errors:
            before, after = (score_text(error, CALIBRATION) for error in errors if error is not None)
            yield f"Expected calibration error on dev: {before} after the first epoch, {after} at the kept one."
        baseline = self.summary.baselines.get(final.task)
        if baseline is not None and baseline.metric == final.metric:
            name, score = baseline.best
            yield f"Baseline on dev: {name} {score_text(score, baseline.metric)}."

    def _data(self) -> Iterator[str]:
        head = self.cell.header
        yield f"Task `{head.task}`, {kinds.get(head.kind).words}."
        sizes = f"{some(head.train_examples, 'training example')}, {some(head.dev_examples, 'dev example')}"
        yield f"{sizes}; fingerprint of both `{head.data_fingerprint}`."
        if self.final.test_fingerprint:
            yield f"Fingerprint of test `{self.final.test_fingerprint}`."
        if head.documents_fingerprint:
            yield f"Sentences are read within their documents; fingerprint `{head.documents_fingerprint}`."
        yield from (f"{note}." for note in head.notes)

    def _limits(self) -> Iterator[str]:
        final = self.final
        yield ONLY_THERE
        if self.cell.test is None:
            yield "It has no score on test: the labels are hidden, or test was not scored."
        pieces = final.setting.get("max_pieces")
        limit = "the encoder's maximum length" if pieces is None else f"{pieces} subword tokens"
        yield f"Inputs longer than {limit}, including special tokens, are truncated."
        yield from (f"{note}." for note in dict.fromkeys(final.input_notes))
        baseline = self.summary.baselines.get(final.task)
        yield from (f"Warning: {guard.text}." for guard in cell_guards(self.cell, baseline))
        precision = final.hardware.precision if final.hardware is not None else "fp32"
        if self.form != "model" and precision != "fp32":
            yield f"It was scored in {precision}; this folder is float32, so scores differ in the last digits."

    def _licence(self) -> Iterator[str]:
        stated = self.encoder.licence
        source = f"`{stated}`, as its own model card states" if stated else "not stated by the encoder's files"
        yield f"The encoder's licence ({self.encoder.title}): {source}."
        yield "These weights were trained on the data named above, whose terms are unknown here and may bind them too."

    def _provenance(self) -> Iterator[str]:
        final = self.final
        fingerprint = self.cell.header.encoder_fingerprint or final.encoder_fingerprint or "not recorded"
        yield f"Sweep `{self.summary.name}`, trial `{final.id}`, seed {final.seed}, epoch {final.best_epoch}."
        name = self.cell.header.encoder_revision or self.encoder.title
        yield f"Encoder {name}, fingerprint of its files `{fingerprint}`."
        if final.hardware is not None:
            threads = some(final.hardware.threads, "thread")
            yield f"Trained on {final.hardware.name} ({final.hardware.device}, {threads}, {final.hardware.precision})."
        yield f"Code: meltpoint {final.code_version}."


def cell_card(summary: SweepSummary, cell: CellSummary, form: Form) -> str | None:
    """The card of a cell's exported finalist; None if the cell has no finalist to export."""
    if cell.kept is None:
        return None
    encoder = EncoderFacts.of(summary.spec.named_encoder(cell.header.encoder), cell.header.kind)
    return _Card(summary, cell, form, cell.kept, encoder).text()


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(line)}" for line in lines)
