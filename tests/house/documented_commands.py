"""The command lines in the code blocks of the documents, and the Python snippets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from meltpoint.tests.house.test_docs import GUIDES, ROOT

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
ENDS = {"||", "&&", "|", ";", ">"}
SHELL = {"sh", "bash", ""}


@dataclass(frozen=True)
class Line:
    """A command line of a document, its continuation lines joined and its comment left out.

    Attributes:
        document: its path in the checkout.
        words: from `meltpoint` or `make` on, up to a pipe or the like.
    """

    document: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The words again, without quotes."""
        return " ".join(self.words)

    def __str__(self) -> str:
        return f"{self.document}: {self.text}"


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
    found = []
    for name, text in documents():
        running = BLOCK.sub("", text)
        for code in re.findall(r"`(meltpoint [^`]+)`", running):
            found.append(Line(name, tuple(shlex.split(" ".join(code.split())))))
    return found


def snippets() -> list[tuple[str, str]]:
    """(document, code) of each block of Python."""
    return [(name, code) for name, text in documents() for code in blocks(text, {"python"})]
