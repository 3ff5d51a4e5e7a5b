"""`meltpoint cache`: list and remove the cached hidden states of frozen encoders in a storage folder."""

from __future__ import annotations

from typing import Annotated

import typer

from meltpoint.sweeps.command_line.errors import FAILED, complain, exit_on_error, print_json
from meltpoint.sweeps.command_line.options import AsJson, CacheDir, Storage
from meltpoint.sweeps.machine.terminal import Screen, tell

cache = typer.Typer(no_args_is_help=True, help="The cached hidden states of frozen encoders: list, remove.")


@cache.command("ls")
@exit_on_error()
def cache_list(storage: Storage = "runs", cache_dir: CacheDir = None, as_json: AsJson = False) -> None:
    """List the cached entries, the least recently used first."""
    from meltpoint.sweeps.command_line.option_values import cache_dir_of
    from meltpoint.sweeps.results.cache import listed, shown
    from meltpoint.sweeps.storage.files import storage_path

    rows = listed(storage_path(storage), cache_dir_of(cache_dir))
    if as_json:
        print_json(rows)
        return
    from meltpoint.reports.screen import show_rows

    show_rows(shown(rows), Screen())


@cache.command("rm")
@exit_on_error()
def cache_remove(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids, or prefixes of ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every entry.")] = False,
    task: Annotated[str | None, typer.Option(help="The entries of this task.")] = None, storage: Storage = "runs",
    cache_dir: CacheDir = None,
) -> None:  # fmt: skip
    """Remove entries, except those that a running process is reading."""
    from meltpoint.sweeps.command_line.option_values import cache_dir_of
    from meltpoint.sweeps.results.cache import remove_entries
    from meltpoint.sweeps.storage.files import storage_path

    done = remove_entries(storage_path(storage), ids or [], task, everything, cache_dir_of(cache_dir))
    for entry in done.removed:
        tell(f"{entry.id} {entry.bytes}")
    for why in done.kept:
        complain(why)
    if done.kept:
        raise typer.Exit(FAILED)
