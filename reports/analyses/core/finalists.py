"""Finals with weights, restored for analyses; and the orders to train a sweep's settings again."""

from __future__ import annotations

from dataclasses import replace

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.reports.analyses.core.analysis import AnalysisOptions
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.export import order_of
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.worker.finalist_scoring import best_epoch_is_frozen, restore
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.sweeps.worker.worker import WEIGHTS


def needed_finalist(options: AnalysisOptions, cell: CellSummary) -> TrialRecord:
    """The cell's final with stored weights.

    Raises:
        ValueError: there is none.
    """
    assert options.ledger is not None, "a sweep has a folder"
    final = cell.kept
    if final is None or not (options.ledger.checkpoint(final.id) / WEIGHTS).exists():
        name = cell_name(*cell.header.key)
        raise ValueError(f"Cell '{name}' has no finalist with weights; finish the sweep, or leave its task out.")
    return final


def order_for(options: AnalysisOptions, record: TrialRecord) -> Order:
    """The order of a finished trial of the sweep, with its data where they lie now; their fingerprint is checked."""
    assert options.sweep is not None, "records are of a sweep"
    assert options.ledger is not None, "a sweep has a folder"
    order = order_of(options.sweep.spec, record, options.ledger)
    if options.data_dir is not None:
        order = order.model_copy(update={"data": replace(order.data, data_dir=options.data_dir)})
    return order


def train_score(options: AnalysisOptions, final: TrialRecord, most_examples: int) -> tuple[float, int]:
    """(the task's metric of a final's weights on training examples, the number of these).

    Args:
        most_examples: evenly spaced ones, where train has more.

    Raises:
        ValueError: the data or the encoder are missing, or others than the final was trained on.
    """
    trainer = restore([order_for(options, final)])
    if trainer.trains_encoder:  # as the score on dev was made
        trainer.model.freeze_encoder(best_epoch_is_frozen(final))
    chosen = spaced(trainer.data.train.examples, most_examples)
    examples = [trainer.data.train_examples[place] for place in chosen]
    (found,) = trainer.evaluate(part_of(trainer.data.train, chosen), examples)
    return found.metrics[final.metric], len(chosen)


def spaced(count: int, most: int) -> list[int]:
    """At most so many of the places 0 … count − 1, evenly spaced."""
    return list(range(count)) if count <= most else [place * count // most for place in range(most)]


def part_of(split: EncodedSplit, chosen: list[int]) -> EncodedSplit:
    """Some examples of a tokenised split, in the order given; each keeps its own input, document context too."""
    places = {example: place for place, example in enumerate(chosen)}
    rows = [replace(row, example=places[row.example]) for row in split.rows if row.example in places]
    counts = [split.word_counts[example] for example in chosen] if split.word_counts else []
    return replace(split, rows=rows, examples=len(chosen), word_counts=counts, name="")
