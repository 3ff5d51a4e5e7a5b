"""A cell's section of the page as values: scores, seeds, importance, the best setting, and its errors."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import duration, title, trials_text, value_text
from meltpoint.reports.html.errors import Errors, errors_of
from meltpoint.reports.html.trials import TrialRows, importances, trial_rows
from meltpoint.reports.statistics.finals_scores import cell_class_scores, class_rows
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import NOTHING, best_dev_text, spread_text
from meltpoint.sweeps.results.export import best_space
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks.core.scoring import score_text


@dataclass(frozen=True)
class Share:
    """A searched hyperparameter's importance.

    Attributes:
        share: by PED-ANOVA, a fraction of 1; None if too few trials have it.
        best: its value in the best setting.
    """

    name: str
    range: str
    share: float | None
    best: str


@dataclass(frozen=True)
class Seed:
    """A final: its seed, dev and test in percent points, its time, and its run in MLflow."""

    setting: str
    seed: int
    dev: str
    test: str
    seconds: str
    run: str


@dataclass(frozen=True)
class BestSetting:
    """The exact best setting.

    Attributes:
        yaml: a space with this one point, for `--space FILE`.
        command: the command that retrains it and its finals.
        missing: the reason why there is none; "" if there is one.
    """

    yaml: str = ""
    command: str = ""
    missing: str = ""


@dataclass(frozen=True)
class CellSection:
    """Everything that the page shows of a cell."""

    task: str
    title: str
    headline: str
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    seeds: tuple[Seed, ...]
    importance: tuple[Share, ...]
    importance_missing: str
    best: BestSetting
    errors: Errors
    classes: tuple[tuple[str, ...], ...]
    trials: TrialRows

    def as_json(self) -> dict[str, Any]:
        """The object that the page's scripts read."""
        return {"title": self.title, "task": self.task, "residuals": self.errors.residuals, **self.trials.as_json()}


def cell_section(cell: CellSummary, summary: SweepSummary, most_rows: int) -> CellSection:
    """The section of a cell.

    Args:
        most_rows: the maximum number of trials in its table.
    """
    trials = trial_rows(cell, most_rows)
    importance, missing = _importance(cell, trials)
    guards = cell_guards(cell, summary.baselines.get(cell.header.task))
    return CellSection(
        cell.header.task, _title(cell), _headline(cell), tuple(_facts(cell, summary)),
        tuple(one.text for one in guards), tuple(_seeds(cell)), importance, missing, best_setting(cell, summary),
        errors_of(cell, summary.folder), _classes(cell, summary), trials,
    )  # fmt: skip


def _title(cell: CellSummary) -> str:
    head = cell.header
    return " · ".join(part for part in (head.task, title(head.mode), head.encoder, head.variant) if part)


def _headline(cell: CellSummary) -> str:
    """`test 89.0 ± 2.1, 3 of 3 trials`: the text of a closed section."""
    split, score = ("test", cell.test) if cell.test else ("dev", cell.dev)
    scored = [f"{split} {spread_text(score, cell.header.metric)}"] if score else []
    return ", ".join([*scored, f"trials {trials_text(cell.counts)}"])


def _classes(cell: CellSummary, summary: SweepSummary) -> tuple[tuple[str, ...], ...]:
    """The scores of each class, in the columns of `CLASS_HEADS`; none for regression."""
    scores = cell_class_scores(cell, summary.folder)
    return () if scores is None else tuple(map(tuple, class_rows(scores)))


def _facts(cell: CellSummary, summary: SweepSummary) -> list[tuple[str, str]]:
    best, head = cell.best, cell.header
    default = cell.default_test or cell.default_dev
    on_dev = " (dev)" if default is not None and cell.default_test is None else ""
    return [
        ("metric", head.metric), ("head", head.head), ("trials finished", trials_text(cell.counts)),
        ("best dev", best_dev_text(best)),
        ("dev over seeds", spread_text(cell.dev, head.metric)),
        ("test over seeds", spread_text(cell.test, head.metric)),
        (f"published setting{on_dev}", spread_text(default, head.metric)),
        ("seeds", f"{len(cell.finals)} of {summary.seeds_of(cell)}"),
        ("training", duration(cell.seconds)), ("GPU-hours", f"{cell.cost.gpu_hours:.3g}"),
    ]  # fmt: skip


def _seeds(cell: CellSummary) -> list[Seed]:
    same = bool(cell.finals and cell.default_finals) and cell.default_finals[0].setting == cell.finals[0].setting
    finals = [_seed(final, "best", cell.header.metric) for final in cell.finals]
    return finals + ([] if same else [_seed(one, "published", cell.header.metric) for one in cell.default_finals])


def _seed(final: TrialRecord, setting: str, metric: str) -> Seed:
    test = (final.test or {}).get(metric)
    return Seed(
        setting, final.seed, NOTHING if final.dev is None else score_text(final.dev, metric),
        NOTHING if test is None else score_text(test, metric), duration(final.seconds), final.mlflow_run_id or "",
    )  # fmt: skip


def _importance(cell: CellSummary, trials: TrialRows) -> tuple[tuple[Share, ...], str]:
    """The importance of each searched hyperparameter, and the reason why figures are missing."""
    shares, missing = importances(cell, trials.axes)
    best = cell.best.setting if cell.best else {}
    found = [
        Share(axis.name, axis.range, shares.get(axis.name), _text(best.get(axis.name))) for axis in trials.axes
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: -1.0 if one.share is None else one.share, reverse=True)), missing


def _text(value: Value | None) -> str:
    return NOTHING if value is None else value_text(value)


def best_setting(cell: CellSummary, summary: SweepSummary) -> BestSetting:
    """The best setting of a cell as YAML and as a command."""
    if cell.best is None:
        return BestSetting(missing="No trial has finished yet.")
    try:
        space = best_space(summary, cell, cell.best)
    except ValueError as error:
        return BestSetting(missing=f"This version cannot write it as a space ({error}): {cell.best.setting}")
    plain = replace(space, provenance={})
    return BestSetting(plain.dump(), command_of(plain, cell, summary.spec, summary.seeds_of(cell)))


def command_of(space: Space, cell: CellSummary, spec: SweepSpec, seeds: int) -> str:
    """The command that retrains a space's only point, with the seeds of the finals."""
    from meltpoint.sweeps.specification.cells import word_of

    head = cell.header
    words = [
        "meltpoint", "sweep", "--name", f"{spec.name}-best", "--encoder", spec.named_encoder(head.encoder), "--mode",
        head.mode, "--task", word_of(spec, head.task), "--head", head.head, "--trials", "1", "--seeds", str(seeds),
        "--seed", str(spec.seed), "--no-default-finals",
    ]  # fmt: skip
    options = {
        "--data-dir": spec.data_dir, "--max-train-examples": spec.max_train_examples,
        "--max-dev-examples": spec.max_dev_examples, "--test-from": spec.test_from,
    }  # fmt: skip
    for option, value in options.items():
        words += [] if value is None else [option, str(value)]
    for name, range_ in space.parameters.items():
        words += ["--set", f"{name}={_exact(range_.start)}"]
    return shlex.join(words)


def _exact(value: Value) -> str:
    """A value as text that YAML reads back; YAML would read `1e-05` as a string."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = repr(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")
    return str(value)
