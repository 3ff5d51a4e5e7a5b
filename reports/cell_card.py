"""The model cards of a cell's best finalist, and of a folder that `train FILE --out FOLDER` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import title
from meltpoint.reports.model_card import EncoderFacts, ModelCard, ScoreRow
from meltpoint.reports.statistics.finals_scores import Split, StoredScores
from meltpoint.reports.statistics.hierarchical_bootstrap import RESAMPLES, MeanInterval, mean_interval, run_interval
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.export import Form
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core import kinds, sources
from meltpoint.tasks.core.scoring import score_text, scores_text
from meltpoint.tasks.core.wording import counted, some

if TYPE_CHECKING:
    from meltpoint.sweeps.worker.retrain import Retrained, TrainedModel


ONLY_THERE = (
    "It was not evaluated on texts of another kind, period or language than the data above, nor for groups of people "
    "in them: no such split was scored."
)


def cell_card(summary: SweepSummary, cell: CellSummary, form: Form) -> str | None:
    """The card of a cell's exported finalist; None if the cell has no finalist to export."""
    final, head = cell.kept, cell.header
    if final is None:
        return None
    stored = StoredScores(summary.folder, RESAMPLES)
    found: dict[Split, MeanInterval] = {}
    for split in ("dev", "test"):
        one = mean_interval(cell, stored, split)
        if one is not None:
            found[split] = one
    word = summary.spec.named_encoder(head.encoder)
    fingerprint = head.encoder_fingerprint or final.encoder_fingerprint
    encoder = EncoderFacts.of(word, head.kind, fingerprint, head.encoder_revision)
    return ModelCard(
        name=cell_name(*head.key), form=form, encoder=encoder, task=head.task, kind=head.kind, metric=head.metric,
        mode=head.mode, head=head.head, origin=_origin(summary, cell, final, encoder),
        scores=[_row(split, one, head.dev_examples, final) for split, one in found.items()],
        score_notes=list(_score_notes(summary, cell, final, found)), data=list(_data(cell, final)),
        setting=final.setting, limits=list(_limits(summary, cell, final, form, found)),
        provenance=list(_provenance(summary, final, encoder)),
    ).text()  # fmt: skip


def _origin(summary: SweepSummary, cell: CellSummary, final: TrialRecord, encoder: EncoderFacts) -> str:
    head, seeds = cell.header, len(cell.finals)
    searched = some(cell.counts["finished"], "finished trial")
    of_seeds = "its only seed" if seeds == 1 else f"the best on dev of {counted(seeds)} seeds of that setting"
    return (
        f"{encoder.title}, adapted to {head.task} ({kinds.get(head.kind).words}) by {title(head.mode)} with the head "
        f"`{head.head}`. The setting is the best of {searched} of the sweep `{summary.name}`; this model is seed "
        f"{final.seed}, {of_seeds}."
    )


def _row(split: Split, one: MeanInterval, dev_examples: int, final: TrialRecord) -> ScoreRow:
    metric = final.metric
    own = final.dev if split == "dev" else (final.test or {}).get(final.metric)
    examples = one.examples if one.examples is not None else dev_examples if split == "dev" else None
    return ScoreRow(split, examples, in_words(one, metric), own)


def in_words(one: MeanInterval, metric: str) -> str:
    """A mean ± deviation with its interval, if they are known."""
    bounds = ""
    if one.low is not None and one.high is not None:
        bounds = f" [{score_text(one.low, metric)}, {score_text(one.high, metric)}]"
    return f"{scores_text(one.mean, one.std, metric)}{bounds}"


def _score_notes(
    summary: SweepSummary, cell: CellSummary, final: TrialRecord, found: dict[Split, MeanInterval]
) -> Iterator[str]:
    if any(one.low is not None for one in found.values()):
        covered = next(one.covers for one in found.values() if one.low is not None)
        yield f"The interval covers {covered}; ± is the standard deviation over seeds."
    yield from (f"No interval on {split}: {one.reason}." for split, one in found.items() if one.low is None)
    opened = " Test was opened afterwards, once per finalist." if final.test_fingerprint else " Nothing else is scored."
    yield f"Setting, epoch and seed were chosen on dev, so the dev score is optimistic.{opened}"
    for split, scores in (("dev", final.dev_metrics), ("test", final.test or {})):
        others = [f"{name} {score_text(value, name)}" for name, value in scores.items() if name != final.metric]
        if others:
            yield f"Other metrics of this model on {split}: {', '.join(others)}."
    baseline = summary.baselines.get(cell.header.task)
    if baseline is not None and baseline.metric == cell.header.metric:
        name, score = baseline.best
        yield f"Baseline on dev: {name} {score_text(score, baseline.metric)}."


def _data(cell: CellSummary, final: TrialRecord) -> Iterator[str]:
    head = cell.header
    yield f"Task `{head.task}`, {kinds.get(head.kind).words}."
    sizes = f"{some(head.train_examples, 'training example')}, {some(head.dev_examples, 'dev example')}"
    yield f"{sizes}; fingerprint of both `{head.data_fingerprint}`."
    if final.test_fingerprint:
        yield f"Fingerprint of test `{final.test_fingerprint}`."
    if head.documents_fingerprint:
        yield f"Sentences are read within their documents; fingerprint `{head.documents_fingerprint}`."
    yield from (f"{note}." for note in head.notes)


def _limits(
    summary: SweepSummary, cell: CellSummary, final: TrialRecord, form: Form, found: dict[Split, MeanInterval]
) -> Iterator[str]:  # fmt: skip
    yield ONLY_THERE
    if "test" not in found:
        yield "It has no score on test: the labels are hidden, or test was not scored."
    yield length_limit(final.setting)
    yield from (f"{note}." for note in dict.fromkeys(final.input_notes))
    yield from (f"Warning: {guard.text}." for guard in cell_guards(cell, summary.baselines.get(cell.header.task)))
    precision = final.hardware.precision if final.hardware is not None else "fp32"
    yield from precision_limit(form, precision)


def length_limit(setting: Mapping[str, Value]) -> str:
    """The line on the maximum input length."""
    pieces = setting.get("max_pieces")
    limit = "the encoder's maximum length" if pieces is None else f"{pieces} subword tokens"
    return f"Inputs longer than {limit}, including special tokens, are truncated."


def precision_limit(form: Form, precision: str) -> Iterator[str]:
    """The line on a precision other than the scored one."""
    if form != "model" and precision != "fp32":
        yield f"It was trained and scored in {precision}; this folder is float32, so scores differ in the last digits."


def _provenance(summary: SweepSummary, final: TrialRecord, encoder: EncoderFacts) -> Iterator[str]:
    yield f"Sweep `{summary.name}`, trial `{final.id}`, seed {final.seed}, epoch {final.best_epoch}."
    name = encoder.revision or encoder.title
    yield f"Encoder {name}, fingerprint of its files `{encoder.fingerprint or 'not recorded'}`."
    if final.hardware is not None:
        threads = some(final.hardware.threads, "thread")
        yield f"Trained on {final.hardware.name} ({final.hardware.device}, {threads}, {final.hardware.precision})."
    yield f"Code: meltpoint {final.code_version}."


def trained_card(done: Retrained, form: Form) -> str:
    """The card of one training run, with its interval over the examples; the sweep's own scores as recorded."""
    model, order = done.model, done.model.order
    encoder = EncoderFacts.of(order.located_encoder, model.kind, order.encoder_fingerprint)
    own: dict[Split, float | None] = {"dev": done.dev, "test": done.test}
    scores: dict[Split, float] = {split: score for split, score in own.items() if score is not None}
    found = {
        split: run_interval(done.predictions[split], done.metric, score, f"{order.task} {split}")
        for split, score in scores.items() if split in done.predictions
    }  # fmt: skip
    rows = [
        ScoreRow(split, one.examples, in_words(one, done.metric), scores[split]) for split, one in found.items()
    ]  # fmt: skip
    return ModelCard(
        name=cell_name(*order.cell), form=form, encoder=encoder, task=order.task, kind=model.kind,
        metric=done.metric, mode=order.mode, head=order.head, origin=_run_origin(done, encoder), scores=rows,
        score_notes=list(_run_score_notes(done, found)), data=list(_run_data(model)), setting=done.setting,
        limits=[ONLY_THERE, *_run_limits(done, form)], provenance=list(_run_provenance(done, encoder)),
    ).text()  # fmt: skip


def _run_origin(done: Retrained, encoder: EncoderFacts) -> str:
    order, sweep = done.model.order, done.model.provenance.get("sweep")
    found = f", found by the sweep `{sweep}`" if sweep else ""
    kind = kinds.get(done.model.kind).words
    return (
        f"{encoder.title}, adapted to {order.task} ({kind}) by {title(order.mode)} with the head `{order.head}`: one "
        f"training run, seed {done.seed}, of a setting{found}."
    )


def _recorded(facts: Mapping[str, Any], metric: str) -> Iterator[str]:
    """The mean ± deviation of the sweep's finals of the setting, for each split that has them."""
    for split in ("dev", "test"):
        mean, std = facts.get(f"{split}_mean"), facts.get(f"{split}_std")
        if mean is not None:
            yield f"{split} {scores_text(mean, std, metric)}"


def _run_score_notes(done: Retrained, found: Mapping[Split, MeanInterval]) -> Iterator[str]:
    if any(one.low is not None for one in found.values()):
        yield "The interval covers examples but not seeds, since this is one run; a sweep's finalist has both."
    yield from (f"No interval on {split}: {one.reason}." for split, one in found.items() if one.low is None)
    finals = done.model.provenance.get("finals") or []
    if finals:
        recorded = ", ".join(_recorded(done.model.provenance, done.metric))
        seeds = some(len(finals), "seed")
        yield f"The sweep's {seeds} of this setting, mean ± standard deviation as recorded: {recorded}."
    yield done.comparison()
    yield "Setting and epoch were chosen on dev, so the dev score is optimistic."


def _run_data(model: TrainedModel) -> Iterator[str]:
    yield f"Task `{model.order.task}`, {kinds.get(model.kind).words}."
    sizes = f"{some(model.train_examples, 'training example')}, {some(model.dev_examples, 'dev example')}"
    yield f"{sizes}; fingerprint of both `{model.order.data_fingerprint}`."
    yield from (f"{note}." for note in (model.provenance.get("data") or {}).get("notes") or ())


def _run_limits(done: Retrained, form: Form) -> Iterator[str]:
    if done.test is None:
        state = sources.check(done.model.order.data)
        remedy = {"absent": "there is none", "hidden": "the labels are hidden"}
        yield f"It has no score on test: {remedy.get(state, '`meltpoint train FILE --test` opens it')}."
    yield length_limit(done.setting)
    yield from (f"{note}." for note in done.model.input_notes)
    yield from precision_limit(form, done.model.precision)


def _run_provenance(done: Retrained, encoder: EncoderFacts) -> Iterator[str]:
    facts = done.model.provenance
    if facts.get("sweep"):
        yield f"Setting of the sweep `{facts['sweep']}`, trial `{facts.get('trial')}`."
    yield f"Encoder {encoder.title}, fingerprint of its files `{encoder.fingerprint}`."
    yield f"Code: meltpoint {done.model.code}."
