"""The guides as a site: built strictly and without a network, loads nothing from elsewhere, reads as on GitHub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from markdown_it import MarkdownIt

from meltpoint.launch import app
from meltpoint.tests.house.test_docs import GUIDES, ROOT

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mkdocs", "material")), reason="mkdocs-material is not installed"
)

ALONE = """
import socket
def refuse(*_):
    raise OSError("no network")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""
"""mkdocs in a process that reaches no other machine."""

STRUCTURE = ("h1", "h2", "h3", "h4", "ol", "ul", "li", "table", "tr", "td", "pre", "code", "strong", "img")


class Seen(HTMLParser):
    """The elements of a page's article, and what the whole page loads.

    Attributes:
        elements: those of `STRUCTURE`, by name.
        loaded: addresses of scripts, styles, pictures and frames.
    """

    def __init__(self, html: str, whole: bool = False) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.loaded: list[str] = []
        self._inside = whole
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._inside = self._inside or tag == "article"
        if self._inside:
            self.elements[tag] += tag in STRUCTURE
        if tag != "a" and (tag != "link" or values.get("rel") not in {"canonical", "next", "prev"}):
            self.loaded += [values[name] for name in ("src", "href", "srcset", "data", "action") if name in values]

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "article"


def build(out: Path, config: Path) -> subprocess.CompletedProcess[str]:
    words = ["build", "--strict", "--config-file", str(config), "--site-dir", str(out)]
    return subprocess.run(
        [sys.executable, "-c", ALONE, *words], capture_output=True, encoding="utf-8", timeout=120, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    out = tmp_path_factory.mktemp("site")
    built = build(out, ROOT / "docs" / "site" / "mkdocs.yml")
    assert built.returncode == 0, built.stderr
    return out


def place(guide: Path) -> Path:
    """Where a guide's page lies in the site."""
    name = guide.relative_to(ROOT)
    return name.parent / "index.html" if name.name == "README.md" else name.with_suffix(".html")


def test_every_guide_is_a_page(site: Path) -> None:
    assert [guide for guide in GUIDES if not (site / place(guide)).is_file()] == []


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    seen = Seen('<script src="//a.org/b.js"></script><link href="https://c.org/d.css" rel="stylesheet"><a href="e">')
    assert seen.loaded == ["//a.org/b.js", "https://c.org/d.css"]
    loaded = {url for page in site.rglob("*.html") for url in Seen(page.read_text(encoding="utf-8")).loaded}
    assert any(url.endswith(".js") for url in loaded)
    assert [url for url in loaded if re.match(r"(\w+:)?//", url)] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\"']*", styles) == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_has_the_lists_tables_and_code_that_the_document_has_elsewhere(site: Path, guide: Path) -> None:
    expected = Seen(MarkdownIt("commonmark").enable("table").render(guide.read_text(encoding="utf-8")), whole=True)
    page = (site / place(guide)).read_text(encoding="utf-8")
    assert Seen(page).elements == expected.elements


def commands() -> dict[str, object]:
    """Every command by its whole name, as the parser has it."""
    whole = typer.main.get_command(app)
    found = {}
    for name, command in whole.commands.items():  # type: ignore[attr-defined]
        inside = getattr(command, "commands", None)
        found |= {name: command} if inside is None else {f"{name} {own}": one for own, one in inside.items()}
    return found


def test_the_page_of_options_has_every_command_and_every_option_and_each_says_something(site: Path) -> None:
    text = re.sub(r"<[^>]*>", "", (site / "docs" / "options.html").read_text(encoding="utf-8"))
    for name, command in commands().items():
        assert f"meltpoint {name}" in text
        for parameter in command.params:  # type: ignore[attr-defined]
            assert parameter.help, f"{name}: {parameter.name} has no help"
            assert all(option in text for option in parameter.opts if option.startswith("-")), parameter.opts
    assert text.count("--no-default-finals") == text.count("--cache-keep TEXT") == 1, "commands share it with sweep"
