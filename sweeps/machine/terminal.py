"""Output of all commands: control characters are shown as `\\u001b`, and never reach the terminal.

Files and their text stay unchanged. In JSON on standard output, this is another spelling of the same value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from meltpoint.tasks.core.wording import printable, printable_lines


def tell(line: object, err: bool = False) -> None:
    """Print one line, on standard output or standard error."""
    show(printable(str(line)) + "\n", err)


def show(text: str, err: bool = False) -> None:
    """Print a text of several lines, without an added newline."""
    stream = sys.stderr if err else sys.stdout
    stream.write(printable_lines(text))
    stream.flush()


class Screen(Console):
    """A console for texts of any origin: it interprets no markup, emoji or control character in them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of a renderable; colours and cursor moves are added later."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)
