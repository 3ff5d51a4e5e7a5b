"""The commands that look at what there is: one trial or sweep, the cache, the machine, and all names."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from meltpoint.reports.commands.results import print_rows, read_summary, read_view, show_sweeps
from meltpoint.sweeps.command_line.typer_options import (
    Address,
    AsJson,
    CacheDir,
    DataDir,
    Group,
    Listable,
    NameArgument,
    Storage,
    TrackingUri,
)
from meltpoint.sweeps.machine.terminal import FAILED, Screen, complain, exit_on_error, print_json, tell
from meltpoint.sweeps.machine.terminal import show as show_text
from meltpoint.tasks.core.wording import printable, some

ANY_ENCODER = "hf:ID"
"""An encoder without spaces of its own."""


@exit_on_error()
def features(
    encoder: Annotated[
        str, typer.Option("--encoder", help="bert-base, minilm, hf:ID, hf:FOLDER or elmo:FOLDER.", show_default=False)
    ],
    file: Annotated[Path, typer.Option("--input", help="A text file, one sentence per line, words split by spaces.")],
    out: Annotated[Path, typer.Option("--out", help="The .npz file to write.")],
    layers: Annotated[str, typer.Option(help="all, top, or numbers from 0 (the embeddings): 0,6.")] = "all",
) -> None:
    """Write an encoder's layers for each sentence: arrays 0, 1, … of (layers, words, dim), and the words."""
    from meltpoint.sweeps.command_line.spec_from_options import check_features, encoder_name

    name = encoder_name(encoder)
    check_features(name, file, layers)
    from meltpoint.adapters.features.npz_file import write_features  # torch, which takes seconds

    written = write_features(name, file, out, layers)
    tell(f"{written} → {out}", err=True)


@exit_on_error()
def list_names(
    what: Annotated[
        Listable | None, typer.Argument(help="The kind of names to list; the number of each kind otherwise.")
    ] = None,
    mode: Annotated[str, typer.Option(help="With spaces: the values tried in this mode …")] = "",
    encoder: Annotated[str, typer.Option(help="… of this encoder …")] = "",
    task: Annotated[str, typer.Option(help="… on this task …")] = "",
    head: Annotated[str, typer.Option(help="… under this head.")] = "",
    storage: Storage = "runs", as_json: AsJson = False,
) -> None:  # fmt: skip
    """List encoders, modes, tasks, heads, tricks, spaces, specs, sweeps; `spaces --mode M`: the values that M tries."""
    if what == "sweeps":
        show_sweeps(storage, as_json)
        return
    from meltpoint.sweeps.command_line.listing import inventory, overview, parameters_of_cell

    if (encoder or task or head) and not mode:
        raise ValueError(
            "--encoder, --task and --head need --mode, as in: list spaces --mode fine_tuning --encoder minilm."
        )
    if mode and what != "spaces":
        raise ValueError(f"--mode is for spaces, not for {what or 'nothing'}; see: list spaces --mode {mode}.")
    rows = parameters_of_cell(mode, encoder or ANY_ENCODER, task, head) if mode else inventory(what) if what else []
    if not what:
        from meltpoint.sweeps.storage.files import readable_storage

        names = sorted(path.parent.name for path in readable_storage(storage).glob("*/sweep.json"))
        rows = [*overview(), {"list": "sweeps", "count": len(names), "for example": names[:2]}]
    print_rows(rows, as_json)


@exit_on_error()
def doctor(
    storage: Storage = "runs", tracking_uri: TrackingUri = None, address: Address = None, data_dir: DataDir = None,
    as_json: AsJson = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show the checks that pass.")] = False,
) -> None:  # fmt: skip
    """Check this machine, its storage and MLflow store, and a cluster (--address); each fault has its remedy."""
    from meltpoint.reports.screen import show_checks
    from meltpoint.sweeps.machine.doctor import checks, data_folder
    from meltpoint.sweeps.storage.files import storage_path

    results = checks(storage_path(storage), tracking_uri, address)
    if data_dir is not None:
        results.append(data_folder(data_dir))
    if as_json:
        print_json([vars(check) for check in results])
    else:
        show_checks(results, Screen(), verbose)
    if not all(check.ok for check in results):
        raise typer.Exit(FAILED)


@exit_on_error()
def ui(
    name: Annotated[str | None, typer.Argument(help="A sweep, to see its cells, best first; else all sweeps.")] = None,
    storage: Storage = "runs", tracking_uri: TrackingUri = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 5000,
) -> None:  # fmt: skip
    """Serve the MLflow dashboard of this storage until Ctrl-C; with a sweep's name, also link to its cells.

    Example: meltpoint ui demo
    """
    from meltpoint.sweeps.storage.files import storage_path
    from meltpoint.sweeps.tracking.dashboard import serve

    raise typer.Exit(serve(storage_path(storage), tracking_uri, port, name))


@exit_on_error()
def mcp(
    storage: Storage = "runs",
    allow_runs: Annotated[bool, typer.Option("--allow-runs", help="Also tools that plan and start sweeps.")] = False,
) -> None:
    """Serve sweeps to an agent over standard input and output (MCP); an agent's program starts it (docs/agents.md)."""
    if find_spec("mcp") is None:
        raise ValueError("The package mcp is not installed; run pip install 'meltpoint[mcp]'.")
    from meltpoint.reports.mcp_server import serve
    from meltpoint.sweeps.storage.files import readable_storage

    readable_storage(storage)
    serve(storage, allow_runs)


@exit_on_error()
def new_task(
    files: Annotated[list[str], typer.Argument(help="Files of examples.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help="The task file to write; else it is printed.")] = None,
    group: Group = "",
) -> None:
    """Inspect files of examples and draft the task file that reads them, for you to correct."""
    from meltpoint.tasks.inspection import new_task as inspection

    text = inspection.new_task(files, out, group)
    if out is None:
        show_text(text)
    else:
        tell(f"{out} is a guess; correct it, then run: meltpoint plan --task {out}", err=True)


@exit_on_error()
def show(
    name: NameArgument,
    cell: Annotated[str, typer.Argument(help="A cell (E.M.T or M.T), or a trial's id.", show_default=False)],
    storage: Storage = "runs", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show a trial: setting, epochs, scores, hardware and error; --json: its record."""
    from meltpoint.reports.trial_view import best_of_cell, find_trial, trial_lines
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.storage.files import storage_path, sweep_folder

    summary = read_view(name, storage)
    record = best_of_cell(summary, cell)
    if record is None:
        record = find_trial(Ledger(sweep_folder(storage_path(storage), name)).records({}), name, cell)
    if as_json:
        print_json(record.model_dump(mode="json"))
        return
    from meltpoint.reports.console_tables import say_lines

    say_lines(trial_lines(record, summary), Screen())


@exit_on_error()
def best(
    name: NameArgument,
    cell: Annotated[str | None, typer.Option(help="One cell, E.M.T or E.M.T.VARIANT; all otherwise.")] = None,
    storage: Storage = "runs", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Rank the cells of each task (★: recommended), with scores and best setting; --json: every value."""
    from meltpoint.reports.results import results_of
    from meltpoint.reports.trial_view import best_json, best_rows, chosen_cells

    cells = chosen_cells(results_of(read_summary(name, storage)), cell)
    print_rows(best_json(cells) if as_json else best_rows(cells), as_json)


@exit_on_error()
def remove(
    name: NameArgument,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Only the finalists' weights.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False, storage: Storage = "runs",
) -> None:  # fmt: skip
    """Remove a sweep's folder, or only its weights; a running sweep is refused. MLflow's runs stay."""
    from meltpoint.sweeps.results.removal import removable, remove_sweep
    from meltpoint.sweeps.storage.files import readable_storage

    place = readable_storage(storage)
    found = removable(place, name, checkpoints)
    size = f"{found.folder}: {some(found.files, 'file')}, {found.bytes / 1e6:.1f} MB"
    if not yes and not sys.stdin.isatty():
        raise ValueError(f"{size}. Nothing was removed; to remove it, add --yes.")
    if not yes and not typer.confirm(printable(f"Remove {size}?"), err=True):
        raise typer.Exit(FAILED)
    remove_sweep(place, name, found)
    tell(f"removed {size}", err=True)


@exit_on_error()
def compare(
    a: Annotated[str, typer.Argument(help="A sweep's name.", show_default=False)],
    b: Annotated[str, typer.Argument(help="Another sweep's name.", show_default=False)],
    storage: Storage = "runs",
    other_storage: Annotated[str | None, typer.Option("--other-storage", help="Storage of B, if different.")] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compare two sweeps: specification, code, data, and the setting and scores of each common cell."""
    from meltpoint.reports.loaded_sweep import compare_sweeps, comparison_lines

    found = compare_sweeps(read_summary(a, storage), read_summary(b, other_storage or storage))
    if as_json:
        print_json(asdict(found))
        return
    from meltpoint.reports.console_tables import say_lines

    say_lines(comparison_lines(found), Screen())


cache = typer.Typer(no_args_is_help=True, help="The cached hidden states of frozen encoders: list, remove.")


@cache.command("ls")
@exit_on_error()
def cache_list(storage: Storage = "runs", cache_dir: CacheDir = None, as_json: AsJson = False) -> None:
    """List the cached entries, the least recently used first."""
    from meltpoint.sweeps.results.removal import listed
    from meltpoint.sweeps.specification.sweep_options import check_cache_dir
    from meltpoint.sweeps.storage.files import storage_path

    rows = listed(storage_path(storage), check_cache_dir(cache_dir))
    if not as_json:
        for row in rows:
            row["size"] = f"{int(str(row.pop('bytes'))) / 1e6:.1f} MB"
            row["last_used"] = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(row["last_used"]))))
    print_rows(rows, as_json)


@cache.command("rm")
@exit_on_error()
def cache_remove(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids, or prefixes of ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every entry.")] = False,
    storage: Storage = "runs", cache_dir: CacheDir = None,
) -> None:  # fmt: skip
    """Remove entries, except those that a running process is reading."""
    from meltpoint.sweeps.results.removal import remove_entries
    from meltpoint.sweeps.specification.sweep_options import check_cache_dir
    from meltpoint.sweeps.storage.files import storage_path

    removed, kept = remove_entries(storage_path(storage), ids or [], everything, check_cache_dir(cache_dir))
    for entry in removed:
        tell(f"{entry.id} {entry.bytes}")
    for why in kept:
        complain(why)
    if kept:
        raise typer.Exit(FAILED)
