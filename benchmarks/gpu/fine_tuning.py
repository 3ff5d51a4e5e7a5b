"""Fine-tuning of a BERT at one input length: examples per second of Meltpoint's loop and of the Trainer."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers

from meltpoint.adapters import encoders, settings
from meltpoint.adapters.hardware import claim_device
from meltpoint.adapters.hyperparameters import Value
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.evaluation import FrozenStates
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.benchmarks.gpu.ceiling import wait
from meltpoint.benchmarks.gpu.sizes import Size, random_data
from meltpoint.benchmarks.rivals.trainer_model import SentenceClassifier

RATE = 1e-5  # any rate that keeps the weights finite, since speed does not depend on it
FEEDERS = 4  # data loader processes of the Trainer on a GPU; on a CPU they would compete with training


def our_rate(size: Size, encoder: str, device: str) -> float:
    """Examples per second of Meltpoint's loop: the median epoch without the first."""
    seconds = loop_seconds(size, encoder, device, "fine_tuning", "linear")
    return size.examples / statistics.median(seconds[1:])


def loop_seconds(
    size: Size, encoder: str, device: str, mode: str, head: str, together: int = 1,
    frozen_states: FrozenStates | None = None,
) -> list[float]:  # fmt: skip
    """Training seconds of each epoch of a bundle; an epoch ends by reading its loss, which synchronises a GPU."""
    trainer = trainer_of(size, encoder, device, mode, head, together, frozen_states)
    return [sum(r.train_seconds for _, r in results if isinstance(r, EpochResult)) for results in trainer.epochs()]


def trainer_of(
    size: Size, encoder: str, device: str, mode: str, head: str, together: int = 1,
    frozen_states: FrozenStates | None = None,
) -> Trainer:  # fmt: skip
    """A bundle of equal trials on random data, ready to train."""
    hardware, data = claim_device(torch.get_num_threads(), 1.0 if device == "cuda" else 0.0), random_data(size)
    load: dict[str, Value] = {"epochs": size.epochs, "batch_size": size.batch, "max_pieces": size.length}
    setting = settings.complete({**load, "learning_rate": RATE, "precision": "bf16"}, mode, head)
    loaded = encoders.load(encoders.resolve(encoder, data.task.kind))
    members = [Member(setting, 0)] * together
    model = build(loaded, data.task, mode, head, members, hardware.device)
    return Trainer(model, data, mode, members, hardware, frozen_states)


def trainer_rate(size: Size, encoder: str, device: str) -> float:
    """Examples per second of Hugging Face's Trainer with bf16, fused AdamW and data loader processes."""
    data = random_data(size)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    bert = transformers.AutoModel.from_pretrained(encoder.removeprefix("hf:"), add_pooling_layer=False)
    model = SentenceClassifier(bert, data.task.outputs, dropout=0.1, frozen=False)
    clock, on_cpu = _Clock(torch.device(device)), device == "cpu"
    with tempfile.TemporaryDirectory(prefix="meltpoint-benchmark-") as folder:
        trainer = transformers.Trainer(
            model=model, train_dataset=_TrainerDataset(data), callbacks=[clock],
            data_collator=transformers.default_data_collator,  # all rows have the same length, so no padding
            args=transformers.TrainingArguments(
                output_dir=folder, learning_rate=RATE, num_train_epochs=size.epochs, weight_decay=0.01,
                per_device_train_batch_size=size.batch, bf16=True, use_cpu=on_cpu, save_strategy="no",
                eval_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
                logging_nan_inf_filter=False,  # otherwise every step waits for its loss
                dataloader_num_workers=0 if on_cpu else FEEDERS, dataloader_persistent_workers=not on_cpu,
            ),
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)  # it would print between the suite's output
        trainer.train()
    return size.examples / statistics.median(clock.seconds[1:])


class _TrainerDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """The rows as a dataset for the Trainer."""

    def __init__(self, data: EncodedData) -> None:
        self.rows = [
            {"input_ids": list(row.pieces), "attention_mask": [1] * len(row.pieces), "labels": row.label}
            for row in data.train.rows
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


class _Clock(transformers.TrainerCallback):
    """Training seconds of each of the Trainer's epochs."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self.started = device, list[float](), 0.0

    def on_epoch_begin(self, *arguments: Any, **more: Any) -> None:
        """Start the clock."""
        wait(self.device)
        self.started = time.perf_counter()

    def on_epoch_end(self, *arguments: Any, **more: Any) -> None:
        """Record the epoch's seconds."""
        wait(self.device)
        self.seconds.append(time.perf_counter() - self.started)
