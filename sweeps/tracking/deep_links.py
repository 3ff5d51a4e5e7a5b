"""Addresses of sweeps in MLflow's dashboard: each opens the view of cells, in MLflow's workflow for models."""

from __future__ import annotations

from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException

from meltpoint.sweeps.machine.services import server_version
from meltpoint.sweeps.specification.tracking_uri import redacted, without_sign_in
from meltpoint.sweeps.tracking.runs import SPECIFICATION, configure_client, open_client
from meltpoint.sweeps.tracking.saved_views import TAG, fragment
from meltpoint.sweeps.tracking.views import cells_view


def sweep_fragments(uri: str, name: str | None = None) -> dict[str, str]:
    """Sweep → the part of its address behind the server's, the newest sweep first.

    Args:
        uri: the tracking URI.
        name: one sweep; None for all.

    Raises:
        ValueError: there is no such sweep, or MLflow does not answer; one line with the remedy.
    """
    configure_client()
    try:
        found = list(open_client(uri).search_experiments(order_by=["creation_time DESC"], max_results=1000))
    except (MlflowException, OSError) as error:
        reason = redacted(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        raise ValueError(f"MLflow at {redacted(uri)} does not answer ({reason}); see `meltpoint doctor`.") from None
    sweeps = {experiment.name: experiment for experiment in found if SPECIFICATION in experiment.tags}
    if name is not None and name not in sweeps:
        known = ", ".join(list(sweeps)[:10]) or "none yet"
        raise ValueError(f"MLflow at {without_sign_in(uri)} has no sweep '{name}'. There is: {known}.")
    version = server_version(uri)
    chosen = sweeps if name is None else {name: sweeps[name]}
    return {sweep: cells_fragment(experiment, version) for sweep, experiment in chosen.items()}


def cells_fragment(experiment: Experiment, version: str) -> str:
    """The address of an experiment's view of cells; by filter and order where that view was not written."""
    view = cells_view([])
    is_there = f"{TAG}{view.id}" in experiment.tags
    return fragment(experiment.experiment_id, view, version if is_there else "")
