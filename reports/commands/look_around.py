"""The commands that need no sweep: `new-task`, `features`, `list`, `doctor` and `ui`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meltpoint.reports.commands.results import show_sweeps
from meltpoint.sweeps.command_line.typer_options import (
    Address,
    AsJson,
    DataDir,
    Group,
    Listable,
    Storage,
    TrackingUri,
)
from meltpoint.sweeps.machine.terminal import FAILED, Screen, exit_on_error, print_json, show, tell

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
    from meltpoint.sweeps.command_line.spec_from_options import encoder_name
    from meltpoint.sweeps.specification.early_checks import check_features

    name = encoder_name(encoder)
    check_features(name, file, layers)
    from meltpoint.adapters.features.npz_file import write_features  # torch, which takes seconds

    written = write_features(name, file, out, layers)
    tell(f"{written.in_words()} → {out}", err=True)


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
    from meltpoint.sweeps.storage.files import readable_storage

    if (encoder or task or head) and not mode:
        raise ValueError(
            "--encoder, --task and --head need --mode, as in: list spaces --mode fine_tuning --encoder minilm."
        )
    if mode and what != "spaces":
        raise ValueError(f"--mode is for spaces, not for {what or 'nothing'}; see: list spaces --mode {mode}.")
    rows = parameters_of_cell(mode, encoder or ANY_ENCODER, task, head) if mode else inventory(what) if what else []
    if not what:
        names = sorted(path.parent.name for path in readable_storage(storage).glob("*/sweep.json"))
        rows = [*overview(), {"list": "sweeps", "count": len(names), "for example": names[:2]}]
    if as_json:
        print_json(rows)
        return
    from meltpoint.reports.layout import show_rows

    show_rows(rows, Screen())


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
def new_task(
    files: Annotated[list[str], typer.Argument(help="Files of examples.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help="The task file to write; else it is printed.")] = None,
    group: Group = "",
) -> None:
    """Inspect files of examples and draft the task file that reads them, for you to correct."""
    from meltpoint.tasks.inspection import new_task as inspection

    text = inspection.new_task(files, out, group)
    if out is None:
        show(text)
    else:
        tell(f"{out} is a guess; correct it, then run: meltpoint plan --task {out}", err=True)
