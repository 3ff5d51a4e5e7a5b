"""Errors of commands: one line on standard error and an exit status."""

from __future__ import annotations

import errno

import pytest
import typer

from meltpoint.sweeps.command_line.errors import exit_on_error


@pytest.mark.parametrize("goes_on", [True, False])
def test_only_a_command_that_goes_on_promises_that_what_finished_is_kept(
    capsys: pytest.CaptureFixture[str], goes_on: bool
) -> None:
    with pytest.raises(typer.Exit) as ended, exit_on_error(goes_on):
        raise OSError(errno.ENOSPC, "No space left on device", "out.csv")
    assert ended.value.exit_code == 1
    kept = "; what finished is kept, and the same command goes on from there" if goes_on else ""
    assert capsys.readouterr().err == f"meltpoint: No space left on device (out.csv){kept}.\n"
