"""The model card of a folder that `train FILE --out FOLDER` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from meltpoint.reports.cards.card import EncoderFacts, ModelCard, ScoreRow
from meltpoint.reports.cards.cell_card import ONLY_THERE, in_words, length_limit, precision_limit
from meltpoint.reports.formats import title
from meltpoint.reports.statistics.finals_scores import Split
from meltpoint.reports.statistics.mean_interval import MeanInterval, run_interval
from meltpoint.sweeps.results.export import Form
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core import kinds, sources
from meltpoint.tasks.core.scoring import scores_text
from meltpoint.tasks.core.wording import some

if TYPE_CHECKING:  # it imports torch
    from meltpoint.sweeps.worker.retrain import Retrained, TrainedModel


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
        metric=done.metric, mode=order.mode, head=order.head, origin=_origin(done, encoder), scores=rows,
        score_notes=list(_score_notes(done, found)), data=list(_data(model)), setting=done.setting,
        limits=[ONLY_THERE, *_limits(done, form)], provenance=list(_provenance(done, encoder)),
    ).text()  # fmt: skip


def _origin(done: Retrained, encoder: EncoderFacts) -> str:
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


def _score_notes(done: Retrained, found: Mapping[Split, MeanInterval]) -> Iterator[str]:
    if any(one.low is not None for one in found.values()):
        yield "The interval covers examples alone: one run says nothing of other seeds; a sweep's finalist has both."
    yield from (f"No interval on {split}: {one.reason}." for split, one in found.items() if one.low is None)
    finals = done.model.provenance.get("finals") or []
    if finals:
        recorded = ", ".join(_recorded(done.model.provenance, done.metric))
        seeds = some(len(finals), "seed")
        yield f"The sweep's {seeds} of this setting, mean ± standard deviation as recorded: {recorded}."
    yield done.comparison()
    yield "Dev chose setting and epoch, so that its score is too good."


def _data(model: TrainedModel) -> Iterator[str]:
    yield f"Task `{model.order.task}`, {kinds.get(model.kind).words}."
    sizes = f"{some(model.train_examples, 'training example')}, {some(model.dev_examples, 'dev example')}"
    yield f"{sizes}; fingerprint of both `{model.order.data_fingerprint}`."
    yield from (f"{note}." for note in (model.provenance.get("data") or {}).get("notes") or ())


def _limits(done: Retrained, form: Form) -> Iterator[str]:
    if done.test is None:
        state = sources.check(done.model.order.data)
        remedy = {"absent": "there is none", "hidden": "the labels are hidden"}
        yield f"It has no score on test: {remedy.get(state, '`meltpoint train FILE --test` opens it')}."
    yield length_limit(done.setting)
    yield from (f"{note}." for note in done.model.input_notes)
    yield from precision_limit(form, done.model.precision)


def _provenance(done: Retrained, encoder: EncoderFacts) -> Iterator[str]:
    facts = done.model.provenance
    if facts.get("sweep"):
        yield f"Setting of the sweep `{facts['sweep']}`, trial `{facts.get('trial')}`."
    yield f"Encoder {encoder.title}, fingerprint of its files `{encoder.fingerprint}`."
    yield f"Code: meltpoint {done.model.code}."
