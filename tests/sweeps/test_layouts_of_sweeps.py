"""Whole sweeps on data sets as they are published: from the files to a table by a task file alone."""

from __future__ import annotations

import pytest

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.sweeps.whole_sweeps import command, run
from meltpoint.tests.tasks.layouts import LAYOUTS

STATED = {
    "imdb": "dev = 34 % of train, stratified, seed 0", "snli": "dev: 2 rows with the label '-' left out",
    "trec": "dev = train[-2:]",
}  # fmt: skip
"""What a table has to state of a data set, beside its scores."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_sweep_on_files_as_they_are_published_ends_with_a_table(name, tiny_encoder, quick_space, tmp_path):
    task = LAYOUTS[name].write(tmp_path)
    spec = SweepSpec(
        name=name, encoders=(tiny_encoder,), modes=("feature_extraction",), tasks=(task,), head="linear", trials=2,
        seeds=1, space=str(quick_space),
    )  # fmt: skip
    done = run(command(spec, tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    summary = summarise(Ledger(tmp_path / "runs" / name))
    (cell,) = summary.cells
    assert summary.state == "done"
    assert cell.counts["finished"] == 2
    assert STATED.get(name, cell.header.task) in " ".join(done.stdout.split())
