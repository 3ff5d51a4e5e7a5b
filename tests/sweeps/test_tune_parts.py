"""_tune_parts: what Tune would not survive by itself."""

from __future__ import annotations

from types import SimpleNamespace

from ray.air.execution._internal import actor_manager
from ray.exceptions import OutOfMemoryError

from meltpoint.sweeps._tune_parts import survive_memory_kills


def test_a_worker_killed_by_rays_memory_monitor_is_a_dead_actor_and_not_the_end_of_the_sweep():
    survive_memory_kills()
    told: list[tuple[str, Exception]] = []
    actor = SimpleNamespace(actor_id=1, _on_error=lambda tracked, error: told.append(("actor", error)))
    task = SimpleNamespace(_tracked_actor=actor, _on_error=lambda tracked, error: told.append(("task", error)))
    manager = SimpleNamespace(_failed_actor_ids=set(), _cleanup_actor=lambda tracked_actor: None)
    error = OutOfMemoryError("1 worker(s) were killed due to the node running low on memory")
    actor_manager.RayActorManager._actor_task_failed(manager, tracked_actor_task=task, exception=error)
    assert told == [("actor", error), ("task", error)]
