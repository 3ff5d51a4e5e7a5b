"""Hooks of the site: its pages are the repository's documents where they stand, and one made of the command line.

`mkdocs.yml` beside this file names it; `make docs` runs both. Links between documents are the same in the checkout and
in the site, because every file keeps its place: README.md is the site's front page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from markdown.blockprocessors import build_block_parser
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("*.md", "docs/**/*.md", "deploy/**/*.md", "benchmarks/*.md", "examples/*.md")
LINK = re.compile(r"\]\(([^)#\s:]+)[^)]*\)|^\[\w+\]: ([^\s:]+)$", re.MULTILINE)
REMOTE = "https://raw.githubusercontent.com/meltpoint/meltpoint/main/"
"""README names its picture by an absolute address, for the package's page; the site has the file."""

sys.path.insert(0, str(Path(__file__).parent))
from options_page import OPTIONS, options_page  # noqa: E402 – a hook is no module of a package


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
