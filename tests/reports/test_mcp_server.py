"""`meltpoint mcp`: a client of the SDK asks the real server process, and knows only what that tells of its tools."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.commands import look_around
from meltpoint.tests.reports.stored_sweeps import store_sweep, stored

SERVER = ("-m", "meltpoint.launch", "mcp")
ERROR = "CUDA out of memory: tried to allocate 2 GiB"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, make_cell, make_sweep) -> Path:
    """A storage with `small`, which has a clear winner, and `first`, whose trial 7 failed in one of two cells."""
    place = tmp_path_factory.mktemp("storage")
    store_sweep(place, "small", ["accuracy"], [0.6, 0.95], seeds=3)
    cells = [
        make_cell("fine_tuning", search=(0.8, 0.75), failed=[ERROR], finals=[(0.79, 0.78), (0.81, 0.8)]),
        make_cell("feature_extraction", search=(0.7, 0.6), finals=[(0.7, 0.69), (0.7, 0.71)]),
    ]
    ledger = stored(place, make_sweep(*cells))
    for cell in cells:
        for record in cell.records:
            is_seventh = record.status == "failed" or record.dev == 0.6
            ledger.write(record.model_copy(update={"number": 6 if is_seventh else record.number}))
    return place


NAMED = {
    "sweep": r"sweep (\w+)", "trial": r"trial ([\w.]*\w)", "cell": r"cell ([\w.]+\w)", "task": r"task (\w*_\w+)"
}  # fmt: skip
"""Argument → the words with which a question names it."""


class Agent:
    """A scripted client: of the tools that take what a question names, the one whose words are most like it."""

    def __init__(self, client: Client, tools: list[Any]) -> None:
        self.client, self.tools = client, {tool.name: tool for tool in tools}
        self.said: dict[str, Counter[str]] = {
            tool.name: Counter(words(f"{tool.name} {tool.description}")) for tool in tools
        }

    async def answer(self, question: str) -> list[str]:
        """The text of each result on the way to the answer."""
        known = Counter(word for said in self.said.values() for word in said)
        asked = {word: math.log(1 + len(self.said) / known[word]) for word in set(words(question)) & set(known)}
        fitting = [name for name, tool in self.tools.items() if self.fits(question, tool.input_schema)]
        scores = {name: sum(asked[word] for word in asked if word in self.said[name]) for name in fitting}
        tool = self.tools[max(scores, key=lambda name: scores[name])]
        results, arguments = [], {}
        if "sweep" in tool.input_schema["properties"]:
            results.append(await self.call("list_sweeps"))
            (arguments["sweep"],) = [row["name"] for row in json.loads(results[0])["sweeps"] if row["name"] in question]
        arguments |= self.found(question, tool.input_schema["properties"])
        results.append(await self.call(tool.name, **arguments))
        choices = re.findall(r"(\S+) \(([\w.]+), (\w+)\)", results[-1]) if tool.name == "show" else []
        for one in [one for one, _, status in choices if status.removesuffix("ed") in question]:
            results.append(await self.call(tool.name, **{**arguments, "trial": one}))
        return [tool.name, *results]

    @staticmethod
    def fits(question: str, schema: dict[str, Any]) -> bool:
        """True if a tool takes all that a question names, and a sweep only if it names one."""
        named = {key for key, pattern in NAMED.items() if re.search(pattern, question)}
        return named <= set(schema["properties"]) and named >= {"sweep"} & set(schema["properties"])

    @staticmethod
    def found(question: str, properties: dict[str, Any]) -> dict[str, str]:
        """The arguments that a question names."""
        named = {key: re.search(NAMED[key], question) for key in properties if key in NAMED and key != "sweep"}
        listed = {
            key: next((word for word in one["enum"] if word and word in question), None)
            for key, one in properties.items() if "enum" in one
        }  # fmt: skip
        return {key: one[1] for key, one in named.items() if one} | {key: one for key, one in listed.items() if one}

    async def call(self, name: str, /, **arguments: object) -> str:
        result = await self.client.call_tool(name, arguments)
        (content,) = result.content
        return content.text


def words(text: str) -> list[str]:
    """The words of a text without their endings."""
    return [word[:5] for word in re.findall(r"[a-z]{3,}", text.lower().replace("_", " "))]


def session(work: Callable[[Agent], Awaitable[Any]], *options: str, cwd: Path | None = None) -> Any:
    """The result of work with a client of a server process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = StdioServerParameters(command=sys.executable, args=[*SERVER, *options], env=environment, cwd=cwd)

    async def whole() -> Any:
        async with Client(stdio_client(server)) as client:
            return await work(Agent(client, (await client.list_tools()).tools))

    return anyio.run(whole)


TASKS = {
    "Which sweeps are there in the storage, the latest first?": ('"small"', '"first"', '"done"'),
    "Which encoder and mode should I take for each task, after sweep small?": (
        '"mode": "fine_tuning"', '"encoder": "minilm"', "Fine-tune it: 🔥",
    ),
    "How certain is the recommendation of sweep small, with enough evidence?": ('"certainty": "sure"',),
    "What is the best setting of cell minilm.fine_tuning.sst2 in sweep first?": (
        '"batch_size": 32', '"epochs": 3', '"rank": 1',
    ),
    "Why did trial 7 of sweep first fail with an error?": (ERROR,),
    "List trials of sweep first that failed": ('"id": "fine_tuning.sst2.50"', '"number": 7'),
    "How far is sweep first: its state and the time left?": ('"state": "', '"failed": 1', '"missing": 0'),
    "How did each epoch of trial fine_tuning.sst2.0 go, in sweep first?": ('"best_epoch": 2', '"train_loss": 0.5'),
    "Report everything of sweep small, with tables, intervals and warnings, in json": ('"recommendations"', '"p"'),
    "Which kind of encoders does Meltpoint know?": ("modernbert-base", "minilm", '"summary"'),
}  # fmt: skip
"""Question → the parts of the right answer."""


@pytest.fixture(scope="module")
def answers(storage: Path) -> dict[str, list[str]]:
    """Question → the tool and the results that answer it."""

    async def ask(agent: Agent) -> dict[str, list[str]]:
        return {question: await agent.answer(question) for question in TASKS}

    found: dict[str, list[str]] = session(ask, "--storage", str(storage))
    return found


@pytest.mark.parametrize("question", TASKS)
def test_an_agent_that_knows_only_the_descriptions_finds_the_answer(
    question: str, answers: dict[str, list[str]]
) -> None:
    tool, *results = answers[question]
    for part in TASKS[question]:
        assert part in results[-1], (tool, results[-1][:2000])


READING = {"list_sweeps", "recommendation", "best", "status", "list_trials", "show", "report", "list_names"}


def test_bad_input_is_one_line_with_the_remedy_and_without_allow_runs_nothing_can_be_started(storage: Path) -> None:
    wrong = {
        ("status", ("sweep", "frist")): ("No sweep 'frist'", "first, small"),
        ("status", ("name", "first")): ("sweep: Field required",),
        ("best", ("sweep", "first"), ("cell", "minilm.lora.sst2")): ("Cells: minilm.fine_tuning.sst2",),
        ("show", ("sweep", "first"), ("trial", "nine")): ("No cell or trial 'nine'", "best"),
        ("show", ("sweep", "first"), ("trial", 7)): ("id: fine_tuning.sst2.50 (minilm.fine_tuning.sst2, failed",),
        ("list_names", ("kind", "models")): ("'encoders', 'modes'",),
        ("report", ("sweep", "../first")): ("is not a sweep name",),
        ("plan", ("task", "demo_sentiment")): ("Unknown tool: plan",),
        ("tune", ("file", "train.csv")): ("Unknown tool: tune",),
    }  # fmt: skip

    async def ask(agent: Agent) -> None:
        assert set(agent.tools) == READING
        assert all(tool.annotations.read_only_hint for tool in agent.tools.values())
        for (name, *arguments), parts in wrong.items():
            result = await agent.client.call_tool(name, dict(arguments))
            assert result.is_error, (name, arguments)
            (content,) = result.content
            assert "\n" not in content.text
            for part in parts:
                assert part in content.text

    session(ask, "--storage", str(storage))


def test_with_allow_runs_a_plan_has_its_cost_and_bad_data_is_refused_in_a_line(tmp_path: Path, minilm: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\nfine,good\n", encoding="utf-8")

    async def ask(agent: Agent) -> None:
        assert set(agent.tools) == {*READING, "plan", "tune"}
        tool, result = await agent.answer("What would the task demo_sentiment cost before anything runs, in seconds?")
        assert tool == "plan"
        planned = json.loads(result)
        assert planned["estimated_seconds"] > 0
        assert {cell["encoder"] for cell in planned["cells"]} == {"minilm"}
        for name, arguments, part in (
            ("plan", {"task": "sst22"}, "Unknown task 'sst22'"),
            ("plan", {"task": "sst2", "trials": "many"}, "trials: Input should be a valid integer"),
            ("tune", {"file": "none.csv"}, "none.csv is missing"),
            ("tune", {"file": "train.csv"}, "train.csv (csv): no column of labels among text, label."),
            ("tune", {"file": "train.csv", "time_budget": "soon"}, "write 90s, 30m, 2h or 1d"),
        ):
            result = await agent.client.call_tool(name, arguments)
            assert result.is_error
            (content,) = result.content
            assert part in content.text, content.text
            assert "\n" not in content.text

    session(ask, "--allow-runs", "--storage", "runs", cwd=tmp_path)


def test_only_the_protocol_is_on_standard_output(storage: Path) -> None:
    first = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = [("initialize", first), ("tools/call", {"name": "report", "arguments": {"sweep": "small"}})]
    lines = [{"jsonrpc": "2.0", "id": at, "method": name, "params": one} for at, (name, one) in enumerate(asked)]
    lines.insert(1, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    with subprocess.Popen(
        [sys.executable, *SERVER, "--storage", str(storage)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in asked]
        server.stdin.close()
        assert server.stdout.read() == ""
    assert server.returncode == 0
    assert [one["id"] for one in answers] == [0, 1]
    assert "minilm" in answers[1]["result"]["content"][0]["text"]


def test_without_the_sdk_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_around, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["mcp"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "meltpoint: The package mcp is not installed; run pip install 'meltpoint[mcp]'.\n"


@pytest.mark.slow
def test_an_agent_finds_the_best_encoder_and_mode_for_a_file(tmp_path: Path, minilm: Path) -> None:
    rows = [
        f"the {('meal', 'film', 'song')[n % 3]} number {n} was {('dull', 'great')[n % 2]},{'ab'[n % 2]}"
        for n in range(120)
    ]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")

    async def ask(agent: Agent) -> None:
        arguments = {"file": "train.csv", "mode": "feature_extraction,probe", "trials": 2, "seeds": 2, "name": "mine"}
        started = json.loads(await agent.call("tune", **arguments))
        assert started["sweep"] == "mine"
        await done(agent)
        found = json.loads(await agent.call("recommendation", sweep="mine"))
        (one,) = found["recommendations"]
        assert (one["encoder"], one["mode"] in ("feature_extraction", "probe")) == ("minilm", True)
        assert json.loads(await agent.call("tune", **arguments))["sweep"] == "mine", "the same call resumes it"
        await done(agent)

    async def done(agent: Agent) -> None:
        while (state := json.loads(await agent.call("status", sweep="mine"))["state"]) == "running":
            await anyio.sleep(2)
        assert state == "done"

    session(ask, "--allow-runs", "--storage", "runs", cwd=tmp_path)
