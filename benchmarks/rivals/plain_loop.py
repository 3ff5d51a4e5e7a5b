"""Meltpoint's training loop as a plain function, as one would use it without sweeps.

The encoder's weights and the tokenised data are kept in the process, as a careful user would do; hidden states are not
cached and nothing is shared between trials.
"""

from __future__ import annotations

from functools import lru_cache

from meltpoint import tasks
from meltpoint.adapters import encoders, settings
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.hardware import claim_device
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.benchmarks.encoded import encoded
from meltpoint.benchmarks.job import Job
from meltpoint.tasks.core.task import DataSpec


@lru_cache(maxsize=1)
def ready(job: Job) -> tuple[Encoder, EncodedData]:
    """The encoder and the tokenised data, loaded once per process."""
    encoder = encoders.load(encoders.resolve(job.encoder, tasks.get(job.task).kind))
    return encoder, encoded(encoder, DataSpec(job.task, job.data_dir, job.max_train_examples), job.max_pieces)


def train_once(job: Job, learning_rate: float, threads: int) -> float:
    """Train one trial and return the best epoch's dev score."""
    hardware = claim_device(threads)
    encoder, data = ready(job)
    setting = settings.complete(job.setting(learning_rate), job.mode, "linear")
    members = [Member(setting, job.seed)]
    model = build(encoder, data.task, job.mode, "linear", members, hardware.device)
    trainer = Trainer(model, data, job.mode, members, hardware)
    for _ in trainer.epochs():
        pass
    return trainer.trials[0].best[0]
