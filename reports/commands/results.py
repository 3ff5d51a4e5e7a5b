"""The commands on a sweep's results: `status`, `report`, `export`, `ensemble`, `analyse` and `train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meltpoint.reports.commands.jobs import is_here, status_of_job
from meltpoint.sweeps.command_line.typer_options import (
    AnalysesArgument,
    AsJson,
    Beside,
    DataDir,
    Encoders,
    ExportFormat,
    JobAddress,
    MaxTrainExamples,
    NameArgument,
    Storage,
    TableFormat,
    Tasks,
)
from meltpoint.sweeps.machine.terminal import FAILED, Screen, exit_on_error, print_json, show, tell
from meltpoint.tasks.core.wording import some

if TYPE_CHECKING:
    from meltpoint.sweeps.results.export import Form
    from meltpoint.sweeps.results.summary import SweepSummary


@exit_on_error()
def status(
    name: Annotated[str | None, typer.Argument(help="The sweep's name; every sweep of the storage otherwise.")] = None,
    storage: Storage = "runs", address: JobAddress = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show each cell's trials by state, best dev score and finals, and the job of a submitted sweep."""
    if name is None:
        if address is not None:
            raise ValueError("--address needs a sweep's name: meltpoint status NAME --address URL.")
        show_sweeps(storage, as_json)
        return
    from meltpoint.sweeps.on_ray.jobs import ADDRESS

    if address is not None or (ADDRESS in os.environ and not is_here(name, storage)):
        status_of_job(name, storage, address, as_json, read_view)
        return
    summary = read_view(name, storage)
    if as_json:
        print_json(summary.as_json())
        return
    from meltpoint.reports.status_view import show_status

    show_status(summary, Screen())


def show_sweeps(storage: str, as_json: bool) -> None:
    """Print the sweeps of a storage, a row each: `status` without a name, and `list sweeps`."""
    from meltpoint.reports.findings import shown_sweep, sweep_rows
    from meltpoint.sweeps.storage.files import readable_storage

    rows = sweep_rows(readable_storage(storage))
    if rows or as_json:
        print_rows(rows if as_json else [*map(shown_sweep, rows)], as_json)
    else:
        tell(f"No sweep in {storage} yet; start one with `meltpoint sweep`, or name another --storage.")


def print_rows(rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    """Print rows as JSON, or as a table or paragraphs that fit the terminal."""
    if as_json:
        print_json(rows)
        return
    from meltpoint.reports.console_tables import show_rows

    show_rows(rows, Screen())


def read_view(name: str, storage: str) -> SweepSummary:
    """Read a summary for display: damaged records are left out and named."""
    return read_summary(name, storage, leaves_out=True)


def read_summary(name: str, storage: str, leaves_out: bool = False) -> SweepSummary:
    """The summary of a sweep in a storage; arguments and errors as for `summarise`.

    Raises:
        ValueError: there is no such sweep, or one of its files is damaged.
    """
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.results.summary import summarise
    from meltpoint.sweeps.storage.files import readable_storage, sweep_folder

    return summarise(Ledger(sweep_folder(readable_storage(storage), name)), leaves_out)


@exit_on_error()
def report(
    name: NameArgument,
    table_format: Annotated[
        TableFormat | None, typer.Option("--format", help="Table format; html: a page. Default: md; fits a terminal.")
    ] = None,
    beside: Beside = None, storage: Storage = "runs",
    out: Annotated[Path | None, typer.Option(help="A file to write; else standard output.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="Points within which modes are level; the sweep's own otherwise.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="The tables as text, with every difference and the meaning of figures.")
    ] = False,
) -> None:  # fmt: skip
    """Report a sweep's results so far: md, csv, json, tex, or html, a page with everything."""
    from meltpoint.reports.report import report as make
    from meltpoint.sweeps.specification.sweep_options import check_margin
    from meltpoint.sweeps.storage.files import write

    level = None if margin is None else check_margin(margin) / 100
    summary = read_view(name, storage)
    if table_format is None and out is None and (explain or sys.stdout.isatty()):
        from meltpoint.reports.results import results_of
        from meltpoint.reports.screen import show_summary

        show_summary(summary, Screen(), results_of(summary, beside, margin=level), explain)
        return
    for line in summary.damaged:  # a CSV file has no room for it
        tell(line, err=True)
    text = make(summary, table_format or "md", beside, level)
    if out is None:
        show(text)
        return
    write(out, text)
    tell(out)


@exit_on_error()
def export(
    name: NameArgument,
    cell: Annotated[str | None, typer.Option(help="One cell, E.M.T or E.M.T.VARIANT; all otherwise.")] = None,
    export_format: Annotated[ExportFormat, typer.Option("--format", help="Format of the files.")] = "yaml",
    out: Annotated[Path | None, typer.Option(help="Output folder; the sweep's exports/ otherwise.")] = None,
    model: Annotated[bool, typer.Option("--model", help="Also the best finalist as a folder that predicts.")] = False,
    transformers: Annotated[
        bool, typer.Option("--transformers", help="Also the best finalist as a folder of plain transformers.")
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also the best finalist as an ONNX file (extra onnx).")] = False,
    push: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="Only upload the recommended model, or --cell, to the hub.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="--push to a private repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only write the folder of --push, under --out.")] = False,
    storage: Storage = "runs",
) -> None:  # fmt: skip
    """Export the best settings, one file per cell; `meltpoint train FILE` trains one again."""
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.results.export import export_cells
    from meltpoint.sweeps.storage.files import storage_path, sweep_folder

    summary, ledger = read_summary(name, storage), Ledger(sweep_folder(storage_path(storage), name))
    target = out or ledger.folder / "exports"
    asked = {"model": model, "transformers": transformers, "onnx": onnx}
    forms: list[Form] = [form for form, is_asked in asked.items() if is_asked]  # type: ignore[misc]
    if push is not None:
        from meltpoint.reports.exports import push as push_to_hub

        to = target if dry_run else None
        push_to_hub(ledger, summary, push, tell, cell=cell, forms=forms, private=private, dry_run=to)
        return
    if private or dry_run:
        raise ValueError("--private and --dry-run belong to --push USER/NAME; add it, or leave them out.")
    for path in export_cells(summary, target, cell, export_format):
        tell(path)
    if forms:
        from meltpoint.reports.exports import export_finalists

        export_finalists(ledger, summary, target, cell, forms, tell)


@exit_on_error(goes_on=True)
def ensemble(
    name: NameArgument, task: Annotated[str, typer.Option(help="The task whose cells are combined.")],
    cell: Annotated[list[str] | None, typer.Option(help="E.M.T; every finished one otherwise.")] = None,
    storage: Storage = "runs", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Average the probabilities of several cells' finalists, seed by seed; the tables show it as a row."""
    from meltpoint.reports.report import kept_files
    from meltpoint.reports.results import results_of
    from meltpoint.reports.screen import show_ensemble
    from meltpoint.sweeps.results.ensembles_and_baselines import ensemble as combine
    from meltpoint.sweeps.storage.files import readable_storage, write

    place = readable_storage(storage)
    made = combine(place, name, task, cell or [])
    for file, text in kept_files(results_of(read_summary(name, storage))).items():
        write(place / name / file, text)
    if as_json:
        print_json(made.model_dump(mode="json"))
    else:
        show_ensemble(made, name, Screen())


@exit_on_error(goes_on=True)
def analyse(
    name: NameArgument, analysis: AnalysesArgument,
    encoder: Encoders = None, task: Tasks = None,
    corpus: Annotated[Path | None, typer.Option(help="genres: a text file to compare their words with.")] = None,
    data_dir: DataDir = None, max_train_examples: MaxTrainExamples = None,
    out: Annotated[Path | None, typer.Option(help="Output folder; the sweep's analyses/ otherwise.")] = None,
    formats: Annotated[list[str] | None, typer.Option("--format", help="md, csv, tex, svg, png; else all.")] = None,
    storage: Storage = "runs", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compute the papers' tables and figures, and others, of a sweep or (with -) of encoders and tasks."""
    from meltpoint.reports.analyses import analyse as run
    from meltpoint.sweeps.command_line.spec_from_options import encoder_names, split_at_commas, task_names
    from meltpoint.sweeps.storage.files import readable_storage

    written = run(
        name, split_at_commas(analysis), readable_storage(storage), encoders=encoder_names(encoder or ()),
        tasks=task_names(task or ()), corpus=corpus,
        data_dir=str(data_dir.absolute()) if data_dir else None, max_train_examples=max_train_examples, out=out,
        formats=split_at_commas(formats or ()), tell=lambda line: tell(line, err=True),
    )  # fmt: skip
    if as_json:
        print_json({"written": [str(path) for path in written]})
        return
    for path in written:
        tell(path)


@exit_on_error()
def predict(
    model: Annotated[
        str, typer.Argument(help="A sweep that `tune` ran, or a folder of `export --model`.", show_default=False)
    ],
    file: Annotated[Path, typer.Argument(help="Texts: csv, tsv, jsonl, parquet, txt or conll.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Output file in these formats; else JSON lines are printed.")] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help="The text column, twice for pairs; common names are found.")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Also each label's probability.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:0.")] = "cpu",
    storage: Storage = "runs",
) -> None:  # fmt: skip
    """Predict each row of a file with a finalist; its columns are kept, and the prediction is appended."""
    from meltpoint.sweeps.results.export import model_folder
    from meltpoint.sweeps.results.text_files import format_of
    from meltpoint.tasks.core.files import exists, regular

    for named in (file, *([out] if out else [])):
        format_of(named)
    if not exists(file):
        raise ValueError(f"{file} is missing.")
    regular(file)
    folder = model_folder(model, storage)
    from meltpoint.adapters.exported_model import load_folder  # torch, which takes seconds
    from meltpoint.sweeps.results.predicting import predict_file

    def told(done: int) -> None:
        tell(some(done, "row"), err=True)

    rows = predict_file(load_folder(folder, device), file, out, text or (), probabilities, tell=told)
    tell(f"{some(rows, 'row')} → {out or 'standard output'}", err=True)


@exit_on_error()
def train(
    file: Annotated[Path, typer.Argument(help="An exported setting, E.M.T.yaml.", show_default=False)],
    seed: Annotated[int | None, typer.Option(help="A seed other than the search's.")] = None,
    test: Annotated[bool, typer.Option("--test", help="Score the test split too.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="The data's current folder, if it has moved.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write the model to, for `predict`.")] = None,
    transformers: Annotated[
        bool, typer.Option("--transformers", help="Make --out a plain transformers folder, or refuse before training.")
    ] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Retrain an exported setting; bit-identical on the same machine and versions. Status 1 if dev differs."""
    from meltpoint.search_spaces.files import check_setting

    check_setting(str(file))
    from meltpoint.sweeps.worker.retrain import retrain  # torch, which takes seconds

    talk = Screen(stderr=True)
    where = str(data_dir.absolute()) if data_dir else None
    done = retrain(str(file), seed, test, where, lambda epoch: talk.print(epoch.in_words()), out, transformers)
    if as_json:
        print_json(done.as_json())
    else:
        tell(f"dev {done.metric} {done.dev!r}" + ("" if done.test is None else f", test {done.test!r}"))
    talk.print(done.comparison(), soft_wrap=True)
    if done.same is False:
        raise typer.Exit(FAILED)
