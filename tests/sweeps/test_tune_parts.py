"""_tune_parts: what Tune would not survive by itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.air.execution._internal import actor_manager
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.tune import TuneError
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.on_ray.tune_adapters import AshaPerCell, CellSearch, resources_of, survive_memory_kills


def test_a_worker_killed_by_rays_memory_monitor_is_a_dead_actor_and_not_the_end_of_the_sweep():
    survive_memory_kills()
    told: list[tuple[str, Exception]] = []
    actor = SimpleNamespace(actor_id=1, _on_error=lambda tracked, error: told.append(("actor", error)))
    task = SimpleNamespace(_tracked_actor=actor, _on_error=lambda tracked, error: told.append(("task", error)))
    manager = SimpleNamespace(_failed_actor_ids=set(), _cleanup_actor=lambda tracked_actor: None)
    error = OutOfMemoryError("1 worker(s) were killed due to the node running low on memory")
    actor_manager.RayActorManager._actor_task_failed(manager, tracked_actor_task=task, exception=error)
    assert told == [("actor", error), ("task", error)]


def test_the_time_budget_stops_trials_that_share_a_worker_at_their_next_epoch():
    order = object()
    driver = SimpleNamespace(wants_stop=lambda work: True, early_stopping=lambda work: None)
    referee = AshaPerCell(driver, {"t": order}, {})
    trial = SimpleNamespace(trial_id="t")
    ready, epoch = ({"events": [{"event": name}, {"event": name}]} for name in ("ready", "epoch"))
    assert referee.on_trial_result(None, trial, ready) == TrialScheduler.CONTINUE
    assert referee.on_trial_result(None, trial, epoch) == TrialScheduler.STOP


def test_rungs_can_be_shares_of_each_trials_own_schedule():
    rule = EarlyStopping(reduction_factor=2, grace_fraction=0.25)
    first = SimpleNamespace(role="search", cell=("e", "m", "t"))
    orders = {name: SimpleNamespace(first=first) for name in ("long", "short", "late")}
    driver = SimpleNamespace(wants_stop=lambda work: False, early_stopping=lambda work: rule)
    referee = AshaPerCell(driver, orders, {})

    def tell(name: str, epoch: int, epochs: int, score: float) -> str:
        result = {"events": [{"event": "epoch"}], "epoch": epoch, "percent": 100 * epoch / epochs, "score": score}
        return referee.on_trial_result(None, Trial("train", trial_id=name, stub=True), result)

    for name in orders:
        referee.on_trial_add(None, Trial("train", trial_id=name, stub=True))
    assert tell("long", 1, 8, 0.9) == TrialScheduler.CONTINUE  # an eighth: before the first rung
    assert tell("long", 2, 8, 0.9) == TrialScheduler.CONTINUE
    assert tell("short", 1, 4, 0.8) == TrialScheduler.STOP, "at the same share, the lower score loses its rung"
    assert tell("late", 1, 4, 0.95) == TrialScheduler.CONTINUE


def test_the_trial_that_came_first_runs_first_and_none_that_ended_is_looked_at():
    names = ["ended", "runs", "second", "third"]
    referee = AshaPerCell(SimpleNamespace(), {name: object() for name in names[1:]}, {})
    trials = {name: Trial("train", trial_id=name, stub=True) for name in names}
    trials["runs"].status = Trial.RUNNING
    live = {trials[name] for name in names[1:]}
    tune = SimpleNamespace(get_live_trials=lambda: live)
    assert referee.choose_trial_to_run(tune) is trials["second"]
    live.clear()
    assert referee.choose_trial_to_run(tune) is None


def test_trials_that_ask_for_the_same_ask_with_one_object():
    one, same, other = (resources_of({"cpus": 1.0, "gpus": gpus}) for gpus in (0.5, 0.5, 0.25))
    assert one is same
    assert one != other


@pytest.mark.parametrize(
    ("error", "text", "cause"),
    [
        (RayActorError(), None, "worker"),
        (None, "Task was killed due to the node running low on memory.", "memory"),
        (RayTaskError("train", "Traceback", KeyError("work")), None, "setting"),
    ],
)
def test_the_conductor_is_told_whether_our_code_raised_or_the_worker_was_lost(error, text, cause):
    told = []
    search = CellSearch(SimpleNamespace(on_lost=lambda order, loss: told.append(loss.cause)), {"t": object()})
    referee = AshaPerCell(search.driver, search.orders, search.losses)
    trial = SimpleNamespace(trial_id="t", get_pickled_error=lambda: error, get_error=lambda: TuneError(text))
    referee.on_trial_error(None, trial)
    search.on_trial_complete("t", error=True)
    assert told == [cause]
