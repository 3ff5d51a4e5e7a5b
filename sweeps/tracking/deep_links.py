"""Addresses of sweeps in MLflow's dashboard: of their views, in MLflow's workflow for models."""

from __future__ import annotations

from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException

from meltpoint.sweeps.machine.services import server_version
from meltpoint.sweeps.specification.tracking_uri import redacted, without_sign_in
from meltpoint.sweeps.tracking.runs import SPECIFICATION, configure_client, open_client
from meltpoint.sweeps.tracking.saved_views import TAG, fragment, is_verified, named_fragments
from meltpoint.sweeps.tracking.views import cells_view

OF_SWEEPS = {SPECIFICATION, "meltpoint.specification"}
"""Tags of experiments that are sweeps: today's, and the one of versions up to 0.1."""


def sweep_fragments(uri: str) -> dict[str, str]:
    """Sweep → the address of its cells, behind the server's; the newest sweep first.

    Raises:
        ValueError: MLflow does not answer; one line with the remedy.
    """
    version = server_version(uri)
    return {name: cells_fragment(experiment, version) for name, experiment in _sweeps(uri).items()}


def view_fragments(uri: str, name: str) -> dict[str, str]:
    """View → its address, behind the server's, of one sweep; its cells first.

    Raises:
        ValueError: there is no such sweep, or MLflow does not answer; one line with the remedy.
    """
    sweeps = _sweeps(uri)
    if name not in sweeps:
        known = ", ".join(list(sweeps)[:10]) or "none yet"
        raise ValueError(f"MLflow at {without_sign_in(uri)} has no sweep '{name}'. There is: {known}.")
    experiment, version = sweeps[name], server_version(uri)
    views = named_fragments(experiment.experiment_id, experiment.tags) if is_verified(version) else {}
    cells = cells_view([])
    return {cells.name: cells_fragment(experiment, version)} | views


def _sweeps(uri: str) -> dict[str, Experiment]:
    """Name → experiment of every sweep, the newest first."""
    configure_client()
    try:
        found = list(open_client(uri).search_experiments(order_by=["creation_time DESC"], max_results=1000))
    except (MlflowException, OSError) as error:
        reason = redacted((str(error).strip() or type(error).__name__).splitlines()[0])
        raise ValueError(f"MLflow at {redacted(uri)} does not answer ({reason}); see `meltpoint doctor`.") from None
    return {experiment.name: experiment for experiment in found if OF_SWEEPS & experiment.tags.keys()}


def cells_fragment(experiment: Experiment, version: str) -> str:
    """The address of an experiment's view of cells; by filter and order where that view was not written."""
    view = cells_view([])
    is_there = f"{TAG}{view.id}" in experiment.tags
    return fragment(experiment.experiment_id, view, version if is_there else "")
