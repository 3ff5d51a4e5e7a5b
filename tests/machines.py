"""The default suite under other kinds of machine: `make test-machines`, or `make test-machines MACHINES="avx2 umask"`.

A kind is a row of `KINDS`; several joined by `+` (`path+umask+time-zone`) are one machine. Each runs in a process of
its own; what pytest says of it goes to `build/machines/KIND.log`, and a table at the end has a row a kind. The exit
status is 1 where a test failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
AWKWARD = "meltpoint ünder ŝpaces "


class NotHereError(Exception):
    """A kind that cannot be had on this machine, and why."""


@dataclass(frozen=True)
class Run:
    """How pytest is started: by which Python, in which checkout, under what.

    Attributes:
        prefix: what stands before the command.
        umask: -1 leaves it as it is.
        temporary: where pytest makes its temporary folders; None for its own choice.
    """

    python: str = sys.executable
    checkout: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    umask: int = -1
    temporary: Path | None = None


def variables(**environment: str) -> Callable[[Path], Run]:
    """Other environment variables."""
    return lambda out: Run(environment=environment)


def skylakex(out: Path) -> Run:
    """OpenBLAS's kernels for AVX-512, which end a process on a processor without."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists() or "avx512f" not in facts.read_text(encoding="utf-8"):
        raise NotHereError("this processor has no AVX-512")
    return Run(environment={"OPENBLAS_CORETYPE": "SkylakeX"})


def one_core(out: Path) -> Run:
    """The first of the cores that this process may use."""
    if shutil.which("taskset") is None:
        raise NotHereError("there is no taskset")
    return Run(prefix=("taskset", "-c", str(min(os.sched_getaffinity(0)))))


def awkward_path(out: Path) -> Run:
    """A copy of the checkout, and every temporary folder, under a path with spaces and letters beyond ASCII."""
    if not sys.getfilesystemencoding().startswith("utf"):
        raise NotHereError("this locale's files have ASCII names")
    place = _copy(AWKWARD)
    return Run(checkout=place / "meltpoint", environment={"PYTHONPATH": str(place)}, temporary=place / "temporary")


def _copy(prefix: str) -> Path:
    """A new folder with a copy of the checkout as `meltpoint`, and a link to the data beside it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        raise NotHereError("this is no git checkout")
    place = Path(tempfile.mkdtemp(prefix=prefix))
    for name in filter(None, listing.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            copy = place / "meltpoint" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy)
    if (shared := ROOT.parent / "shared").is_dir():
        (place / "shared").symlink_to(shared)
    return place


def other_python(version: str) -> Callable[[Path], Run]:
    """Another Python with an installation of its own, which is kept for the next time."""

    def run(out: Path) -> Run:
        own = out / f"python{version}"
        log = out / f"python{version}.installation.log"
        command = ["make", f"PYTHON={_interpreter(version)}", f"VENV={own}", f"BIN={own / 'bin'}", "install"]
        # Without what the outer make was told, as BIN: the installation would go there.
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        with log.open("w", encoding="utf-8") as said:
            done = subprocess.run(command, cwd=ROOT, env=plain, stdout=said, stderr=said, check=False)
        if done.returncode != 0:
            raise NotHereError(f"it could not be installed, see {log}")
        return Run(python=str(own / "bin" / "python"))

    return run


def _interpreter(version: str) -> str:
    """A Python of that version: on the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for python in map(str, filter(None, found)):
        works = subprocess.run(
            [python, "-c", "import ensurepip, venv"], capture_output=True, check=False
        )  # a shim may lead nowhere
        if works.returncode == 0:
            return python
    raise NotHereError(f"there is no Python {version}")


KINDS: dict[str, Callable[[Path], Run]] = {
    "haswell": variables(OPENBLAS_CORETYPE="Haswell"),
    "skylakex": skylakex,
    "sandybridge": variables(OPENBLAS_CORETYPE="Sandybridge"),
    "avx2": variables(ATEN_CPU_CAPABILITY="avx2", DNNL_MAX_CPU_ISA="AVX2"),
    "one-core": one_core,
    "hash-seed": variables(PYTHONHASHSEED="1"),
    # Python takes UTF-8 under LC_ALL=C unless told otherwise.
    "ascii-locale": variables(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    "time-zone": variables(TZ="Pacific/Chatham"),  # 12:45 h ahead of UTC, 13:45 in its summer
    "umask": lambda out: Run(umask=0o077),
    "path": awkward_path,
    "python3.12": other_python("3.12"),
    "python3.13": other_python("3.13"),
}
"""Kind → how it is run; it may raise `NotHereError`."""


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Attributes:
        note: what else is to be said: why it did not run, or where the failures are.
    """

    kind: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        counts = f"{self.passed:7d} {self.failed:7d} {self.skipped:8d} {self.seconds:8.0f}"
        return f"{self.kind:14s} {counts if self.seconds else 'not run'.rjust(33)}  {self.note}".rstrip()


HEADER = f"{'kind':14s} {'passed':>7s} {'failed':>7s} {'skipped':>8s} {'seconds':>8s}"


def suite(kind: str, tests: Sequence[str], out: Path) -> Result:
    """Run the default suite, or some tests, under a kind of machine."""
    try:
        with prepared(kind, out) as run:
            return _under(kind, run, tests, out)
    except NotHereError as reason:
        return Result(kind, note=str(reason))


@contextmanager
def prepared(kind: str, out: Path) -> Iterator[Run]:
    """A kind's run, or that of several; a copy of the checkout that was made for it is removed afterwards.

    Raises:
        NotHereError: it cannot be had here, or two of several want the same (a Python, a checkout) of their own.
    """
    runs: list[Run] = []
    try:
        for one in kind.split("+"):
            runs.append(KINDS[one](out))
        yield _joined(runs)
    finally:
        for run in runs:
            if run.checkout != ROOT:
                shutil.rmtree(run.checkout.parent, ignore_errors=True)


def _joined(runs: Sequence[Run]) -> Run:
    """One run with all that several ask for."""
    plain = Run()
    chosen: dict[str, Any] = {}
    for name in ("python", "checkout", "umask", "temporary"):
        wanted = [value for run in runs if (value := getattr(run, name)) != getattr(plain, name)]
        if len(wanted) > 1:
            raise NotHereError(f"two of them bring a {name} of their own")
        chosen |= {name: wanted[0]} if wanted else {}
    environment = {name: value for run in runs for name, value in run.environment.items()}
    return Run(**chosen, environment=environment, prefix=tuple(word for run in runs for word in run.prefix))


def _under(kind: str, run: Run, tests: Sequence[str], out: Path) -> Result:
    log, counts = out / f"{kind}.log", out / f"{kind}.xml"
    counts.unlink(missing_ok=True)
    place = [] if run.temporary is None else [f"--basetemp={run.temporary}"]
    pytest = [run.python, "-m", "pytest", "-n", "2", "--dist", "loadfile"]  # as `make test`
    command = [*run.prefix, *pytest, f"--junitxml={counts}", *place, *tests]
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as said:
        done = subprocess.run(
            command, cwd=run.checkout, env={**os.environ, **run.environment}, umask=run.umask, stdout=said,
            stderr=said, check=False,
        )  # fmt: skip
    seconds = time.monotonic() - started
    if not counts.exists():
        return Result(kind, failed=1, seconds=seconds, note=f"pytest ended with status {done.returncode}, see {log}")
    found = [one.attrib for one in ElementTree.parse(counts).iter("testsuite")]
    every, failures, errors, skipped = (
        sum(int(one[name]) for one in found) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = max(failures + errors, int(done.returncode != 0))
    passed, note = every - failures - errors - skipped, f"see {log}" if failed else ""
    return Result(kind, passed, failed, skipped, seconds, note)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for, print the table; 0 where nothing failed, 1 where a test did, 2 for an unknown kind."""
    parser = argparse.ArgumentParser(description="The default suite under other kinds of machine.")
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}, or some joined by +; all if none")
    parser.add_argument(
        "--tests", nargs=argparse.REMAINDER, default=[], help="the rest is for pytest, as `tests/tasks -x`"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "machines", help="where the logs go")
    said = parser.parse_args(words)
    unknown = [one for kind in said.kinds for one in kind.split("+") if one not in KINDS]
    if unknown:
        parser.error(f"unknown kind of machine '{unknown[0]}'; there is: {', '.join(KINDS)}")
    out = said.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    results = []
    for kind in said.kinds or KINDS:
        print(f"{kind}: {out / kind}.log", flush=True)
        results.append(suite(kind, said.tests, out))
        print(results[-1], flush=True)
    print("", HEADER, *results, sep="\n")
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
