"""Exit statuses, one-line error messages and JSON output of the command line. Imports nothing heavy."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from meltpoint.sweeps.machine.signals import status_of
from meltpoint.sweeps.machine.terminal import show, tell
from meltpoint.sweeps.specification.tracking_uri import redacted

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
