"""Variance of the dev score by source of randomness: data order, head initialisation, dropout, and all of them.

Bouthillier et al. 2021 ("Accounting for variance in machine learning benchmarks"): a cell's best setting is trained
again several times with the seed of one source varied and the others fixed, and with all varied. It trains in this
process and reads train and dev alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meltpoint.adapters import modes
from meltpoint.adapters.hardware import claim_device
from meltpoint.adapters.hyperparameters import Seeds
from meltpoint.adapters.training.trial_state import NotFiniteError
from meltpoint.reports.analyses.core.analysis import CELL_COLUMNS, Analysis, AnalysisOptions, cell_values, write_table
from meltpoint.reports.analyses.core.finalists import order_for
from meltpoint.reports.analyses.core.tables import AnalysisTable, Column, Score, Value, figures, points
from meltpoint.reports.statistics.variance import Deviation, deviation, share
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.planner import LARGEST_BUNDLE
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.sweeps.worker.worker import bundles, training
from meltpoint.tasks.core.wording import some

NAME = "variance"
RUNS = 5

SOURCES = {"order": "data order", "initial": "head initialisation", "dropout": "dropout"}
"""Field of `Seeds` → the source's name in tables."""
ALL = "all"

COLUMNS = (
    *CELL_COLUMNS, Column("varied"), figures("runs", "d"), points("mean"), points("std", ".2f"), points("low", ".2f"),
    points("high", ".2f"), points("share of variance", ".0f"), points("share low", ".0f"), points("share high", ".0f"),
    points("min"), points("max"),
)  # fmt: skip
RUN_COLUMNS = (
    *CELL_COLUMNS, Column("varied"), figures("order seed", "d"), figures("initial seed", "d"),
    figures("dropout seed", "d"), points("dev"),
)  # fmt: skip
METHOD = (
    "The best setting of each cell, trained with the seed of one source varied and the others fixed at the sweep's "
    "seed (Bouthillier et al. 2021); `all`: all three varied together, as in the finals. The first run is the same in "
    "every row. Scores are of dev at each run's best epoch, in percent points (errors in their unit); no test split is "
    "opened.",
    "`low`, `high`: 95 % interval of the standard deviation, by chi-square, which supposes normal scores. Of five runs "
    "it reaches from 0.60 to 2.87 times the estimate: only large differences between rows mean something. "
    "`--runs 20` gives 0.76 to 1.46.",
    "`share of variance`: the row's variance over that of `all`, with its 95 % interval by F, which supposes normal "
    "scores of independent runs. Of five runs it reaches from a tenth to ten times the estimate, so that a share above "
    "100 is no surprise. Shares need not sum to 100 either: sources act together. A source that a setting does not "
    "have (dropout of 0) has 0.",
    "Not varied: the choice of examples (the largest source in Bouthillier et al.) and the search itself.",
    "To compare cells, vary everything at once: it costs one set of runs where this costs one a source, and is what "
    "the finals do. This table only says where their deviation comes from.",
)


@dataclass(frozen=True)
class Run:
    """One training of a cell's best setting.

    Attributes:
        source: a key of `SOURCES`, or `ALL`.
        seeds: of its sources.
    """

    source: str
    seeds: Seeds


def run(options: AnalysisOptions) -> list[Path]:
    """Train, and write the table and the runs' scores.

    Raises:
        ValueError: no sweep, no cell with a finished trial, or data and encoder that are missing or others.
    """
    sweep, count = options.needed_sweep(NAME), options.runs or RUNS
    rows: list[tuple[Value, ...]] = []
    single: list[tuple[Value, ...]] = []
    notes = list(METHOD)
    for cell in options.chosen_cells(NAME):
        name = cell_name(*cell.header.key)
        if cell.best is None:
            notes.append(f"{name} is left out: no trial has finished.")
            continue
        scores, told = scores_of(options, cell, count)
        rows += _rows(cell, scores)
        metric = cell.header.metric
        single += [
            (*cell_values(cell), _title(one.source), *_seeds(one), *Score.each((dev,), metric))
            for one, dev in scores.items()
        ]
        notes += [f"{name}: {line}." for line in told]
    title = f"Variance of dev by source of randomness in sweep {sweep.name}"
    table = AnalysisTable(NAME, title, COLUMNS, tuple(rows), tuple(notes))
    each = AnalysisTable(f"{NAME}_runs", "The runs behind the variances", RUN_COLUMNS, tuple(single))
    only_csv = tuple(form for form in options.formats if form == "csv")
    return [*write_table(table, options), *write_table(each, replace(options, formats=only_csv))]


def scores_of(options: AnalysisOptions, cell: CellSummary, count: int) -> tuple[dict[Run, float | None], list[str]]:
    """Each run's dev score (None where its loss was not finite), and notes on them.

    The finals are runs with all sources varied, and serve where this machine gives the search's own score again.
    """
    assert cell.best is not None, "the caller looks"
    base = cell.best.seed
    first = Seeds.all_of(base)
    alone = [Run(source, replace(first, **{source: base + number})) for source in SOURCES for number in range(1, count)]
    together = [Run(ALL, Seeds.all_of(base + number)) for number in range(1, count)]
    trained = _trained(options, cell, [first, *(one.seeds for one in alone)])
    is_same = trained[first] == cell.best.dev
    known = (
        {Seeds.all_of(final.seed): final.dev_of_epoch for final in cell.finals if final.seed != base} if is_same else {}
    )
    trained |= known | _trained(options, cell, [one.seeds for one in together if one.seeds not in known])
    runs = [run for source in (*SOURCES, ALL) for run in (Run(source, first), *_of(source, (*alone, *together)))]
    scores = {one: trained[one.seeds] for one in runs}
    return scores, _notes(cell, scores, known, is_same)


def _of(source: str, runs: Sequence[Run]) -> Iterator[Run]:
    return (one for one in runs if one.source == source)


def _notes(
    cell: CellSummary, scores: Mapping[Run, float | None], known: Mapping[Seeds, float | None], is_same: bool
) -> list[str]:  # fmt: skip
    assert cell.best is not None, "the caller looks"
    reused = sum(one.source == ALL and one.seeds in known for one in scores)
    lost = len({one.seeds for one, dev in scores.items() if dev is None})
    notes = [f"{some(reused, 'run')} of `all` {'is' if reused == 1 else 'are'} its finals' scores"] if reused else []
    if not is_same:
        notes.append(
            f"this machine and code do not give the search's {cell.best.dev!r} again, so that none of its finals serves"
        )
    return [*notes, *([f"{some(lost, 'run')} left out: the loss was not finite"] if lost else [])]


def _trained(options: AnalysisOptions, cell: CellSummary, wanted: Sequence[Seeds]) -> dict[Seeds, float | None]:
    """The dev score of the cell's best setting with some seeds."""
    assert cell.best is not None, "the caller looks"
    order, found = order_for(options, cell.best), {}
    orders = [order.model_copy(update={"id": str(number), "seeds": one}) for number, one in enumerate(wanted)]
    for group in grouped(orders):
        for one, dev in zip(group, train(group), strict=True):
            found[wanted[int(one.id)]] = dev
        options.tell(f"{cell_name(*cell.header.key)}: {len(found)} of {some(len(wanted), 'run')}")
    return found


def grouped(orders: Sequence[Order]) -> list[list[Order]]:
    """Orders that train side by side: those that the worker would bundle, on a frozen encoder."""
    if not orders or modes.get(orders[0].mode).trains_encoder:
        return [[order] for order in orders]
    return [
        bundle[start : start + LARGEST_BUNDLE]
        for bundle in bundles(orders) for start in range(0, len(bundle), LARGEST_BUNDLE)
    ]  # fmt: skip


def train(orders: Sequence[Order]) -> list[float | None]:
    """Train orders side by side; each one's dev score at its best epoch, None where its loss was not finite."""
    trainer = training(orders, claim_device(int(orders[0].cpus), orders[0].gpus))
    lost = {index for outcomes in trainer.epochs() for index, one in outcomes if isinstance(one, NotFiniteError)}
    return [None if index in lost else trial.best[0] for index, trial in enumerate(trainer.trials)]


def _rows(cell: CellSummary, scores: Mapping[Run, float | None]) -> list[tuple[Value, ...]]:
    """A row a source; sources without a finite score have none."""
    found = {
        source: values for source in (*SOURCES, ALL)
        if (values := [dev for one, dev in scores.items() if one.source == source and dev is not None])
    }  # fmt: skip
    spreads = {source: deviation(values) for source, values in found.items()}
    return [_source_row(cell, source, values, spreads) for source, values in found.items()]


def _source_row(
    cell: CellSummary, source: str, values: Sequence[float], spreads: Mapping[str, Deviation]
) -> tuple[Value, ...]:  # fmt: skip
    own = spreads[source]
    part = share(own, spreads[ALL]) if ALL in spreads and source != ALL else None
    shares = (part.value, part.low, part.high) if part else (None, None, None)
    metric = cell.header.metric
    spread = Score.each((own.mean, own.std, own.low, own.high), metric)
    ends = Score.each((min(values), max(values)), metric)
    return (
        *cell_values(cell), _title(source), own.count, *spread, *shares, *ends,
    )  # fmt: skip


def _title(source: str) -> str:
    return SOURCES.get(source, source)


def _seeds(one: Run) -> tuple[int, int, int]:
    return one.seeds.order, one.seeds.initial, one.seeds.dropout


ANALYSIS = Analysis(
    NAME, "how much data order, head initialisation and dropout move dev; trains the best settings", run,
    frozenset({"runs"}),
)  # fmt: skip
