"""Counters of energy: a folder as the kernel makes it, and NVML's functions as its documentation has them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.sweeps.machine import counters
from meltpoint.sweeps.machine.counters import GpuEnergy, PackageEnergy, gpu_energy, package_energy

RANGE_UJ = 262_143_328_850
"""`max_energy_range_uj` of a Xeon: 22 minutes at 200 W."""


def zone(folder: Path, name: str, what: str, microjoules: int, watts: int | None = 200) -> Path:
    """A powercap zone."""
    place = folder / name
    place.mkdir()
    files = {"name": what, "energy_uj": microjoules, "max_energy_range_uj": RANGE_UJ}
    files |= {} if watts is None else {"constraint_0_power_limit_uw": watts * 10**6}
    for file, value in files.items():
        (place / file).write_text(f"{value}\n", encoding="ascii")
    return place


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages with their parts, and the platform, which holds both."""
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 700_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 9_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000)
    return tmp_path


def put(folder: Path, name: str, microjoules: int) -> None:
    (folder / name / "energy_uj").write_text(f"{microjoules}\n", encoding="ascii")


def test_packages_add_up_and_parts_of_them_and_the_platform_are_not_counted_again(powercap: Path) -> None:
    counter = package_energy(powercap)
    assert counter is not None
    assert [place.name for place in counter.zones] == ["intel-rapl:0", "intel-rapl:1"]
    for name, now in (("intel-rapl:0", 3_500_000), ("intel-rapl:1", 6_000_000), ("intel-rapl:2", 90_000_000)):
        put(powercap, name, now)
    assert counter.joules() == pytest.approx(3.5)
    assert counter.joules() == 0.0, "counted from the last call"


@given(start=st.integers(0, RANGE_UJ - 1), used=st.integers(0, RANGE_UJ - 1))
def test_a_counter_that_came_round_gives_what_was_used(start: int, used: int) -> None:
    counter = PackageEnergy([])
    counter.ranges, counter.watts = [RANGE_UJ], [200.0]
    assert counter._of_one(0, start, (start + used) % RANGE_UJ, 60.0) == pytest.approx(used / 1e6)


def test_a_time_in_which_a_counter_may_come_round_twice_tells_nothing(powercap: Path) -> None:
    clock = Clock()
    counter = PackageEnergy(counters.packages(powercap), clock)
    assert counter.watts == [400.0, 400.0], "twice the limit that the package names"
    for seconds, is_told in ((655.0, True), (656.0, False), (10.0, True)):
        clock.now += seconds
        assert (counter.joules() is not None) is is_told, seconds


def test_without_a_named_limit_a_package_is_taken_for_the_largest(tmp_path: Path) -> None:
    place = zone(tmp_path, "intel-rapl:0", "package-0", 0, watts=None)
    assert PackageEnergy([place]).watts == [counters.MOST_WATTS]


def test_a_counter_that_may_not_be_read_is_none(powercap: Path, tmp_path: Path) -> None:
    (powercap / "intel-rapl:1" / "energy_uj").unlink()  # as to a user without the right; root may read anything
    assert package_energy(powercap) is None
    assert package_energy(tmp_path / "nowhere") is None


def test_one_that_stops_answering_gives_none_and_no_error(powercap: Path) -> None:
    counter = package_energy(powercap)
    assert counter is not None
    (powercap / "intel-rapl:0" / "energy_uj").write_text("", encoding="ascii")
    assert counter.joules() is None


class FakeNvml(ModuleType):
    """Module `pynvml` on a machine with one GPU."""

    class NVMLError(Exception):
        """As theirs."""

    def __init__(self, millijoules: list[int | None], divided: bool | None = False) -> None:
        super().__init__("pynvml")
        self.left, self.divided, self.asked = millijoules, divided, ""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked = uuid
        if uuid != "GPU-a1":
            raise self.NVMLError
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        assert handle == "handle"
        now = self.left.pop(0) if self.left else None
        if now is None:
            raise self.NVMLError
        return now

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        if self.divided is None:
            raise self.NVMLError
        return [int(self.divided), int(self.divided)]


@pytest.mark.parametrize("uuid", ["a1", "GPU-a1"])
def test_a_gpu_is_found_by_its_uuid_since_ray_shows_a_worker_one_of_several(uuid: str) -> None:
    counter = gpu_energy(uuid, FakeNvml([1000, 4500, 4500, 3, None, 7], divided=None))
    assert isinstance(counter, GpuEnergy)
    assert counter.joules() == pytest.approx(3.5)
    assert counter.joules() == 0.0
    assert counter.joules() is None, "its driver was loaded anew"
    assert counter.joules() is None
    assert counter.joules() is None, "nothing to count from"


def test_gpus_without_a_counter_others_and_parts_of_one_have_none() -> None:
    assert gpu_energy("a1", FakeNvml([None])) is None
    assert gpu_energy("b2", FakeNvml([1000])) is None
    assert gpu_energy("a1", FakeNvml([1000], divided=True)) is None


def test_without_the_package_or_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(counters.importlib, "import_module", refuse)
    assert gpu_energy("a1") is None
    broken = FakeNvml([1])
    monkeypatch.setattr(broken, "nvmlInit", lambda: broken.nvmlDeviceGetHandleByUUID("none"), raising=False)
    monkeypatch.setattr(counters.importlib, "import_module", lambda name: broken)
    assert counters.load_nvml() is None
