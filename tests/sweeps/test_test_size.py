"""The declared size of a test split, which is not opened for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meltpoint.sweeps.specification.cells import OpenCell, declared_test_examples, open_cells
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks import get
from meltpoint.tasks.core import carving, locked
from meltpoint.tasks.core.task import DataSpec, Example


@pytest.fixture(scope="module")
def cell(minilm) -> OpenCell:
    spec = SweepSpec(name="size", encoders=("minilm",), modes=("fine_tuning",), tasks=("demo_sentiment",))
    return open_cells(spec)[0]


def of(cell: OpenCell, task: str, test_from: str | None = None) -> int | None:
    return declared_test_examples(replace(cell, task=get(task), data=DataSpec(task, None, None, test_from)))


@pytest.mark.parametrize(
    ("task", "size"),
    [("sst2", 1821), ("conll2003", 3453), ("mrpc", 1725), ("cola", None), ("qqp", None), ("demo_sentiment", None)],
)
def test_the_size_is_what_the_task_declares_and_unknown_elsewhere(
    cell: OpenCell, task: str, size: int | None, monkeypatch
):
    monkeypatch.setattr(locked, "open_test", None)
    assert of(cell, task) == size


@pytest.mark.parametrize(
    ("slice_", "size"),
    [
        ("train[-1000:]", 1000), ("dev[:400]", 400), ("train[100:300]", 200), ("train[-300:-100]", 200),
        ("train[1000:]", None), ("dev[:-400]", None), ("train[10:-10]", None), ("train[-10:10]", None),
        ("train[:10%]", None), ("train[-10%:]", None), ("{from: train, fraction: 0.1, seed: 0}", None),
        ("{from: dev, fold: 0, of: 5, seed: 0}", None),
    ],
)  # fmt: skip
def test_a_slices_size_is_what_it_carves_off_a_long_split(cell: OpenCell, slice_: str, size: int | None):
    assert of(cell, "cola", slice_) == size
    own = replace(get("cola"), test_from=slice_)
    assert declared_test_examples(replace(cell, task=own, data=DataSpec("cola"))) == size, "of a task file"
    if size is not None:
        _, carved = carving.parse_slice(slice_).carve([Example(str(number)) for number in range(5000)])
        assert len(carved) == size
