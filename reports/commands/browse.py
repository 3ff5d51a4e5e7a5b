"""The commands `show`, `best`, `rm`, `compare` and `cache`."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from meltpoint.reports.commands.results import read_summary, read_view
from meltpoint.sweeps.command_line.typer_options import AsJson, CacheDir, NameArgument, Storage
from meltpoint.sweeps.machine.terminal import FAILED, Screen, complain, exit_on_error, print_json, tell
from meltpoint.tasks.core.wording import printable, some


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
    from meltpoint.reports.layout import say_lines

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
    if as_json:
        print_json(best_json(cells))
        return
    from meltpoint.reports.layout import show_rows

    show_rows(best_rows(cells), Screen())


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
    from meltpoint.reports.sweep_comparison import compare_sweeps, lines

    found = compare_sweeps(read_summary(a, storage), read_summary(b, other_storage or storage))
    if as_json:
        print_json(found.as_json())
        return
    from meltpoint.reports.layout import say_lines

    say_lines(lines(found), Screen())


cache = typer.Typer(no_args_is_help=True, help="The cached hidden states of frozen encoders: list, remove.")


@cache.command("ls")
@exit_on_error()
def cache_list(storage: Storage = "runs", cache_dir: CacheDir = None, as_json: AsJson = False) -> None:
    """List the cached entries, the least recently used first."""
    from meltpoint.sweeps.results.removal import listed
    from meltpoint.sweeps.specification.sweep_options import check_cache_dir
    from meltpoint.sweeps.storage.files import storage_path

    rows = listed(storage_path(storage), check_cache_dir(cache_dir))
    if as_json:
        print_json(rows)
        return
    from meltpoint.reports.layout import show_rows

    for row in rows:
        row["size"] = f"{int(str(row.pop('bytes'))) / 1e6:.1f} MB"
        row["last_used"] = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(row["last_used"]))))
    show_rows(rows, Screen())


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
