"""Hugging Face `Trainer.hyperparameter_search` on the Ray backend, set up as well as a careful user would.

benchmarks/README.md lists the options that were tried, and their effects."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import peft
import ray
import torch
import transformers
from ray import tune
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters import encoders
from meltpoint.adapters.hardware import bf16_is_native
from meltpoint.adapters.heads.linear import BERT_STD
from meltpoint.benchmarks.against_trainer import Answer, Job
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example, TrainingData


class SentenceClassifier(nn.Module):
    """An encoder with the same head as Meltpoint's `linear`.

    Args:
        encoder: a loaded encoder of transformers.
        frozen: True to run the encoder in evaluation mode and without gradients, which is the fastest way.
    """

    def __init__(self, encoder: Any, labels: int, dropout: float, frozen: bool) -> None:
        super().__init__()
        self.encoder, self.frozen = encoder, frozen
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(encoder.config.hidden_size, labels)
        nn.init.normal_(self.linear.weight, std=BERT_STD)
        nn.init.zeros_(self.linear.bias)
        if frozen:
            self.freeze(True)

    def freeze(self, frozen: bool) -> None:
        """Freeze or unfreeze every weight of the encoder."""
        self.frozen = frozen
        self.encoder.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> SentenceClassifier:
        """Set training mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        self.encoder.train(mode and not self.frozen)
        return self

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """{"loss", "logits"} of a batch; all inputs but `labels` are (batch, pieces)."""
        more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **more).last_hidden_state
        logits = self.linear(self.dropout(states[:, 0]))
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def build_model(job: Job, labels: int) -> SentenceClassifier:
    """The Trainer's `model_init`: a new model for each trial."""
    reference = encoders.resolve(job.encoder, "sentence_classification")
    revision = reference.revision or "main"
    config = transformers.AutoConfig.from_pretrained(reference.source, revision=revision)
    ratios = {"hidden_dropout_prob": job.dropout, "attention_probs_dropout_prob": job.dropout}
    bert: dict[str, Any] = {**ratios, "add_pooling_layer": False} if config.model_type == "bert" else {}
    encoder = transformers.AutoModel.from_pretrained(reference.source, revision=revision, **bert)
    if job.mode == "lora":
        encoder = peft.get_peft_model(
            encoder, peft.LoraConfig(r=job.lora_rank, lora_alpha=job.lora_alpha, target_modules="all-linear")
        )
    return SentenceClassifier(encoder, labels, job.dropout, frozen=job.mode == "feature_extraction")


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


class TwoPhaseTrainer(transformers.Trainer):
    """Two phases within one trial: a Trainer of the head on the frozen encoder, then a Trainer of all weights.

    Attributes:
        job: has the epochs of both phases and the learning rate of the first.
        labels: the number of classes.
    """

    job: Job
    labels: int

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:  # fmt: skip
        """Train both phases; the second is the Trainer's original `train`."""
        transformers.set_seed(self.args.seed)
        model = _model(self.job, self.labels)
        model.freeze(True)
        stack = replace(self.args, learning_rate=self.job.stack_learning_rate, num_train_epochs=self.job.stack_epochs)
        transformers.Trainer(
            model=model, args=stack, train_dataset=self.train_dataset, eval_dataset=self.eval_dataset,
            data_collator=self.data_collator, compute_metrics=self.compute_metrics,
        ).train()  # fmt: skip
        model.freeze(False)
        self.model_init = lambda: model  # type: ignore[assignment,return-value]
        return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)


def tokenised(examples: list[Example], tokenizer: Any, max_pieces: int) -> datasets.Dataset:
    """Tokenise a split once, without padding."""
    texts = [list(side) for side in zip(*(example.texts for example in examples), strict=True)]  # one list, or two
    columns = dict(tokenizer(*texts, truncation=True, max_length=max_pieces, padding=False))
    return datasets.Dataset.from_dict({**columns, "labels": [example.label for example in examples]})


def accuracy(prediction: Any) -> dict[str, float]:
    """The share of correct predictions."""
    return {"accuracy": float((np.argmax(prediction.predictions, -1) == prediction.label_ids).mean())}


def arguments(job: Job, folder: str) -> transformers.TrainingArguments:
    """The Trainer's arguments: the job's values, and the fastest choice for everything else."""
    return transformers.TrainingArguments(
        output_dir=folder, num_train_epochs=job.epochs, weight_decay=job.weight_decay,
        max_grad_norm=job.gradient_clip, per_device_train_batch_size=job.batch_size,
        per_device_eval_batch_size=64,  # the batch size of Meltpoint's evaluation
        eval_strategy="epoch", save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
        logging_nan_inf_filter=False,  # otherwise every step waits for its loss
        use_cpu=not torch.cuda.is_available(), bf16=bf16_is_native("cuda" if torch.cuda.is_available() else "cpu"),
        train_sampling_strategy="group_by_length" if job.group_by_length else "random", seed=job.seed,
    )  # fmt: skip


def trainer_for(job: Job, data: TrainingData, folder: str) -> transformers.Trainer:
    """Create the Trainer whose `hyperparameter_search` is called."""
    reference = encoders.resolve(job.encoder, data.task.kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(reference.source, revision=reference.revision or "main")
    two_phases = job.mode == "stack_and_finetune"
    trainer = (TwoPhaseTrainer if two_phases else transformers.Trainer)(
        model=None, args=arguments(job, folder),
        model_init=functools.partial(_model, job, data.task.outputs),  # type: ignore[arg-type]
        train_dataset=tokenised(data.train, tokenizer, job.max_pieces),
        eval_dataset=tokenised(data.dev, tokenizer, job.max_pieces),
        data_collator=transformers.DataCollatorWithPadding(tokenizer), compute_metrics=accuracy,
    )  # fmt: skip
    if isinstance(trainer, TwoPhaseTrainer):
        trainer.job, trainer.labels = job, data.task.outputs
    return trainer


def _model(job: Job, labels: int) -> SentenceClassifier:
    torch.set_num_threads(1)  # two concurrent trials on two cores
    return build_model(job, labels)


def _space(job: Job, trial: Any) -> dict[str, Any]:
    return {"learning_rate": tune.grid_search(list(job.learning_rates))}


def search(job: Job) -> Answer:
    """Run the search of one cell."""
    data = load_training_data(DataSpec(job.task))
    with tempfile.TemporaryDirectory(prefix="trainer-search-") as folder:
        trainer = trainer_for(job, data, folder)
        resources = {"cpu": 1, "gpu": min(job.trainer_gpus, trainer.args.n_gpu)}  # 0 without a GPU
        best = trainer.hyperparameter_search(
            hp_space=functools.partial(_space, job), compute_objective=lambda metrics: metrics["eval_accuracy"],
            n_trials=1, direction="maximize",
            backend="ray", resources_per_trial=resources, reuse_actors=True, verbose=0, storage_path=folder,
        )  # fmt: skip
    assert not isinstance(best, list)
    assert best.run_summary is not None
    trials = best.run_summary.trials
    ends = {trial: trial.last_result["timestamp"] for trial in trials}
    dev = {trial.config["learning_rate"]: trial.metric_analysis["objective"]["max"] for trial in trials}
    return Answer(
        dev={rate: dev[rate] for rate in job.learning_rates},
        first_began=min(end - trial.last_result["time_total_s"] for trial, end in ends.items()),
        last_ended=max(ends.values()),
    )


def main() -> None:
    """`python -m meltpoint.benchmarks.trainer_search JOBS.json ANSWERS.json`: search one cell after the other."""
    job_file, answer_file = (Path(argument) for argument in sys.argv[1:3])
    jobs = {cell: Job.model_validate(job) for cell, job in json.loads(job_file.read_text(encoding="utf-8")).items()}
    ray.init("local", num_cpus=next(iter(jobs.values())).slots, include_dashboard=False, log_to_driver=False)
    answers = {cell: search(job).model_dump() for cell, job in jobs.items()}
    answer_file.write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
