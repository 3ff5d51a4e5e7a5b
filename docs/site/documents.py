"""Hooks of the site: its pages are the repository's documents where they stand, and one made of the command line.

`mkdocs.yml` beside this file names it; `make docs` runs both. Links between documents are the same in the checkout and
in the site, because every file keeps its place: README.md is the site's front page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from markdown import Extension, Markdown
from markdown.blockprocessors import build_block_parser
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from meltpoint.launch import app

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("*.md", "docs/**/*.md", "deploy/**/*.md", "benchmarks/*.md", "examples/*.md")
LINK = re.compile(r"\]\(([^)#\s:]+)[^)]*\)|^\[\w+\]: ([^\s:]+)$", re.MULTILINE)
REMOTE = "https://raw.githubusercontent.com/meltpoint/meltpoint/main/"
"""README names its picture by an absolute address, for the package's page; the site has the file."""


class TwoSpaces(Extension):
    """Lists inside lists by two spaces, as CommonMark and GitHub have them; Python-Markdown wants four."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 – Python-Markdown's name
        """Set the width of a step of indentation, which the block parser reads when it is made."""
        md.tab_length = 2
        md.parser = build_block_parser(md)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read Markdown as GitHub does."""
    extensions: list[Any] = config.markdown_extensions  # names and extensions, though mkdocs says names
    extensions.insert(0, TwoSpaces())  # the first, for others add to the block parser
    return config


def on_page_markdown(markdown: str, **others: Any) -> str:
    """A page's text with the repository's own files in place of their addresses."""
    return markdown.replace(REMOTE, "")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents, what they link to, and the page of every option."""
    guides = [guide for pattern in GUIDES for guide in sorted(ROOT.glob(pattern))]
    for path in dict.fromkeys([*guides, *(file for guide in guides for file in linked_files(guide))]):
        name = path.relative_to(ROOT).as_posix()
        if name != OPTIONS:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, OPTIONS, content=options_page()))
    return files


def linked_files(guide: Path) -> Iterator[Path]:
    """The pictures and other files of the repository that a document links to."""
    for inline, reference in LINK.findall(guide.read_text(encoding="utf-8").replace(REMOTE, "")):
        path = (guide.parent / (inline or reference)).resolve()
        if path.suffix != ".md" and path.is_file() and path.is_relative_to(ROOT):
            yield path


# The page of every option: Markdown, made of the command line's own parser.

OPTIONS = "docs/options.md"
"""The page's place in the site. The file is never written."""

FIRST = "sweep"
"""The command whose options others have too; theirs are not said again."""

BAR = "\\|"
"""A bar inside a table's cell."""

INTRODUCTION = """\
# Every option

Made of the command line itself, so it says what `meltpoint COMMAND --help` says. `python launch.py COMMAND …` is the
same thing in a checkout. Exit status: 0 done, 1 the work failed, 2 bad input or usage.
"""


def options_page() -> str:
    """The page as Markdown: each panel of the help, its commands, and the arguments and options of each."""
    whole = typer.main.get_command(app)
    context: Any = whole.make_context("meltpoint", ["doctor"], resilient_parsing=True)
    first = dict(_named(whole))[FIRST]
    parts = [INTRODUCTION]
    for panel, commands in groupby(_named(whole), key=lambda pair: str(pair[1].rich_help_panel)):
        parts.append(f"## {panel}\n")
        parts += [_command(name, command, first, context) for name, command in commands]
    return "\n".join(parts)


def _named(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """(name, command) of each, in the order of the help; those of a group by the group's name and their own."""
    for name, command in group.commands.items():
        inside = getattr(command, "commands", None)
        if inside is None:
            yield f"{before}{name}", command
        else:
            for own, one in _named(command, f"{name} "):
                one.rich_help_panel = command.rich_help_panel
                yield own, one


def _command(name: str, command: Any, first: Any, parent: Any) -> str:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    said = {} if command is first else _options(first, context)
    own = {row: group for row, group in _options(command, context).items() if row not in said}
    lines = [f"### meltpoint {name}\n", *_prose(command.help or "")]
    shared = len(_options(command, context)) - len(own)
    if shared > len(said) / 2:
        lines.append(_as_first(command, first, context))
    else:
        own = _options(command, context)
    for heading in dict.fromkeys(own.values()):
        rows = [row for row, group in own.items() if group == heading]
        lines += [f"| {heading} | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _options(command: Any, context: Any) -> dict[str, str]:
    """Row of the table of each argument and option → its group, those of the help without a panel last."""
    shown = [one for one in command.get_params(context) if one.name != "help" and not one.hidden]
    rows = {_row(one, context): _group(one) for one in shown}
    return dict(sorted(rows.items(), key=lambda pair: pair[1] == "option"))


def _as_first(command: Any, first: Any, context: Any) -> str:
    """The sentence that says which options are those of the first command."""
    names = {one.name for one in command.get_params(context)}
    absent = [f"`{one.opts[0]}`" for one in first.get_params(context) if one.name not in names]
    but = f", but {', '.join(absent)}" if absent else ""
    return f"The options of [`meltpoint {FIRST}`](#meltpoint-{FIRST}){but}; and:\n"


def _group(parameter: Any) -> str:
    return "argument" if parameter.param_type_name == "argument" else str(parameter.rich_help_panel or "option")


def _prose(text: str) -> Iterator[str]:
    """A command's help: paragraphs, and its examples as code."""
    for line in text.splitlines():
        said, colon, command = line.partition(": meltpoint ")
        yield f"{said}:\n\n```sh\nmeltpoint {command}\n```\n" if colon else line
    yield ""


def _row(parameter: Any, context: Any) -> str:
    names, says = parameter.get_help_record(context)
    return f"| `{names.replace('|', BAR)}` | {says.replace('|', BAR).replace('<', '&lt;')} |"
