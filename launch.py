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

from meltpoint.reports.commands import jobs, look_around, results, search
from meltpoint.sweeps.machine.limits import freeze_heap, raise_gc_threshold
from meltpoint.sweeps.machine.terminal import DONE, accept_any_character, forget_no_columns

COMMANDS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Search": {"tune": search.tune, "sweep": search.sweep, "plan": search.plan, "demo": search.demo},
    "A sweep on a cluster": {"submit": jobs.submit, "logs": jobs.logs, "stop": jobs.stop},
    "Results": {
        "status": results.status, "show": look_around.show, "best": look_around.best, "compare": look_around.compare,
        "report": results.report, "export": results.export, "ensemble": results.ensemble, "analyse": results.analyse,
        "predict": results.predict, "train": results.train, "rm": look_around.remove,
    },
    "Look around": {
        "new-task": look_around.new_task, "features": look_around.features, "list": look_around.list_names,
        "doctor": look_around.doctor, "ui": look_around.ui, "mcp": look_around.mcp,
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
app.add_typer(look_around.cache, name="cache", rich_help_panel="Look around")


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
    raise_gc_threshold()
    try:
        app()
    finally:
        freeze_heap()


if __name__ == "__main__":
    main()
