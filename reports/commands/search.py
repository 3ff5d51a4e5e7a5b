"""The commands that search: `sweep`, `plan` and `demo`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from meltpoint.sweeps.command_line.errors import DONE, again, exit_on_error, print_json
from meltpoint.sweeps.command_line.options import (
    AsJson,
    CpusPerTrial,
    Explain,
    GpusPerTrial,
    MixCode,
    Name,
    Storage,
    SweepOptions,
    Verbose,
    with_sweep_options,
)
from meltpoint.sweeps.machine.terminal import Screen, tell

if TYPE_CHECKING:
    from meltpoint.reports.results import SweepResults
    from meltpoint.reports.statistics.explanation import Explanation
    from meltpoint.sweeps.driver.plan import SweepPlan
    from meltpoint.sweeps.driver.run import Outcome
    from meltpoint.sweeps.results.summary import SweepSummary
    from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
    from meltpoint.sweeps.storage.files import StoragePath


@exit_on_error(goes_on=True)
@with_sweep_options()
def sweep(options: SweepOptions) -> None:
    """Search every cell, re-run its best setting over seeds, score it once on test, export it.

    The cells are encoders × modes × tasks. Cut off (Ctrl-C, a reboot), the same command goes on where it stopped. With
    more trials, seeds, encoders, modes or tasks under the same name it asks, and adds them.

    Example: meltpoint sweep --name first --encoder minilm --mode feature_extraction,fine_tuning --task sst2,mrpc
    A paper's whole experiment: meltpoint sweep --spec to_tune_or_not --with elmo=FOLDER --data-dir DATA
    """
    from meltpoint.sweeps.command_line.growth_question import asked_to_grow
    from meltpoint.sweeps.command_line.option_values import resources_of
    from meltpoint.sweeps.command_line.spec_from_options import asked_spec

    resources = resources_of(options)
    spec = asked_spec(options)
    _run(spec, asked_to_grow(spec, resources))


def _run(spec: SweepSpec, resources: Resources) -> SweepResults:
    """Run a sweep, show its table, and end with its status; its results where that is 0."""
    console = Screen(stderr=True)
    from meltpoint.sweeps.driver.early_start import head_start
    from meltpoint.sweeps.machine.signals import end_now, stoppable
    from meltpoint.sweeps.results.cache import trim

    rendered: list[SweepResults] = []

    def render(summary: SweepSummary) -> dict[str, str]:
        rendered.append(results_of(summary))
        return kept_files(rendered[-1])

    def note(summary: SweepSummary) -> str:
        return "\n\n".join(f"**{one.sentence}**" for one in rendered[-1].recommendations)

    def leave(outcome: Outcome) -> None:
        _show(outcome, resources, rendered)
        end_now(outcome.exit_status)

    with stoppable(), head_start(spec, resources, console) as cluster:  # Ray starts while Python imports the rest
        from meltpoint.reports.cards.cell_card import cell_card
        from meltpoint.reports.report import kept_files
        from meltpoint.reports.results import results_of
        from meltpoint.sweeps.driver.run import Writers
        from meltpoint.sweeps.driver.run import sweep as run_sweep

        writers = Writers(render, partial(cell_card, form="model"), note)
        outcome = run_sweep(spec, resources, console, writers, cluster, leave)
    if outcome.state == "done":  # the workers, which had the cache open, are gone now
        trim(resources)
    _show(outcome, resources, rendered)
    if outcome.exit_status != DONE:
        raise typer.Exit(outcome.exit_status)
    return rendered[-1]


def _keep_model(results: SweepResults, storage: str) -> StoragePath:
    """Write the recommended model of the sweep's first task into the sweep's folder."""
    from meltpoint.reports.cards.cell_card import cell_card
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.results.finalist_export import KEPT, export_finalist
    from meltpoint.sweeps.specification.cells import cell_name
    from meltpoint.sweeps.storage.files import storage_path
    from meltpoint.sweeps.storage.layout import sweep_folder

    cell, summary = results.recommendations[0].winner.cell, results.summary
    ledger = Ledger(sweep_folder(storage_path(storage), summary.name))
    card = cell_card(summary, cell, "model")
    return export_finalist(ledger, summary, cell_name(*cell.header.key), ledger.folder, card=card, name=KEPT)


def _show(outcome: Outcome, resources: Resources, rendered: Sequence[SweepResults]) -> None:
    """Show an outcome by the results that were rendered of it, which take seconds to compute."""
    from meltpoint.reports.screen import show_outcome

    results = next((one for one in rendered if one.summary is outcome.summary), None)
    show_outcome(outcome, resources, again(), Screen(), results)


@exit_on_error()
@with_sweep_options()
def plan(options: SweepOptions, as_json: AsJson = False, explain: Explain = False, verbose: Verbose = False) -> None:
    """Show what `sweep` with the same options would do and cost; trains nothing."""
    from meltpoint.sweeps.command_line.option_values import resources_of
    from meltpoint.sweeps.command_line.spec_from_options import checked_spec

    resources = resources_of(options)
    spec = checked_spec(options)
    from meltpoint.sweeps.driver.plan import plan_sweep  # torch, which takes seconds

    planned = plan_sweep(spec, resources)
    explanation = _explanation(planned) if explain else None
    if as_json:
        print_json(planned.as_json() | ({"explain": explanation.as_json()} if explanation else {}))
        return
    from meltpoint.reports.screen import show_explanation, show_plan

    console = Screen()
    show_plan(planned, console, verbose)
    if explanation:
        show_explanation(explanation, console)


def _explanation(planned: SweepPlan) -> Explanation:
    from meltpoint.reports.statistics.explanation import explain  # SciPy, which takes a second

    return explain(planned.cells)


@exit_on_error(goes_on=True)
def demo(
    storage: Storage = "runs", name: Name = "demo", cpus_per_trial: CpusPerTrial = 1.0,
    gpus_per_trial: GpusPerTrial = "auto", mix_code_versions: MixCode = False,
) -> None:  # fmt: skip
    """A small sweep offline: freeze or fine-tune? It recommends one, keeps the model and predicts with it.

    Two modes of the embedded encoder on a generated task of sentence similarity; about two minutes.
    """
    from meltpoint.sweeps.command_line.demo import PAIR, demo_spec, refuse_other
    from meltpoint.sweeps.command_line.option_values import resources_of

    options = SweepOptions(
        storage=storage, cpus_per_trial=cpus_per_trial, gpus_per_trial=gpus_per_trial,
        mix_code_versions=mix_code_versions,
    )  # fmt: skip
    resources, spec = resources_of(options), demo_spec(name)
    refuse_other(spec, storage)
    folder = _keep_model(_run(spec, resources), storage)
    from meltpoint.adapters.exported_model import load_folder

    (score,) = load_folder(str(folder)).predict([PAIR])
    tell(f"Prediction  {score:.1f} of 5: how similar are “{PAIR[0]}” and “{PAIR[1]}”")
    tell(f"Next        meltpoint predict {folder} FILE")
    tell("            meltpoint sweep --help")
