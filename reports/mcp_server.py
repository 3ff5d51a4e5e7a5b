"""`meltpoint mcp`: sweeps for agents, by the Model Context Protocol over standard input and output.

The descriptions of the tools are their docstrings; an agent reads nothing else. The SDK sends everything that this
process prints to standard error, so that only the protocol is on standard output.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import Field, ValidationError

from meltpoint import __version__
from meltpoint.reports.commands.results import read_view
from meltpoint.reports.findings import sweep_rows
from meltpoint.reports.python_api import name_of, options_of
from meltpoint.reports.report import report
from meltpoint.reports.results import results_of
from meltpoint.reports.trial_view import best_json, best_of_cell, chosen_cells, find_trial
from meltpoint.sweeps.command_line.listing import inventory
from meltpoint.sweeps.command_line.submission import PYTHON
from meltpoint.sweeps.command_line.typer_options import as_words
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.machine.terminal import BAD_INPUT, DONE, shortened
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.specification.tracking_uri import redacted
from meltpoint.sweeps.storage.files import readable_storage, sweep_folder
from meltpoint.tasks.core.files import parse_json

PATIENCE_SECONDS = 45.0
"""The longest wait for a search to begin: clients give up a call after a minute."""

INSTRUCTIONS = """\
Meltpoint finds out how to adapt a pretrained text encoder (BERT, MiniLM, …) to a task: keep it frozen
(feature_extraction), fine-tune it (fine_tuning), or train a head first and then fine-tune (stack_and_finetune). A
sweep is one search, kept under a name. Its cells are ENCODER.MODE.TASK; each cell tries several settings (trials),
chooses the best by its score on dev, trains that setting again over seeds (finals), and scores those once on test.
Scores are fractions from 0 to 1 unless the metric is an error. Begin with list_sweeps; recommendation answers which
mode and encoder to take."""

Sweep = Annotated[str, Field(description="A sweep's name, from list_sweeps.")]
Word = Annotated[str, Field(description="A name, or several with commas; empty for Meltpoint's own choice.")]
Count = Annotated[int, Field(description="A number of at least 1; 0 for Meltpoint's own choice.")]
Kind = Literal["encoders", "modes", "tasks", "heads", "tricks", "spaces", "specs"]


class Server(MCPServer[Any]):
    """A server whose errors are one line with the remedy."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool.

        Raises:
            ToolError: bad input, or a storage that cannot be read; the client gets the message.
        """
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                first = cause.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"]))
                message = f"{name}: {place}: {first['msg']}; see the tool's arguments."
            elif isinstance(cause, ValueError | OSError):
                message = str(cause)
            else:
                raise
            raise ToolError(redacted(shortened(" ".join(message.split())))) from None


class Tools:
    """The tools on one storage."""

    def __init__(self, storage: str) -> None:
        self._storage = storage

    def list_names(self, kind: Kind) -> dict[str, Any]:
        """List what Meltpoint knows of one kind: encoders, modes, tasks (shipped data sets), heads, tricks, spaces
        (the values that are searched) or specs (papers' experiments). Each row has a name and what it is."""
        return {kind: inventory(kind)}

    def list_sweeps(self) -> dict[str, Any]:
        """List the sweeps (searches) of this storage, the latest first: name, state (running, done, stopped, failed),
        encoders, modes, tasks, and how many of their trials and cells are done."""
        return {"sweeps": sweep_rows(readable_storage(self._storage))}

    def status(self, sweep: Sweep) -> dict[str, Any]:
        """Show a sweep's progress: its state (running, done, stopped, failed), the time left while it runs, and for
        each cell its trials by state, its best trial so far, and the scores of its finals over seeds."""
        return read_view(sweep, self._storage).as_json()

    def recommendation(self, sweep: Sweep) -> dict[str, Any]:
        """Answer which encoder and mode to take for each task of a sweep: a sentence, how certain it is (sure, level:
        as good as the best and cheaper, provisional: too little evidence), and all candidates ranked with their scores.
        The list is empty until finals have ended; status tells when."""
        summary = read_view(sweep, self._storage)
        found = [one.as_json() for one in results_of(summary).recommendations]
        return {"sweep": summary.name, "state": summary.state, "recommendations": found}

    def best(
        self, sweep: Sweep, cell: Annotated[str, Field(description="ENCODER.MODE.TASK; all cells if empty.")] = ""
    ) -> dict[str, Any]:
        """Show the best setting (hyperparameters) of each cell of a sweep, the best cell of each task first, with its
        scores on dev and test, rank, trial id, training time and sizes."""
        return {"cells": best_json(chosen_cells(results_of(read_view(sweep, self._storage)), cell or None))}

    def list_trials(
        self, sweep: Sweep,
        status: Annotated[
            Literal["", "finished", "stopped", "failed"], Field(description="Only these trials; all if empty.")
        ] = "",
    ) -> dict[str, Any]:  # fmt: skip
        """List the trials of a sweep: id, number within the cell, cell, role (search, or final: the best setting again
        with another seed), status, score on dev, seconds. show tells the rest of one, such as why it failed."""
        rows = [
            {"id": one.id, "number": one.number + 1, "cell": cell_name(*one.cell), "role": one.role,
             "status": one.status, "dev": one.dev, "seconds": one.seconds}
            for one in self._records(sweep) if status in ("", one.status)
        ]  # fmt: skip
        return {"trials": rows}

    def show(
        self, sweep: Sweep,
        trial: Annotated[str | int, Field(description="A trial's id, its number, or a cell, for its best trial.")],
    ) -> dict[str, Any]:  # fmt: skip
        """Show one trial in full: setting, scores of each epoch, time, hardware, and if it failed, its error."""
        trial = str(trial)
        found = best_of_cell(read_view(sweep, self._storage), trial)
        if found is None:
            records = self._records(sweep)
            numbered = [one for one in records if str(one.number + 1) == trial and one.role == "search"]
            if len(numbered) > 1:
                named = "; ".join(f"{one.id} ({cell_name(*one.cell)}, {one.status})" for one in numbered)
                raise ValueError(f"Each cell has a trial {trial}; name one by its id: {named}.")
            found = numbered[0] if numbered else find_trial(records, sweep, trial)
        return {**found.model_dump(mode="json"), "number": found.number + 1}  # as list_trials and all tables count

    def report(
        self, sweep: Sweep,
        format: Annotated[
            Literal["md", "json"], Field(description="md to read, json with every difference and interval.")
        ] = "md",
    ) -> str:  # fmt: skip
        """Report everything on a sweep: recommendations, tables of all cells, intervals and p-values, costs,
        warnings."""
        return report(read_view(sweep, self._storage), format)

    def _records(self, sweep: str) -> list[TrialRecord]:
        return [record for cell in read_view(sweep, self._storage).cells for record in cell.records]

    async def plan(
        self,
        task: Annotated[str, Field(description="A name of list_names tasks, or a task file, task.yaml.")],
        encoder: Word = "", mode: Word = "", trials: Count = 0, seeds: Count = 0, max_train_examples: Count = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Show what a sweep would do and cost before anything runs: its cells, how many trials, estimated seconds. It
        trains nothing, but reads the data, which may be downloaded."""
        words = _command(
            "plan", task=task, encoder=encoder, mode=mode, trials=trials, seeds=seeds,
            max_train_examples=max_train_examples, storage=self._storage,
        )  # fmt: skip
        done = await anyio.run_process([*words, "--json"], check=False, stdin=subprocess.DEVNULL)
        if done.returncode != DONE:
            raise ValueError(_last_line(done.stderr.decode(errors="replace")))
        planned: dict[str, Any] = parse_json(done.stdout)
        return planned

    async def tune(
        self,
        file: Annotated[str, Field(description="Labelled examples: csv, tsv, jsonl, parquet or conll.")],
        test: Annotated[str, Field(description="A file of test examples; else a part of file is kept for it.")] = "",
        name: Annotated[str, Field(description="The sweep's name; else the file's.")] = "",
        text: Annotated[list[str] | None, Field(description="Text column, two for pairs. Default: detected.")] = None,
        label: Annotated[str, Field(description="Label column. Default: detected.")] = "",
        kind: Annotated[str, Field(description="Task kind, such as pair_classification. Default: detected.")] = "",
        group: Annotated[str, Field(description="The column of documents or authors, kept together in splits.")] = "",
        encoder: Word = "", mode: Word = "", trials: Count = 0, seeds: Count = 0,
        time_budget: Annotated[str, Field(description="The longest time, as 10m or 2h; no limit if empty.")] = "",
        max_train_examples: Count = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Start a sweep on a file of labelled examples: it tries freezing and fine-tuning an encoder, recommends one
        and keeps the model. It takes minutes to hours: the call returns when the search has begun, which goes on by
        itself. Ask status for the returned sweep until its state is done, then recommendation. The same call resumes
        a sweep that was stopped."""
        name = name or name_of({"train": Path(file)})
        words = _command(
            "tune", name=name, encoder=encoder, mode=mode, trials=trials, seeds=seeds, time_budget=time_budget,
            max_train_examples=max_train_examples, storage=self._storage,
        )  # fmt: skip
        columns = [*(("text", column) for column in text or ()), ("label", label), ("kind", kind), ("group", group)]
        words += [f"--{option}={value}" for option, value in columns if value]
        words += ["--", file, *([test] if test else [])]
        ledger = Ledger(sweep_folder(readable_storage(self._storage), name))
        if ledger.specification.exists() and ledger.is_driven():
            raise ValueError(f"Sweep '{name}' is running already; ask status for it.")
        with tempfile.NamedTemporaryFile(prefix=f"meltpoint-{Path(name).name}-", suffix=".log", delete=False) as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,  # the search outlives this server
            )  # fmt: skip
        with anyio.move_on_after(PATIENCE_SECONDS):
            while process.poll() is None and not (ledger.specification.exists() and ledger.is_driven()):
                await anyio.sleep(0.2)
        if process.poll() not in (None, DONE):
            output = Path(log.name).read_text(encoding="utf-8", errors="replace")
            again = "" if process.returncode == BAD_INPUT else f" The output is in {log.name}."
            raise ValueError(_last_line(output) + again)
        state = "running" if process.returncode is None else "done"
        return {"sweep": name, "state": state, "log": log.name, "to_stop": f"kill -INT {process.pid}"}


def _command(command: str, **options: Any) -> list[str]:
    """The words of a command; options that are empty are left to Meltpoint."""
    asked = {option: value for option, value in options.items() if value}
    return [sys.executable, *PYTHON[1:], command, *as_words(options_of(asked))]


def _last_line(output: str) -> str:
    """The error that a command ended with."""
    lines = [line for line in output.splitlines() if line.strip()] or ["it ended without a word"]
    errors = [line.removeprefix("meltpoint: ") for line in lines if line.startswith("meltpoint: ")]
    return (errors or lines)[-1]


def serve(storage: str, allow_runs: bool) -> None:
    """Serve the tools on standard input and output until the client closes them.

    Args:
        storage: the folder or object store of the sweeps.
        allow_runs: whether there are tools that start processes: `plan` and `tune`.
    """
    server = Server("meltpoint", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR")
    tools = Tools(storage)
    reading: Sequence[Callable[..., Any]] = (
        tools.list_sweeps, tools.recommendation, tools.best, tools.status, tools.list_trials, tools.show, tools.report,
        tools.list_names,
    )  # fmt: skip
    for tool in (*reading, *((tools.plan, tools.tune) if allow_runs else ())):
        server.add_tool(
            tool, description=" ".join((tool.__doc__ or "").split()),
            annotations=ToolAnnotations(read_only_hint=tool in reading, destructive_hint=False),
            structured_output=False if tool == tools.report else None,  # a text, which would be sent twice
        )  # fmt: skip
    server.run("stdio")
