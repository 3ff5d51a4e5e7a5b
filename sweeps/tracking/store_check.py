"""The check of MLflow's store before the first trial."""

from __future__ import annotations

from meltpoint.sweeps.machine.services import tracking_store


def check_before_start(uri: str, has_begun: bool) -> str | None:
    """Check that MLflow's store takes a sweep's runs.

    Args:
        uri: the tracking URI.
        has_begun: whether this sweep was started before, so that the store is known to exist. Then a store that does
            not answer is no reason to stop: a sweep that goes on at night must not wait for a person.

    Returns:
        A line for the user if the store does not answer and the sweep goes on all the same, else None.

    Raises:
        ValueError: it does not answer and the sweep is new; or no later answer would help, since it lets this user not
            in, has other tables, or its driver package is missing. One line with the remedy.
    """
    check = tracking_store(uri)
    if check.ok:
        return None
    if check.is_away and has_begun:
        return f"MLflow: {check.detail}; the sweep goes on, and MLflow is filled in once it answers."
    raise ValueError(f"MLflow: {check.detail}; {check.remedy}.")
