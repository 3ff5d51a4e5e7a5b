"""A sweep in MLflow's dashboard: the names, colours and pages of its runs, and the server that shows them.

The server is MLflow's, as a child process until Ctrl-C; it listens on this machine alone.
"""

from __future__ import annotations

import colorsys
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from meltpoint.adapters import modes
from meltpoint.search_spaces.ranges import Range
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.machine.services import connection_fault, tracking_store
from meltpoint.sweeps.machine.terminal import tell
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.tracking_uri import default_uri, redacted, sqlite_file, without_sign_in
from meltpoint.sweeps.storage.files import StoragePath, artifacts_folder
from meltpoint.tasks.core.metrics import is_lower_better

HOST = "127.0.0.1"
"""The address to listen on: every user of this machine reaches it, and no other machine."""

STOP_SECONDS = 10.0
"""The longest wait between SIGTERM and SIGKILL."""

POLL_SECONDS = 0.25

NEWEST = 5
"""The number of sweeps to list if the user names none."""

STANDARD_ERROR = 2


def serve(storage: StoragePath, tracking_uri: str | None, port: int, name: str | None = None) -> int:
    """Show a store in MLflow's dashboard until the user ends it; for a tracking server, only print its URL.

    The URL of each sweep opens its view of cells.

    Args:
        storage: the folder of all sweeps.
        tracking_uri: an MLflow server or a store, or None for the SQLite store in `storage`.
        port: the port to listen on.
        name: the sweep to open; None for the newest ones.

    Returns:
        0 if it was ended by the user, 1 if the server did not start or ended by itself.

    Raises:
        ValueError: the store does not exist yet, cannot be read or does not have that sweep, or the port is not
            available; one line with the remedy.
    """
    if tracking_uri is not None and urlsplit(tracking_uri).scheme in ("http", "https"):
        shown = without_sign_in(tracking_uri)
        for line in where(tracking_uri, shown, name) if name else [f"Dashboard  {shown}"]:
            tell(line, err=True)
        return 0
    uri = tracking_uri or default_uri(storage)
    check_store(uri)
    check_port(port)
    lines = where(uri, f"http://{HOST}:{port}", name, end="  (press Ctrl-C to stop)")
    for number in (signal.SIGTERM, signal.SIGHUP):  # a terminal sends SIGHUP when it closes
        if signal.getsignal(number) != signal.SIG_IGN:  # with `nohup`, SIGHUP is ignored
            signal.signal(number, signal.default_int_handler)
    return _run(command(storage, port), environment(uri), port, lines)


def where(uri: str, server: str, name: str | None, end: str = "") -> list[str]:
    """The lines with the dashboard's URLs: the cells of one sweep; or the root, and the newest sweeps.

    Args:
        uri: the store's URI.
        server: the URL of the server that shows it.
        name: the sweep, or None.
        end: the end of the first line.

    Raises:
        ValueError: the sweep does not exist, or the store does not answer.
    """
    pages = {sweep: f"{server.rstrip('/')}/{part}" for sweep, part in sweep_fragments(uri, name).items()}
    if name is not None:
        return [f"Dashboard  {pages[name]}{end}"]
    return [f"Dashboard  {server}{end}", *(f"{sweep}  {page}" for sweep, page in list(pages.items())[:NEWEST])]


def sweep_fragments(uri: str, name: str | None = None) -> dict[str, str]:
    """Sweep → the URL of its cells, after the server's address; newest sweep first.

    Args:
        name: the sweep that has to be among them.

    Raises:
        ValueError: it does not exist, or MLflow does not answer; one line with the remedy.
    """
    from mlflow.exceptions import MlflowException  # slow

    from meltpoint.sweeps.tracking.store import SPECIFICATION, configure_client, open_client

    configure_client()
    try:
        found = list(open_client(uri).search_experiments(order_by=["creation_time DESC"], max_results=1000))
    except (MlflowException, OSError) as error:
        reason = redacted((str(error).strip() or type(error).__name__).splitlines()[0])
        raise ValueError(f"MLflow at {redacted(uri)} does not answer ({reason}); see `meltpoint doctor`.") from None
    sweeps = {one.name: one for one in found if SPECIFICATION in one.tags}
    if name is not None and name not in sweeps:
        known = ", ".join(list(sweeps)[:10]) or "none yet"
        raise ValueError(f"MLflow at {without_sign_in(uri)} has no sweep '{name}'. Sweeps: {known}.")
    return {sweep: cells_page(one.experiment_id) for sweep, one in sweeps.items()}


def check_store(uri: str) -> None:
    """Check that a store exists with the tables of the installed MLflow.

    All of the server's workers would create a missing store at once, which fails, so it is refused here.

    Raises:
        ValueError: it does not exist, or has tables of another version.
    """
    path = sqlite_file(uri)
    if path is not None and (not path.is_file() or path.stat().st_size == 0):
        raise ValueError(f"The MLflow store {path} does not exist yet; run a sweep first, or name another --storage.")
    store = tracking_store(uri)
    if not store.ok:
        raise ValueError(f"{store.detail}; {store.remedy}.")


def check_port(port: int) -> None:
    """Check that a server can listen on a port.

    Raises:
        ValueError: it cannot; one line with the remedy.
    """
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except (OSError, OverflowError) as error:
        raise ValueError(f"Port {port} is not available ({error}); name another one with --port.") from None


def command(storage: StoragePath, port: int) -> list[str]:
    """The server's command line, without the store's URI, which may contain a password."""
    artifacts = artifacts_folder(storage)
    return [
        sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port),
        "--workers", "1",  # enough for one user; each additional worker costs seconds and half a gigabyte
        "--artifacts-destination", artifacts.as_uri() if isinstance(artifacts, Path) else str(artifacts),
        "--uvicorn-opts", "--log-level warning",
    ]  # fmt: skip


def environment(uri: str) -> dict[str, str]:
    """The server's environment: the store, without background jobs, telemetry and warnings.

    MLflow reads its own files in the locale's encoding and answers every search with an error in an ASCII locale, so
    UTF-8 is set.
    """
    added = {"MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONUTF8": "1"}
    return {"MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "ignore"} | dict(os.environ) | added


def _run(arguments: list[str], variables: dict[str, str], port: int, lines: Sequence[str] = ()) -> int:
    """Run the server until it ends or is interrupted; its output goes to standard error.

    Args:
        lines: the lines to print once it answers.
    """
    child = subprocess.Popen(arguments, env=variables, stdout=STANDARD_ERROR, start_new_session=True)
    try:
        while connection_fault(HOST, port):
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(timeout=POLL_SECONDS)
                tell(f"The dashboard did not start (status {code}); its output is above.", err=True)
                return 1
        for line in lines:
            tell(line, err=True)
        tell(f"The dashboard ended unexpectedly with status {child.wait()}; its output is above.", err=True)
    except KeyboardInterrupt:
        return 0
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):  # to the server's whole group; some may ignore SIGTERM
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(timeout=STOP_SECONDS)
    return 1


# Names and colours of runs, and the result of a cell for its run.

GOLDEN = 0.618034
"""Golden-ratio steps spread any number of trials evenly over the lightness range."""


def cell_labels(cells: Iterable[OpenCell]) -> dict[str, str]:
    """Cell name → `🔥 sst2`, with the encoder if the sweep has several, and the variant if the cell has one."""
    opened = list(cells)
    has_several = len({cell.encoder for cell in opened}) > 1
    return {cell.name: _label(cell, has_several) for cell in opened}


def _label(cell: OpenCell, with_encoder: bool) -> str:
    words = [f"{modes.get(cell.mode).symbol} {cell.task_name}", cell.variant]
    words += [short_encoder(cell.encoder)] if with_encoder else []
    return " · ".join(word for word in words if word)


def short_encoder(encoder: str) -> str:
    """An encoder's name without its prefix: `roberta-large` for `hf:FacebookAI/roberta-large`."""
    return re.split(r"[:/\\]", encoder.rstrip("/\\"))[-1] or encoder


def setting_label(label: str, role: str) -> str:
    """The name of the row that groups a setting's seeds."""
    return f"{label} · {'best' if role == 'final' else 'published'} setting"


def former_label(label: str) -> str:
    """The name of the row for a setting that was the best before more trials ran."""
    return f"{label} · former best setting"


def colour(mode: str, number: int | None = None) -> str:
    """A run's colour as `#rrggbb`: the mode's own, for each trial with another lightness.

    Args:
        number: the trial's number; None for a cell's run, which has the mode's colour.
    """
    own = modes.get(mode).colour
    if number is None:
        return own
    hue, _, saturation = colorsys.rgb_to_hls(*(value / 255 for value in bytes.fromhex(own[1:])))
    parts = colorsys.hls_to_rgb(hue, 0.32 + 0.36 * (number * GOLDEN % 1.0), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def searched(space: Space) -> dict[str, Range]:
    """The searched parameters of a space, in its order."""
    return {name: range_ for name, range_ in space.parameters.items() if range_.count != 1}


CELL, ROLE, FINAL_OF, IS_BEST, PLACE, ORDER = (
    "meltpoint.cell", "meltpoint.role", "meltpoint.final_of", "meltpoint.is_best", "place", "meltpoint.order",
)  # fmt: skip
"""The tags by which pages filter, group and sort: the cell's name, a run's role, the row for a final's seeds, whether a
trial is the best of its cell, a cell's rank within its task, and the order of cells by task and rank."""


def curve(task: str) -> str:
    """The metric of a task's learning curves: MLflow draws a chart for each metric, so each task has its own."""
    return "curve/" + re.sub(r"[^\w.:/ -]", " ", task)  # MLflow refuses the `+` of `mnli:fiction+slate`


# Pages of MLflow's dashboard, after the server's address.


def cells_page(experiment: str) -> str:
    """The URL of one row per cell, grouped by task, best on test first."""
    return _runs_page(experiment, f"tags.`{ROLE}` = 'cell'", f"tags.`{ORDER}`")


def finals_page(experiment: str) -> str:
    """The URL of all finals, the seeds of a setting below each other."""
    return _runs_page(experiment, f"tags.`{FINAL_OF}` LIKE '%'", f"tags.`{FINAL_OF}`")


def trials_page(experiment: str, cell: str, metric: str, charts: bool = False) -> str:
    """The URL of a cell's search trials, best first.

    Args:
        cell: the cell's name.
        metric: the metric of its dev scores.
        charts: whether it opens with the curves instead of the table.
    """
    condition = f"tags.`{CELL}` = '{cell}' and tags.`{ROLE}` = 'search'"
    return _runs_page(experiment, condition, "metrics.`best_dev`", is_lower_better(metric), charts)


def _runs_page(experiment: str, condition: str, order: str, ascending: bool = True, charts: bool = False) -> str:
    words = {
        "workflowType": "machine_learning", "compareRunsMode": "CHART" if charts else "TABLE",
        "searchFilter": condition, "orderByKey": order, "orderByAsc": str(ascending).lower(),
    }  # fmt: skip
    return f"#/experiments/{experiment}/runs?{urlencode(words)}"


def run_page(experiment: str, run: str, tab: str = "") -> str:
    """The URL of a run's page, or of one of its tabs (`artifacts`, `model-metrics`)."""
    return f"#/experiments/{experiment}/runs/{run}{f'/{tab}' if tab else ''}?workflowType=machine_learning"


@dataclass(frozen=True)
class CellEnding:
    """The result of one cell, for its run.

    Attributes:
        note: its description in Markdown, without links.
        best: the id of the best search trial; "" if there is none.
        former: the ids of finals of a setting that was the best before more trials ran.
        files: file name → the file to copy.
    """

    note: str = ""
    best: str = ""
    former: tuple[str, ...] = ()
    files: Mapping[str, StoragePath] = field(default_factory=dict)
