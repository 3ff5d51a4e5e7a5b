"""The command line: `meltpoint COMMAND …` once installed, `python launch.py COMMAND …` in a checkout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated

try:
    import meltpoint
except ImportError:
    sys.exit("launch.py: Meltpoint is not installed here; run `make install`, then .venv/bin/python launch.py …")

import typer

from meltpoint.adapters import process
from meltpoint.reports.commands.browse import best, cache, compare, remove, show
from meltpoint.reports.commands.jobs import logs, stop, submit
from meltpoint.reports.commands.look_around import doctor, features, list_names, new_task, ui
from meltpoint.reports.commands.results import analyse, ensemble, export, predict, report, status, train
from meltpoint.reports.commands.search import demo, plan, sweep, tune
from meltpoint.sweeps.machine.terminal import DONE, accept_any_character, forget_no_columns

COMMANDS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Search": {"tune": tune, "sweep": sweep, "plan": plan, "demo": demo},
    "A sweep on a cluster": {"submit": submit, "logs": logs, "stop": stop},
    "Results": {
        "status": status, "show": show, "best": best, "compare": compare, "report": report, "export": export,
        "ensemble": ensemble, "analyse": analyse, "predict": predict, "train": train,
        "rm": remove,
    },
    "Look around": {
        "new-task": new_task, "features": features, "list": list_names, "doctor": doctor, "ui": ui,
    },
}  # fmt: skip
"""Panel of the help → command → its function. `cache`, a group of commands, follows in the last panel."""

app = typer.Typer(
    name="meltpoint",
    help="Hyperparameter search for adapting pretrained encoders: freeze (❄), fine-tune (🔥), or stack and fine-tune "
    "(❄🔥). Every cell encoder × mode × task is searched on dev; its best setting is scored once on test, over seeds.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        paragraphs = (command.__doc__ or "").split("\n\n")  # each on one line, which the terminal wraps
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        app.command(name, help=text, rich_help_panel=panel)(command)
app.add_typer(cache, name="cache", rich_help_panel="Look around")


def _version(asked: bool) -> None:
    if asked:
        print(f"meltpoint {meltpoint.__version__}")
        raise typer.Exit(DONE)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:  # fmt: skip
    """Options of every command."""


def main() -> None:
    """Run the command line."""
    accept_any_character()
    forget_no_columns()
    process.raise_gc_threshold()
    try:
        app()
    finally:
        process.freeze_heap()


if __name__ == "__main__":
    main()
