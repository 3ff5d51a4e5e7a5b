"""All that commands print goes through here: control characters are shown as `\\u001b`, and never reach the terminal.

Files and their text are not changed, but for JSON on standard output, where that is another spelling of the same value.
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
    """Print a text of several lines, as it ends."""
    stream = sys.stderr if err else sys.stdout
    stream.write(printable_lines(text))
    stream.flush()


class Screen(Console):
    """A console for texts of any origin: no markup, emoji or control character in them has a meaning."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of a renderable; colours and the cursor's moves are added to them later."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)
