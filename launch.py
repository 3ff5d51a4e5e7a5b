"""The door: the command line, thin. `meltpoint WORD …` once installed, `python launch.py WORD …` in a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

try:
    import meltpoint
except ImportError:
    sys.exit("launch.py: Meltpoint is not installed here; run `make install`, then .venv/bin/python launch.py …")

import typer
from rich.console import Console

from meltpoint.reports.cache_command import cache
from meltpoint.sweeps.command_line.errors import DONE, FAILED, accept_any_character, again, exit_on_error, print_json
from meltpoint.sweeps.command_line.options import (
    Address,
    Analyses,
    AsJson,
    BesideName,
    Budget,
    CacheBudget,
    CacheKeep,
    CacheOverflow,
    Cpus,
    DataDir,
    Encoders,
    ExportFormat,
    Gpus,
    HeadName,
    Listable,
    MaxTrain,
    MaybeName,
    MixCode,
    Modes,
    Name,
    NameArgument,
    OneEncoder,
    Overflow,
    Overrides,
    Replacing,
    Retry,
    SearcherName,
    SearcherOption,
    Seed,
    Seeds,
    SpaceFile,
    SpecName,
    Storage,
    TableFormat,
    Tasks,
    TestFrom,
    TrackingUri,
    Trials,
    encoder_word,
    encoder_words,
    resources_of,
    split_words,
    task_words,
)
from meltpoint.sweeps.machine import heap

if TYPE_CHECKING:
    from meltpoint.sweeps.results.summary import SweepSummary
    from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec

app = typer.Typer(
    name="meltpoint",
    help="Hyperparameter search for adapting pretrained encoders: freeze (❄), fine-tune (🔥), or stack and fine-tune "
    "(❄🔥). Every cell encoder × mode × task is searched on dev, and its best setting scored once on test, over seeds.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(cache, name="cache", rich_help_panel="Look around")


@app.command(rich_help_panel="Search")
def sweep(
    name: MaybeName = None, encoder: Encoders = None, mode: Modes = None, task: Tasks = None, spec: SpecName = None,
    replacing: Replacing = None, head: HeadName = None, trials: Trials = None, seeds: Seeds = None,
    searcher: SearcherOption = SearcherName.tpe, space: SpaceFile = None, overrides: Overrides = None,
    data_dir: DataDir = None, max_train_examples: MaxTrain = None, test_from: TestFrom = None, seed: Seed = 0,
    storage: Storage = "runs", tracking_uri: TrackingUri = None, address: Address = None, cpus_per_trial: Cpus = 1.0,
    gpus_per_trial: Gpus = "auto", time_budget: Budget = None, retry_failed: Retry = False,
    cache_budget: CacheBudget = "50GB", cache_overflow: CacheOverflow = Overflow.on_the_fly,
    cache_keep: CacheKeep = "200MB", mix_code_versions: MixCode = False,
) -> None:  # fmt: skip
    """Search every cell, re-run its best setting over seeds, score it once on test, export it.

    The cells are encoders × modes × tasks. Cut off (Ctrl-C, a reboot), the same command goes on where it stopped.

    Example: meltpoint sweep --name first --encoder minilm --mode feature_extraction,fine_tuning --task sst2,mrpc
    A paper's whole experiment: meltpoint sweep --spec to_tune_or_not --with elmo=FOLDER --data-dir DATA
    """
    with exit_on_error():
        from meltpoint.sweeps.command_line.spec_from_options import asked_spec

        resources = resources_of(
            storage, tracking_uri, address, cpus_per_trial, gpus_per_trial, time_budget, retry_failed, cache_budget,
            cache_overflow, cache_keep, mix_code_versions,
        )  # fmt: skip
        asked = asked_spec(
            name, encoder, mode, task, head, trials, seeds, searcher, space, overrides, data_dir, max_train_examples,
            test_from, seed, spec, replacing,
        )  # fmt: skip
        _run(asked, resources)


def _run(spec: SweepSpec, resources: Resources) -> None:
    """Run a sweep, show its table, and end with its status."""
    from meltpoint.sweeps.driver.early_start import head_start
    from meltpoint.sweeps.results.cache import trim

    with head_start(spec, resources) as cluster:  # Ray starts while Python imports the rest
        from meltpoint.reports.tables import render
        from meltpoint.sweeps.driver.run import sweep as run_sweep

        outcome = run_sweep(spec, resources, Console(stderr=True), render, cluster)
    if outcome.state == "done":  # the workers, which had the cache open, are gone now
        trim(resources)
    from meltpoint.reports.screen import show_outcome

    show_outcome(outcome, resources, again(), Console(highlight=False))
    if outcome.state != "done":
        raise typer.Exit(FAILED)


@app.command(rich_help_panel="Search")
def plan(
    name: MaybeName = None, encoder: Encoders = None, mode: Modes = None, task: Tasks = None, spec: SpecName = None,
    replacing: Replacing = None, head: HeadName = None, trials: Trials = None, seeds: Seeds = None,
    searcher: SearcherOption = SearcherName.tpe, space: SpaceFile = None, overrides: Overrides = None,
    data_dir: DataDir = None, max_train_examples: MaxTrain = None, test_from: TestFrom = None, seed: Seed = 0,
    storage: Storage = "runs", tracking_uri: TrackingUri = None, address: Address = None, cpus_per_trial: Cpus = 1.0,
    gpus_per_trial: Gpus = "auto", time_budget: Budget = None, retry_failed: Retry = False,
    cache_overflow: CacheOverflow = Overflow.on_the_fly, mix_code_versions: MixCode = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show what `sweep` with the same options would do and cost; trains nothing."""
    with exit_on_error():
        from meltpoint.sweeps.command_line.spec_from_options import checked_spec

        resources = resources_of(
            storage, tracking_uri, address, cpus_per_trial, gpus_per_trial, time_budget, retry_failed,
            cache_overflow=cache_overflow, mix_code_versions=mix_code_versions,
        )  # fmt: skip
        asked = checked_spec(
            name, encoder, mode, task, head, trials, seeds, searcher, space, overrides, data_dir, max_train_examples,
            test_from, seed, spec, replacing,
        )  # fmt: skip
        from meltpoint.sweeps.driver.plan import plan_sweep  # torch, which takes seconds

        planned = plan_sweep(asked, resources)
        if as_json:
            print_json(planned.as_json())
            return
        from meltpoint.reports.screen import show_plan

        show_plan(planned, Console(highlight=False))


@app.command(rich_help_panel="Search")
def demo(
    storage: Storage = "runs", name: Name = "demo", cpus_per_trial: Cpus = 1.0, gpus_per_trial: Gpus = "auto",
    mix_code_versions: MixCode = False,
) -> None:  # fmt: skip
    """A small sweep on the embedded encoder and four small tasks of every kind; no network, a few minutes."""
    with exit_on_error():
        from meltpoint.sweeps.command_line.demo import demo_spec

        resources = resources_of(storage, cpus=cpus_per_trial, gpus=gpus_per_trial, mix_code_versions=mix_code_versions)
        _run(demo_spec(name), resources)


@app.command(rich_help_panel="Results")
def status(name: NameArgument, storage: Storage = "runs", as_json: AsJson = False) -> None:
    """Each cell: trials planned, finished, stopped, failed, running; best dev; finals."""
    with exit_on_error():
        summary = _summary(name, storage)
        if as_json:
            print_json(summary.as_json())
            return
        from meltpoint.reports.screen import show_status

        show_status(summary, Console(highlight=False))


def _summary(name: str, storage: str) -> SweepSummary:
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.results.summary import summarise

    return summarise(Ledger(Path(storage).absolute() / name))


@app.command(rich_help_panel="Results")
def report(
    name: NameArgument, table_format: Annotated[TableFormat, typer.Option("--format")] = TableFormat.md,
    beside: BesideName = None, storage: Storage = "runs",
) -> None:  # fmt: skip
    """The table of a sweep on standard output, whatever has finished so far."""
    with exit_on_error():
        from meltpoint.reports.report import report as make

        print(make(_summary(name, storage), table_format.value, beside), end="")


@app.command(rich_help_panel="Results")
def export(
    name: NameArgument,
    cell: Annotated[str | None, typer.Option(help="One cell, E.M.T or E.M.T.VARIANT; all otherwise.")] = None,
    export_format: Annotated[ExportFormat, typer.Option("--format")] = ExportFormat.yaml,
    out: Annotated[Path | None, typer.Option(help="Where to; the sweep's exports/ otherwise.")] = None,
    model: Annotated[bool, typer.Option("--model", help="Also the best finalist as a folder that predicts.")] = False,
    storage: Storage = "runs",
) -> None:  # fmt: skip
    """The best settings, one file a cell; each trains again with `meltpoint train FILE`."""
    with exit_on_error():
        from meltpoint.sweeps.ledger.ledger import Ledger
        from meltpoint.sweeps.results.export import export_cells, export_model
        from meltpoint.sweeps.specification.cells import cell_name

        ledger, summary = Ledger(Path(storage).absolute() / name), _summary(name, storage)
        target = out or ledger.folder / "exports"
        for path in export_cells(ledger, summary, target, cell, export_format.value):
            print(path)
        chosen = [one for one in summary.cells if model and cell in (None, cell_name(*one.header.key))]
        for one in chosen:
            print(export_model(ledger, summary, cell_name(*one.header.key), target))


@app.command(rich_help_panel="Results")
def ensemble(
    name: NameArgument, task: Annotated[str, typer.Option(help="The task whose cells are combined.")],
    cell: Annotated[list[str] | None, typer.Option(help="E.M.T or SWEEP/E.M.T; every finished one otherwise.")] = None,
    storage: Storage = "runs", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Average the probabilities of several cells' finalists, seed by seed: a row of its own in the tables."""
    with exit_on_error():
        from meltpoint.adapters.files import write_atomically
        from meltpoint.reports.screen import show_ensemble
        from meltpoint.reports.tables import render
        from meltpoint.sweeps.results.ensemble import ensemble as combine

        made = combine(Path(storage).absolute(), name, task, cell or [])
        for file, text in render(_summary(name, storage)).items():
            write_atomically(Path(storage).absolute() / name / file, text)
        if as_json:
            print_json(made.model_dump(mode="json"))
        else:
            show_ensemble(made, name, Console(highlight=False))


@app.command(rich_help_panel="Results")
def analyse(
    name: NameArgument, analysis: Analyses, encoder: Encoders = None, task: Tasks = None,
    model: Annotated[Path | None, typer.Option(help="A fine-tuned finalist's folder (`export --model`).")] = None,
    corpus: Annotated[Path | None, typer.Option(help="A text file to compare the tasks' words with.")] = None,
    data_dir: DataDir = None, max_train_examples: MaxTrain = None,
    out: Annotated[Path | None, typer.Option(help="Where to; analyses/ in the sweep's folder otherwise.")] = None,
    formats: Annotated[list[str] | None, typer.Option("--format", help="md, csv, tex, svg, png; all.")] = None,
    storage: Storage = "runs",
) -> None:  # fmt: skip
    """The papers' analyses: of a finished sweep, or with - in its place of encoders and tasks alone."""
    with exit_on_error():
        from meltpoint.reports.analyses import analyse as run

        written = run(
            name, split_words(analysis), Path(storage).absolute(), encoders=encoder_words(encoder or ()),
            tasks=task_words(task or ()), model=model, corpus=corpus,
            data_dir=str(data_dir.absolute()) if data_dir else None, max_train_examples=max_train_examples, out=out,
            formats=split_words(formats or ()), tell=lambda line: print(line, file=sys.stderr),
        )  # fmt: skip
        for path in written:
            print(path)


@app.command(rich_help_panel="Results")
def train(
    file: Annotated[Path, typer.Argument(help="An exported setting, E.M.T.yaml.", show_default=False)],
    seed: Annotated[int | None, typer.Option(help="Another seed than the search's.")] = None,
    test: Annotated[bool, typer.Option("--test", help="Score the test split too.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lie now, if they moved.")] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Train an exported setting again; same machine and versions, same last bit. Status 1 if dev is another score."""
    with exit_on_error():
        from meltpoint.sweeps.specification.early_checks import check_point

        check_point(str(file))
        from meltpoint.reports.screen import show_epoch
        from meltpoint.sweeps.worker.retrain import retrain  # torch, which takes seconds

        talk = Console(stderr=True, highlight=False)
        where = str(data_dir.absolute()) if data_dir else None
        done = retrain(str(file), seed, test, where, lambda epoch: show_epoch(epoch, talk))
        if as_json:
            print_json(done.as_json())
        else:
            print(f"dev {done.metric} {done.dev!r}" + ("" if done.test is None else f", test {done.test!r}"))
        talk.print(done.comparison(), markup=False, soft_wrap=True)
        if done.same is False:
            raise typer.Exit(FAILED)


@app.command(rich_help_panel="Look around")
def features(
    encoder: OneEncoder,
    file: Annotated[Path, typer.Option("--input", help="A text: each line a sentence, words apart by white space.")],
    out: Annotated[Path, typer.Option("--out", help="The .npz file to write.")],
    layers: Annotated[str, typer.Option(help="all, top, or numbers from 0 (the embeddings): 0,6.")] = "all",
) -> None:  # fmt: skip
    """Each sentence's layers as an encoder has them: arrays 0, 1, … of (layers, words, dim), and the words."""
    with exit_on_error():
        from meltpoint.sweeps.specification.early_checks import check_features

        check_features(encoder_word(encoder), file, layers)
        from meltpoint.adapters.features.writing import write_features  # torch, which takes seconds

        written = write_features(encoder_word(encoder), file, out, layers)
        print(f"{written.in_words()} → {out}", file=sys.stderr)


@app.command("list", rich_help_panel="Look around")
def list_words(what: Annotated[Listable, typer.Argument(show_default=False)], as_json: AsJson = False) -> None:
    """What there is: encoders, modes, tasks, heads, tricks, spaces or specs."""
    with exit_on_error():
        from meltpoint.sweeps.command_line.listing import inventory

        rows = inventory(what.value)
        if as_json:
            print_json(rows)
            return
        from meltpoint.reports.screen import show_rows

        show_rows(rows, Console(highlight=False))


@app.command(rich_help_panel="Look around")
def doctor(
    storage: Storage = "runs", tracking_uri: TrackingUri = None, address: Address = None, as_json: AsJson = False
) -> None:
    """What this machine has and lacks, each lack with its remedy."""
    with exit_on_error():
        from dataclasses import asdict

        from meltpoint.reports.screen import show_checks
        from meltpoint.sweeps.machine.doctor import checks

        found = checks(Path(storage), tracking_uri, address)
        if as_json:
            print_json([asdict(check) for check in found])
        else:
            show_checks(found, Console(highlight=False))
        if not all(check.ok for check in found):
            raise typer.Exit(FAILED)


@app.command(rich_help_panel="Look around")
def ui(
    storage: Storage = "runs", tracking_uri: TrackingUri = None,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="On which port.")] = 5000,
) -> None:  # fmt: skip
    """The MLflow dashboard on this storage, until Ctrl-C."""
    with exit_on_error():
        from meltpoint.sweeps.tracking.dashboard import serve

        raise typer.Exit(serve(Path(storage).absolute(), tracking_uri, host, port))


def _version(asked: bool) -> None:
    if asked:
        print(f"meltpoint {meltpoint.__version__}")
        raise typer.Exit(DONE)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Its version.")] = False
) -> None:  # fmt: skip
    """Options of every word."""


def main() -> None:
    """Run the command line."""
    accept_any_character()
    heap.raise_gc_threshold()
    try:
        app()
    finally:
        heap.freeze_heap()


if __name__ == "__main__":
    main()
