"""Errors of commands: one line on standard error and an exit status."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.reports.commands.search import demo_spec, refuse_other
from meltpoint.sweeps.command_line.errors import exit_on_error
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.sweep_file import SweepFile, write_sweep


@pytest.mark.parametrize("goes_on", [True, False])
def test_only_a_command_that_goes_on_promises_that_what_finished_is_kept(
    capsys: pytest.CaptureFixture[str], goes_on: bool
) -> None:
    with pytest.raises(typer.Exit) as ended, exit_on_error(goes_on):
        raise OSError(errno.ENOSPC, "No space left on device", "out.csv")
    assert ended.value.exit_code == 1
    kept = "; what finished is kept, and the same command goes on from there" if goes_on else ""
    assert capsys.readouterr().err == f"meltpoint: No space left on device (out.csv){kept}.\n"


def test_the_demo_of_an_older_version_is_refused_with_both_remedies_and_its_own_goes_on(tmp_path: Path):
    spec, ledger = demo_spec("demo"), Ledger(tmp_path / "demo")
    ledger.create()
    write_sweep(ledger, SweepFile(spec=spec.model_copy(update={"blocks": spec.blocks[:1]}), code="0", cells=()))
    said = CliRunner().invoke(app, ["demo", "--storage", str(tmp_path)])
    line = " ".join(said.stderr.split())
    assert said.exit_code == 2
    assert "holds another sweep, perhaps the demo of an older version" in line
    assert all(remedy in line for remedy in ("--name demo2", "`meltpoint rm demo`"))
    write_sweep(ledger, SweepFile(spec=spec, code="0", cells=()))
    refuse_other(spec, str(tmp_path))
