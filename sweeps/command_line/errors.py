"""How the command line answers: its exit statuses, and one line for what went wrong. Imports nothing heavy."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from meltpoint.sweeps.specification.tracking_uri import redacted

DONE, FAILED, BAD_INPUT = 0, 1, 2


def accept_any_character() -> None:
    """Let both outputs take every character, in any locale: a file or a pipe gets UTF-8, a terminal "?" for the rest.

    Files' names that are no text go through as the bytes that they are.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Bad input ends with status 2 and one line; a full disk or a refused file with status 1 and one line."""
    try:
        yield
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(BAD_INPUT) from None
    except ArithmeticError as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None
    except BrokenPipeError:  # `meltpoint list tasks | head`: the reader has seen enough
        sys.stderr.close()
        raise typer.Exit(DONE) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        complain(f"{error.strerror or error}{where}; what finished is kept, and the same command goes on from there.")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        complain("stopped")
        raise typer.Exit(FAILED) from None


def complain(text: str) -> None:
    """One line on standard error."""
    print(f"meltpoint: {redacted(' '.join(text.split()))}", file=sys.stderr)


def again() -> str:
    """The command that was typed, to be typed again; a password in it is `***`."""
    return shlex.join(["meltpoint", *map(redacted, sys.argv[1:])])


def print_json(document: object) -> None:
    """One JSON document on standard output."""
    print(json.dumps(document, indent=1, ensure_ascii=False))
