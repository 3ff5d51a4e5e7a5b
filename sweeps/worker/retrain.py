"""`train FILE`: train an exported setting from scratch, and compare with the recorded score."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from meltpoint.adapters import encoders, heads, modes, settings
from meltpoint.adapters.families import encoder_word, short_name
from meltpoint.adapters.hardware import claim_device
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.settings import check_mode, check_possible
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import NotFiniteError, TrialState
from meltpoint.search_spaces import documents, files
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.specification.provenance import (
    checked_provenance,
    code_version,
    reasons,
    recorded_code,
    recorded_dev,
    versions,
)
from meltpoint.sweeps.specification.space_rules import with_word_tokenizer
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.sweeps.worker.worker import hardware_record, save_weights, training
from meltpoint.tasks import get
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec


@dataclass(frozen=True)
class Retrained:
    """The result of training an exported setting again.

    Attributes:
        dev: the task's metric at the best epoch.
        test: the task's metric on test; None if it was not requested or cannot be computed.
        recorded: the dev score that the file records for this seed, or None.
        reasons: differences from the file's record, if the scores differ.
    """

    metric: str
    dev: float
    test: float | None
    seed: int
    setting: Setting
    recorded: float | None
    reasons: tuple[str, ...] = ()

    @property
    def same(self) -> bool | None:
        """True if dev equals the recorded score, to the last bit; None if none is recorded."""
        return None if self.recorded is None else self.recorded == self.dev

    def comparison(self) -> str:
        """One line that compares dev with the recorded score and names other differences if they are not equal."""
        if self.recorded is None:
            return f"The file records no dev score for seed {self.seed}."
        says = f"The file records {self.recorded!r} for seed {self.seed}"
        if self.same:
            return f"{says}: equal."
        if not self.reasons:
            return (
                f"{says}: different, and nothing that it records explains it: code, packages, encoder and hardware are "
                "the same. Was the file changed by hand?"
            )
        return f"{says}: different. Other differences: {'; '.join(self.reasons)}."

    def as_json(self) -> dict[str, Any]:
        """The document of `train --json`."""
        return {
            "metric": self.metric, "dev": self.dev, "test": self.test, "seed": self.seed, "setting": dict(self.setting),
            "recorded": self.recorded, "same": self.same, "reasons": list(self.reasons),
        }  # fmt: skip


def retrain(
    path: str, seed: int | None, with_test: bool, data_dir: str | None, on_epoch: Callable[[EpochResult], None],
    out: Path | None = None, plain: bool = False,
) -> Retrained:  # fmt: skip
    """Train the one point of a file.

    Args:
        path: an exported file, or any space with one point that names encoder, mode and task.
        seed: the seed; None for the search's.
        with_test: score the test split too; only the user may request this.
        data_dir: the folder of the data; None for the recorded one.
        out: the folder to write the model to (`adapters.exported_model`), or None to keep nothing.
        plain: write a plain transformers folder instead (`adapters.exported_transformers`).

    Raises:
        ValueError: bad input, no labelled test to score, or transformers has no class for the model; one line with the
            remedy.
        ArithmeticError: the loss was not finite.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out {out} already exists; use another folder, or remove it.")
    if plain and out is None:
        raise ValueError("--transformers sets the format of --out; name a folder with --out.")
    with tempfile.TemporaryDirectory(prefix="meltpoint-train-") as folder:
        order, facts = prepared(path, seed, data_dir, folder)
        if with_test:
            check_test(order)
        trainer = training([order], claim_device(int(order.cpus), order.gpus))
        if plain:  # refused before hours of training, not after
            from meltpoint.adapters.exported_transformers import head_weights  # transformers takes seconds to import

            head_weights(trainer.model, trainer.data.task, order.head, order.setting)
        for ((_, result),) in trainer.epochs():
            if isinstance(result, NotFiniteError):
                raise result
            on_epoch(result)
        (trial,) = trainer.trials
        save_weights(trial.best_state, Path(order.checkpoint))
        test = None
        if with_test or out is not None:
            from meltpoint.sweeps.worker.finalist_scoring import predict, restore  # the ledger comes with it

            trained = restore([order])
            if with_test:
                (tested,) = predict(order, trained, open_test(order.data).examples, "test")
                test = tested.metrics.get(trainer.data.task.metric)
            if out is not None:
                kept = {"trained_from": path, "seed": order.seed, "dev": trial.best[0], "test": test}
                _keep(order, trained, out, kept, plain)
    seed = order.seed
    recorded, dev, metric = recorded_dev(facts, seed), trial.best[0], trainer.data.task.metric
    hardware = hardware_record(trainer).model_dump()
    was = {**facts, "code": recorded_code(facts, seed)}
    why: tuple[str, ...] = ()
    if recorded not in (None, dev):
        why = reasons(was, code_version(), versions(), hardware, is_frozen=not trainer.trains_encoder)
        chosen = _chosen_before(trial, facts, seed, metric)
        if chosen is not None:
            now = f"{chosen}, in the first phase, as earlier versions chose → {trial.best[1]}"
            why = (f"the epoch of the result: {now}", *why)
    return Retrained(metric, dev, test, seed, order.setting, recorded, why)


def _chosen_before(trial: TrialState, facts: Mapping[str, Any], seed: int, metric: str) -> int | None:
    """The epoch before the last phase that gave a file's dev score; None for an epoch of the last phase."""
    named = facts.get("best_epoch") if facts.get("seed") == seed else None
    recorded, last = recorded_dev(facts, seed), trial.results[-1].phase
    earlier = (one for one in trial.results if one.phase != last)
    return next((one.epoch for one in earlier if one.epoch == named or one.dev[metric] == recorded), None)


def check_test(order: Order) -> None:
    """Check before training that the test split can be scored.

    Raises:
        ValueError: the split is missing, or its labels are hidden.
    """
    state = sources.check(order.data)
    if state in ("absent", "hidden"):
        why = "has no test split here" if state == "absent" else "keeps its test labels hidden, so it cannot be scored"
        raise ValueError(f"--test: {order.task} {why}; leave --test out.")


def _keep(order: Order, trained: Trainer, out: Path, facts: Mapping[str, Any], plain: bool) -> None:
    """Write a trained model to a folder that loads without the data, the setting's file and the original encoder."""
    facts, model, task = {**facts, "code": code_version()}, trained.model, trained.data.task
    if plain:
        from meltpoint.adapters.exported_transformers import save_transformers_folder  # as above

        save_transformers_folder(out, model, task, order.mode, order.head, order.setting, facts)
        return
    from meltpoint.adapters.exported_model import save_folder

    save_folder(out, model, task, order.mode, order.head, order.setting, trained.precision, facts)


def load_point(path: str) -> Space:
    """A file's space, which must have one point and name its cell.

    Raises:
        ValueError: it has several points, does not name its cell, or has a key without a value.
    """
    document = documents.read(Path(path))
    cell = files.cell_of(document, path)
    missing = [word for word in ("encoder", "mode", "task") if not cell.get(word)]
    if missing:
        raise ValueError(f"{path} does not name its {', '.join(missing)}; export a best setting, or add the lines.")
    empty = [name for name, value in files.parameters_of(document, path).items() if value is None]
    if empty:
        raise ValueError(f"{path}: {', '.join(empty)} has no value; the file may be truncated; export it again.")
    head = named_head(cell)
    heads.get(head)
    space = files.load(path, {own.name: own for own in settings.parameters(cell["mode"], head)}, mode=cell["mode"])
    if any(range_.count != 1 for range_ in space.parameters.values()):
        raise ValueError(f"{path} is a space with several points; `train` takes one setting: use `sweep --space`.")
    return space


def named_head(cell: Mapping[str, Any]) -> str:
    """The head that a setting's file names, or the default of its mode, encoder and kind of task."""
    if cell.get("head"):
        return str(cell["head"])
    kind = get(cell["task"]).kind
    reference = encoders.with_pooling(encoders.resolve(cell["encoder"], kind))
    return modes.get(cell["mode"]).default_heads.of(reference, kind).name


def prepared(path: str, seed: int | None, data_dir: str | None, folder: str) -> tuple[Order, Mapping[str, Any]]:
    """The order to train a file's point, checked against the present files and data; and its provenance.

    Raises:
        ValueError: bad input; one line with the remedy.
    """
    space = load_point(path)
    facts = checked_provenance(space.provenance, path)
    return _order(path, space, facts, facts["seed"] if seed is None else seed, data_dir, folder), facts


def _order(path: str, space: Space, facts: Mapping[str, Any], seed: int, data_dir: str | None, folder: str) -> Order:
    data: Mapping[str, Any] = facts.get("data") or {}
    spec = DataSpec(
        data.get("task") or space.cell["task"], data_dir or data.get("data_dir"), data.get("max_train_examples"),
        data.get("test_from"), data.get("max_dev_examples"), nested=data.get("nested", False),
    )  # fmt: skip
    mode, task, named = space.cell["mode"], get(spec.task), space.cell["task"]
    if named not in (spec.task, task.name):
        raise ValueError(
            f"{path} names the task {named} but was found on {task.name}; set its task to {task.name}, or remove "
            "`provenance` from the file to train the setting on another task."
        )
    head = named_head(space.cell)
    if facts.get("metric") not in (None, task.metric):
        raise ValueError(
            f"{path} was found by {facts['metric']}, but the metric of {task.name} is now {task.metric}; restore the "
            "old one, or remove `provenance` from the file."
        )
    encoder = str(space.cell["encoder"])
    word = "" if short_name(encoder) == encoder else encoder_word(encoder)
    reference = encoders.resolve(encoder, task.kind)
    check_possible(reference, head, task.kind)
    check_mode(reference, str(space.cell["mode"]), head, task.kind)
    space = with_word_tokenizer(space, reference, task)
    recorded, files = facts.get("encoder_fingerprint"), encoders.fingerprint(reference)
    if recorded not in (None, "", files):
        raise ValueError(
            f"{path} was found with other files of {reference.word} ({recorded}, here {files}); restore the old ones, "
            "or remove `encoder_fingerprint` from the file."
        )
    fingerprint = load_training_data(spec).fingerprint
    if data.get("fingerprint") not in (None, fingerprint):
        raise ValueError(f"{path} was found on other data ({data['fingerprint']}, here {fingerprint}); use --data-dir.")
    hardware: Mapping[str, Any] = facts.get("hardware") or {"gpu_share": float(torch.cuda.is_available())}
    return Order(
        id="retrained", number=0, role="final", encoder=short_name(encoder), encoder_word=word, mode=mode,
        task=task.name, head=head, seed=seed, setting=settings.complete(space.first(), mode, head, task.kind),
        data=spec,
        data_fingerprint=fingerprint,
        documents_fingerprint=data.get("documents") or "", encoder_fingerprint=files,
        checkpoint=folder, cpus=hardware.get("threads", 1), gpus=hardware.get("gpu_share", 0.0),
        cache=folder, micro_batch_size=facts.get("micro_batch_size"),
        gradient_checkpointing=facts.get("gradient_checkpointing", False),
    )  # fmt: skip
