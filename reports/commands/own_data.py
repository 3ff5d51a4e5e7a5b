"""The command on a person's own data: `new-task`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meltpoint.sweeps.command_line.errors import exit_on_error, print_json
from meltpoint.sweeps.command_line.options import AsJson, Group
from meltpoint.sweeps.machine.terminal import show, tell


@exit_on_error()
def new_task(
    files: Annotated[list[str], typer.Argument(help="Files of examples, or a folder of them.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help="The task file to write; else it is printed.")] = None,
    group: Group = "",
    as_json: AsJson = False,
) -> None:
    """Look at files of examples and write the task file that reads them, for you to correct."""
    from meltpoint.tasks.inspection import new_task as inspection

    made = inspection.new_task(files, out, group)
    if as_json:
        print_json(made.document())
    elif out is None:
        show(made.text)
    if out is not None:
        tell(f"{out}: guesses; correct what is wrong, then: meltpoint plan --task {out}", err=True)
