"""Output of all commands, their one-line errors and exit statuses. Imports nothing heavy.

Control characters are shown as `\u001b`, and never reach the terminal. Files and their text stay unchanged. In JSON on
standard output, this is another spelling of the same value.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from meltpoint.sweeps.machine.signals import status_of
from meltpoint.sweeps.specification.tracking_uri import redacted
from meltpoint.tasks.core.wording import printable, printable_lines

UNREAD = {errno.EPIPE, errno.EIO}
"""The errors of a stream that nobody reads any more: a closed pipe, the terminal of a session that has ended."""


def tell(line: object, err: bool = False) -> None:
    """Print one line, on standard output or standard error."""
    show(printable(str(line)) + "\n", err)


def show(text: str, err: bool = False) -> None:
    """Print a text of several lines, without an added newline."""
    stream = sys.stderr if err else sys.stdout
    try:
        stream.write(printable_lines(text))
        stream.flush()
    except OSError as error:
        if error.errno not in UNREAD:
            raise
        _closed(stream, err)


def _closed(stream: TextIO, err: bool) -> None:
    """Send what follows to nowhere, since nobody reads a stream any more: a sweep goes on without its messages.

    Raises:
        BrokenPipeError: it is standard output; `exit_on_error` ends most commands.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if not err:
        raise BrokenPipeError


class Screen(Console):
    """A console for texts of any origin: it interprets no markup, emoji or control character in them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of a renderable; colours and cursor moves are added later."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, also where the terminal of a session has gone."""
        with self._unread():
            super().print(*objects, **options)

    def __exit__(self, *error: Any) -> None:
        """Write what a live display has put together."""
        with self._unread():
            super().__exit__(*error)

    @contextmanager
    def _unread(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in UNREAD:
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """As for plain lines; rich would end the program."""
        _closed(sys.stderr if self.stderr else sys.stdout, self.stderr)


DONE, FAILED, BAD_INPUT = 0, 1, 2


def forget_no_columns() -> None:
    """Remove COLUMNS=0, with which rich shows nothing; some terminals set it before they have a size."""
    if os.environ.get("COLUMNS", "").strip() == "0":
        del os.environ["COLUMNS"]


def accept_any_character() -> None:
    """Make standard output and error accept every character in any locale.

    A file or pipe gets UTF-8, with undecodable file names byte by byte; a terminal gets "?" for a character that it
    cannot show.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


@contextmanager
def exit_on_error(goes_on: bool = False) -> Iterator[None]:
    """Context manager and decorator that ends a command with one line on standard error and its exit status.

    Status 2 for bad input (`ValueError`); 1 for diverging numbers (`ArithmeticError`), a full disk or a refused file
    (`OSError`), and Ctrl-C; 0 if the reader of standard output has closed it; a `StopRequest` has its own status.

    Args:
        goes_on: whether running the same command again resumes where it stopped.
    """
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        complain(str(error))
        raise typer.Exit(BAD_INPUT if isinstance(error, ValueError) else FAILED) from None
    except BrokenPipeError:  # `meltpoint list tasks | head` closes standard output early
        sys.stderr.close()
        raise typer.Exit(DONE) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        kept = "; finished trials are kept, and the same command resumes it" if goes_on else ""
        complain(f"{error.strerror or error}{where}{kept}.")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt as stop:
        complain(str(stop) or "stopped")
        raise typer.Exit(status_of(stop)) from None


def complain(text: str) -> None:
    """Print one line on standard error, without passwords."""
    tell(f"meltpoint: {redacted(shortened(' '.join(text.split())))}", err=True)


LONGEST_MESSAGE = 2000
"""The length limit of an error line in characters: a screenful. A damaged file may cause a message of megabytes."""


def shortened(text: str) -> str:
    """Shorten a message that is too long in its middle: it begins with the file and ends with the remedy."""
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} … {text[-half:]}"


def again() -> str:
    """The command as typed, for the line that explains how to resume; a password in it becomes `***`."""
    return shlex.join(["meltpoint", *map(redacted, sys.argv[1:])])


def print_json(document: object) -> None:
    """Print one JSON document on standard output."""
    show(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
