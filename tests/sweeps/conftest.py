"""Specifications of tiny sweeps, their cells and records, and one that was run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meltpoint.adapters.hyperparameters import Setting
from meltpoint.sweeps.driver.start import asked_sweep, differences
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import HardwareRecord, Trial, TrialRecord
from meltpoint.sweeps.search.cell_progress import CellProgress
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.storage import object_client
from meltpoint.sweeps.tracking.store import open_client
from meltpoint.tests.object_stores import Faults, gs_server, s3_server
from meltpoint.tests.sweeps.planning import epoch_of
from meltpoint.tests.sweeps.whole_sweeps import SEEDS, TRIALS, command, run


@pytest.fixture(scope="session")
def spec(tiny_encoder: str, tiny_task: Path, quick_space: Path) -> SweepSpec:
    """Two cells of the tiny encoder on the tiny task."""
    return SweepSpec(
        name="tiny", encoders=(tiny_encoder,), modes=("feature_extraction", "fine_tuning"), tasks=(str(tiny_task),),
        head="linear", trials=TRIALS, seeds=SEEDS, space=str(quick_space),
    )  # fmt: skip


@pytest.fixture
def cells(spec: SweepSpec) -> list[OpenCell]:
    """The opened cells of `spec`."""
    return open_cells(spec)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A new ledger."""
    made = Ledger(tmp_path / "sweep")
    made.create()
    return made


MakeRecord = Callable[..., TrialRecord]


@pytest.fixture
def proposal(spec: SweepSpec, cells: list[OpenCell]) -> Trial:
    """The first trial of the first cell."""
    return Planner(spec, cells, []).next()  # type: ignore[return-value]


@pytest.fixture
def make_record(cells: list[OpenCell], monkeypatch: pytest.MonkeyPatch) -> MakeRecord:
    """Builds a trial's record from the trial and its dev scores, an epoch each.

    The facts of its cell are those of the planner that was made last, or of `cells`.
    """
    known = {cell.key: cell for cell in cells}
    opened = Planner._open

    def noted(self: Planner, cell: OpenCell, past: list[TrialRecord]) -> CellProgress:
        known[cell.key] = cell
        return opened(self, cell, past)

    monkeypatch.setattr(Planner, "_open", noted)

    def make(proposal: Trial, dev: tuple[float, ...] = (0.5, 0.75), **changes: object) -> TrialRecord:
        cell = known[proposal.cell]
        epochs = [
            epoch_of(
                number, score, cell.task.metric, step=4 * number, train_loss=1 / number, finished_at=1.7e9 + number
            )
            for number, score in enumerate(dev, 1)
        ]
        best = max(epochs, key=lambda epoch: (epoch.dev[cell.task.metric], -epoch.epoch), default=None)
        facts = {
            **dict(Trial.of(proposal)), "head": cell.head, "status": "finished", "metric": cell.task.metric,
            "dev": best.dev[cell.task.metric] if best else None, "dev_metrics": best.dev if best else {},
            "best_epoch": best.epoch if best else None, "epochs": epochs,
            "hardware": HardwareRecord(
                device="cpu", name="AVX2", threads=1, gpu_share=0.0, precision="fp32", host="here"
            ),
            "data_fingerprint": cell.data_fingerprint, "documents_fingerprint": cell.documents_fingerprint,
            "encoder_fingerprint": cell.encoder_fingerprint, "code_version": code_version(),
            "started_at": 1.7e9, "seconds": 3.0,
        }  # fmt: skip
        return TrialRecord.model_validate(facts | changes)

    return make


@pytest.fixture(scope="session")
def done(tmp_path_factory, spec) -> tuple[SweepSpec, Path]:
    """A sweep of two cells, run once for all tests: (its specification, its storage)."""
    storage = tmp_path_factory.mktemp("done")
    finished = run(command(spec, storage))
    assert finished.returncode == 0, finished.stderr
    (storage / "said.txt").write_text(finished.stderr)
    return spec, storage


Opened = tuple[SweepSpec, list[OpenCell]]
ToldApart = Callable[[Opened, Opened], set[str]]


@pytest.fixture
def frozen_spec(spec: SweepSpec) -> SweepSpec:
    """`spec` with one cell, whose encoder stays frozen."""
    return spec.model_copy(update={"modes": ("feature_extraction",)})


@pytest.fixture
def told_apart() -> ToldApart:
    """By what records of one sweep are told from another's: {"identity", "specification"}, one of them, or neither."""

    def ids(spec: SweepSpec, cells: list[OpenCell], setting: Setting) -> set[str]:
        planner = Planner(spec, cells, [])
        return {planner.trial_id(cell, setting, spec.seed, "search") for cell in cells}

    def found(then: Opened, now: Opened) -> set[str]:
        setting = then[1][0].space.first()
        by = set() if ids(*then, setting) & ids(*now, setting) else {"identity"}
        differ = differences(asked_sweep(*then, "on_the_fly"), asked_sweep(*now, "on_the_fly"))
        return by | ({"specification"} if differ else set())

    return found


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[tuple[dict[str, str], Faults]]:
    """moto's S3, one for all tests."""
    pytest.importorskip("moto", reason="moto is not installed (the extra 'dev')")
    with s3_server() as found:
        yield found


@pytest.fixture
def s3(s3_environment: tuple[dict[str, str], Faults], monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """S3 as this process and its children find it; yields its faults, which end with the test."""
    yield from _found_by_clients(*s3_environment, monkeypatch)


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Google Cloud Storage, likewise."""
    with gs_server() as (environment, faults):
        yield from _found_by_clients(environment, faults, monkeypatch)


def _found_by_clients(
    environment: dict[str, str], faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Faults]:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    object_client._client.cache_clear()
    yield faults
    vars(faults).update(vars(Faults()))
    object_client._client.cache_clear()


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's SQLite store without a sweep: to make one takes seconds, to copy it none."""
    folder = tmp_path_factory.mktemp("made_store")
    open_client(default_uri(folder))
    return folder / "mlflow.db"


@pytest.fixture(scope="module")
def mlflow_storage(tmp_path_factory: pytest.TempPathFactory, made_store: Path) -> Path:
    """A storage folder with a store of its own, for all tests of a module."""
    return Path(shutil.copy(made_store, tmp_path_factory.mktemp("storage"))).parent
