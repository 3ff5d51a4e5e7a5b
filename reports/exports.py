"""The folders of exported finalists, each with a model card in the hub's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from meltpoint.adapters import encoders
from meltpoint.reports.formats import markdown_text, title
from meltpoint.reports.recommendation import Recommendation
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.cost import spread_text
from meltpoint.sweeps.results.export import KEPT, Form, export_finalist
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.metrics import CALIBRATION
from meltpoint.tasks.core.scoring import axis_name, score_text
from meltpoint.tasks.core.task import Kind
from meltpoint.tasks.core.wording import some

LIBRARY: dict[Form, str] = {"model": "meltpoint", "transformers": "transformers", "onnx": "onnx"}
"""Form → `library_name` of the front matter."""

UNKNOWN = "unknown"
"""The hub's identifier for an unknown licence."""
HUB_METRICS = {
    "matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr", "span_f1": "seqeval",
    "macro_f1": "f1", "micro_f1": "f1", "weighted_f1": "f1", "word_accuracy": "accuracy",
}  # fmt: skip
"""Metric → its name on the hub, if different."""
SPLIT_NAMES = {"dev": "validation", "test": "test"}


def usage(form: Form, kind: Kind, pipeline: str) -> str:
    """A block of Python that loads the folder and predicts."""
    return _template("model_use.md.jinja").render(form=form, kind=kinds.get(kind), pipeline=pipeline)


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


def cell_card(summary: SweepSummary, cell: CellSummary, form: Form) -> str | None:
    """The card of a cell's exported finalist; None if the cell has no finalist to export."""
    final, head = cell.kept, cell.header
    if final is None:
        return None
    encoder = EncoderFacts.of(summary.spec.named_encoder(head.encoder), head.kind)
    kind, metric = kinds.get(head.kind), final.metric
    pipeline = "token-classification" if kind.labels_words else "text-classification"
    scores = {"dev": final.dev_metrics, "test": final.test or {}}
    recorded = {"dev": final.dev, "test": scores["test"].get(metric)}
    own = {split: score for split, score in recorded.items() if score is not None}
    errors = [epoch.dev.get(CALIBRATION) for epoch in final.epochs if epoch.epoch in (1, final.best_epoch)]
    errors = errors if len(errors) == 2 and None not in errors else []
    known = summary.baselines.get(final.task)
    setting = yaml.safe_dump(dict(final.setting), sort_keys=False, allow_unicode=True).rstrip()
    return _template("model_card.md.jinja").render(
        front_matter=Markup(_front_matter(cell, form, encoder, pipeline, own)),
        usage=Markup(usage(form, head.kind, pipeline)), setting=Markup(setting), name=cell_name(*head.key),
        sweep=summary.name, cell=cell, head=head, final=final, form=form, kind=kind, encoder=encoder, metric=metric,
        axis=axis_name(metric), own=own, scores=scores, errors=errors,
        calibration=CALIBRATION, baseline=known.best if known is not None and known.metric == metric else None,
        pieces=final.setting.get("max_pieces"), warnings=[guard.text for guard in cell_guards(cell, known)],
        precision=final.hardware.precision if final.hardware else "fp32",
    )  # fmt: skip


def _front_matter(
    cell: CellSummary, form: Form, encoder: EncoderFacts, pipeline: str, scores: Mapping[str, float]
) -> str:  # fmt: skip
    """The hub's metadata; the scores are those of the model in the folder."""
    from huggingface_hub import EvalResult, ModelCardData  # slow to import

    head = cell.header
    plain = head.metric.partition(".")[0]
    name = HUB_METRICS.get(plain, plain)
    results = [
        EvalResult(
            task_type=pipeline, dataset_type=head.task, dataset_name=head.task, dataset_split=SPLIT_NAMES[split],
            metric_type=name, metric_value=score, metric_name=head.metric,
        )
        for split, score in scores.items()
    ]  # fmt: skip
    data = ModelCardData(
        license=encoder.licence or UNKNOWN, base_model=encoder.hub_id, library_name=LIBRARY[form],
        pipeline_tag=pipeline, tags=["meltpoint", head.mode, head.head], metrics=[name],
        model_name=cell_name(*head.key) if results else None, eval_results=results or None,
    )  # fmt: skip
    return data.to_yaml()


@cache
def _template(name: str) -> Template:
    """A template; each of its values is written as text of Markdown, except for `Markup`."""
    made = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else markdown_text(str(value)),
    )  # fmt: skip
    made.filters |= {"score": score_text, "spread": spread_text, "some": some, "title": title}
    return made.from_string(files("meltpoint.reports").joinpath(name).read_text(encoding="utf-8"))


def export_recommended(ledger: Ledger, known: Recommendation, summary: SweepSummary) -> StoragePath:
    """Write the recommended finalist of a task into the sweep's folder, where `predict NAME` finds it.

    Raises:
        ValueError: its weights were deleted or are damaged.
    """
    cell = known.winner.cell
    card = cell_card(summary, cell, "model")
    return export_finalist(ledger, summary, cell_name(*cell.header.key), ledger.folder, card=card, name=KEPT)


def export_finalists(
    ledger: Ledger, summary: SweepSummary, out: StoragePath, only: str | None, forms: Sequence[Form],
    tell: Callable[[StoragePath], None],
) -> None:  # fmt: skip
    """Write the best finalist of each cell, or of one cell, in the given forms.

    Args:
        only: one cell's name (E.M.T), or None for all.
        tell: called with each folder once it is written.

    Raises:
        ValueError: a finalist cannot be written; the others are still written.
    """
    cells = {cell_name(*cell.header.key): cell for cell in summary.cells}
    refused = []
    for form in forms:
        for name, cell in cells.items():
            if only not in (None, name):
                continue
            try:
                tell(export_finalist(ledger, summary, name, out, form, cell_card(summary, cell, form)))
            except ValueError as error:
                refused.append(str(error))
    if refused:
        raise ValueError(" ".join(refused))
