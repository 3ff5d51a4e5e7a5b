"""Every command in the documents is one that the parser takes; every name in a snippet exists."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

import meltpoint
from meltpoint import tasks
from meltpoint.adapters import modes
from meltpoint.launch import app
from meltpoint.reports import analyses
from meltpoint.sweeps.specification import spec_files
from meltpoint.tests.house.test_docs import GUIDES, ROOT

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
ENDS = {"||", "&&", "|", ";", ">"}
SHELL = {"sh", "bash", ""}


@dataclass(frozen=True)
class Line:
    """A command line of a document (its path), continued lines joined: the words up to a pipe, without comments."""

    document: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document}: {' '.join(self.words)}"


def documents() -> Iterator[tuple[str, str]]:
    """(path, text) of each document but the log, whose commands are those of their day."""
    for guide in GUIDES:
        name = guide.relative_to(ROOT).as_posix()
        if name not in {"docs/internals/log.md", "CHANGELOG.md"}:
            yield name, guide.read_text(encoding="utf-8")


def blocks(text: str, languages: set[str]) -> Iterator[str]:
    """The code blocks of some languages."""
    for _, language, code in BLOCK.findall(text):
        if language in languages:
            yield code


def lines(program: str) -> list[Line]:
    """The command lines of a program in all documents."""
    return [
        Line(name, words)
        for name, text in documents()
        for code in blocks(text, SHELL)
        for words in commands(code, program)
    ]


def commands(code: str, program: str) -> Iterator[tuple[str, ...]]:
    """The words of each call of a program in a block of shell."""
    for line in code.replace("\\\n", " ").splitlines():
        if not re.search(rf"(^|[/\s]){program}\s", line):
            continue
        words = shlex.split(line, comments=True)
        named = [at for at, word in enumerate(words) if Path(word).name == program]
        start = next((at for at in named if not words[at - 1].startswith("-") or at == 0), None)  # an option's value
        if start is not None:
            rest = words[start + 1 :]
            end = next((at for at, word in enumerate(rest) if word in ENDS), len(rest))
            yield (program, *rest[:end])


def inline_commands() -> list[Line]:
    """The `meltpoint …` in running text."""
    return [
        Line(name, tuple(shlex.split(" ".join(code.split()))))
        for name, text in documents()
        for code in re.findall(r"`(meltpoint [^`]+)`", BLOCK.sub("", text))
    ]


def snippets() -> list[tuple[str, str]]:
    """(document, code) of each block of Python."""
    return [(name, code) for name, text in documents() for code in blocks(text, {"python"})]


KNOWN = {
    "task": lambda: tasks.names(), "mode": lambda: [*modes.names(), modes.LADDER], "analysis": lambda: analyses.names(),
    "spec": spec_files.shipped,
}  # fmt: skip
"""Parameter → the names that it takes, beside files and placeholders in capitals."""


def parsed(words: tuple[str, ...]) -> dict[str, Any]:
    """The values of a command line, by the parser itself; what the documents leave out as `…` is left out."""
    command: Any = typer.main.get_command(app)
    context = None
    name, *rest = words
    while hasattr(command, "commands"):
        context = command.make_context(name, ["doctor"], parent=context, resilient_parsing=True)
        name = rest.pop(0)
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    given = [word for at, word in enumerate(rest) if word != "…" or (at and rest[at - 1].startswith("--"))]
    return dict(command.make_context(name, given, parent=context).params)


def strangers(values: dict[str, Any]) -> list[str]:
    """The names among the values that nothing in Meltpoint has."""
    found = []
    for parameter, names in KNOWN.items():
        value = values.get(parameter) or []
        for text in [value] if isinstance(value, str) else value:
            for name in str(text).split(","):
                base = re.split(r"[:+]", name)[0]
                if base not in names() and not re.search(r"\.ya?ml$|^[A-Z]+$|^…$", name):
                    found.append(name)
    return found


@pytest.mark.parametrize("line", lines("meltpoint"), ids=str)
def test_the_parser_takes_every_command_of_a_document(line: Line) -> None:
    assert strangers(parsed(line.words)) == []


@pytest.mark.parametrize("line", inline_commands(), ids=str)
def test_a_command_in_running_text_has_no_word_that_is_not_there(line: Line) -> None:
    whole: Any = typer.main.get_command(app)
    words = [word.strip("[]") for word in line.words[1:]]
    if words[0].startswith("-") or words[0] == "COMMAND":
        assert {"--help", "--version", "--install-completion", "COMMAND"} >= set(words)
        return
    assert words[0] in whole.commands, line
    command = whole.commands[words[0]]
    command = command.commands[words[1]] if hasattr(command, "commands") else command
    taken = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in taken] == []


def test_a_wrong_command_is_found() -> None:
    (words,) = commands("x/meltpoint sweep --nam a\\\n --trials 3 | head   # a comment", "meltpoint")
    assert words == ("meltpoint", "sweep", "--nam", "a", "--trials", "3")
    with pytest.raises(Exception, match="No such option"):
        parsed(words)
    with pytest.raises(AssertionError, match="no command sweeep"):
        parsed(("meltpoint", "sweeep"))
    with pytest.raises(Exception, match="valid integer"):
        parsed(("meltpoint", "sweep", "--seeds", "many"))
    assert strangers(parsed(("meltpoint", "sweep", "--task", "sst22,mnli:travel,a.yaml", "--mode", "M"))) == ["sst22"]


@pytest.mark.parametrize("line", lines("make"), ids=str)
def test_make_knows_every_target_and_variable_of_a_document(line: Line) -> None:
    _, target, *words = line.words
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"\b([A-Z]+)=", " ".join(words)) if f"$({name})" not in makefile] == []


@pytest.mark.parametrize(("document", "code"), snippets(), ids=[name for name, _ in snippets()])
def test_every_name_of_meltpoint_in_a_snippet_exists(document: str, code: str) -> None:
    tree = ast.parse(code)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mp"
    }
    assert used <= set(meltpoint.__all__), document
