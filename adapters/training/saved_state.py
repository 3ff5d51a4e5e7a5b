"""A trial's training state between two epochs, and its file.

Training continues from a restored state with the same bits.

Functions of seed, epoch and step are not stored, since the step determines them: the order of the data
(`data.batching`), the masks of the heads' dropout (`layers.bundle.MemberRng`), the seed of the encoder's dropout, the
schedule and its tricks (`multiplier_table`), and the frozen groups.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from meltpoint.adapters.files import replacing
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding
from meltpoint.adapters.model import AdaptedModel
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import Trainer


@dataclass(frozen=True)
class TrainingState:
    """A trial's state after an epoch.

    Attributes:
        tensors: name → the tensor itself, not a copy. `head/` has the head's weights and moments, `encoder/` the
            tensors that training changes in the encoder, `moments/` its optimiser's moments, `best/` the weights of the
            best epoch if they differ from the current ones, `gap/` the gap rule's state.
        facts: values that JSON represents exactly.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    @property
    def bytes(self) -> int:
        """The size of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def state_of(trainer: Trainer) -> TrainingState:
    """The state of a bundle of one between two epochs; valid until its next step."""
    (trial,) = trainer.trials
    parts: dict[str, Mapping[str, Tensor]] = {"head": trainer.head_optimiser.state()}
    if trainer.encoder_moved:
        assert trainer.encoder_optimiser is not None, "an optimiser has moved the encoder"
        parts |= {"encoder": changing(trainer.model), "moments": trainer.encoder_optimiser.moments()}
    if not _best_is_now(trainer):
        # If the encoder had not changed by its best epoch, its weights are the pretrained ones.
        parts["best"] = {name: own for name, own in trial.best_state.items()
                         if trial.best_moved_encoder or not name.startswith("encoder.")}  # fmt: skip
    if trainer.gap_rule.within is not None and trainer.gap_rule.watches(trial.table.plan, trainer.step + 1):
        weights, optimiser = trainer.gap_rule.within
        parts |= {"gap/weights": weights, "gap/optimiser": optimiser}
    facts = {
        "step": trainer.step, "encoder_moved": trainer.encoder_moved,
        "results": [result.model_dump() for result in trial.results],
        "best": trial.best, "best_moved_encoder": trial.best_moved_encoder,
        "first_phase_epochs": trial.table.plan.phases[0].epochs,
        "decays": {path: table.decay for path, table in _compact_tables(trainer.model.encoder)},
    }  # fmt: skip
    return TrainingState({f"{part}/{name}": own for part, all_ in parts.items() for name, own in all_.items()}, facts)


def restore(trainer: Trainer, state: TrainingState) -> None:
    """Restore a state in a fresh bundle of one."""
    (trial,), facts = trainer.trials, state.facts
    trainer.step, trainer.encoder_moved = facts["step"], facts["encoder_moved"]
    trial.results = [EpochResult(**result) for result in facts["results"]]
    if facts["first_phase_epochs"] != trial.table.plan.phases[0].epochs:
        trial.end_first_phase(facts["first_phase_epochs"])
    trial.follow_dev(trainer.data.task.metric)
    trainer.head_optimiser.load(_part(state, "head"))
    if trainer.encoder_moved:
        assert trainer.encoder_optimiser is not None, "an optimiser has moved the encoder"
        tensors = _part(state, "encoder")
        with torch.no_grad():
            for name, own in changing(trainer.model).items():
                own.copy_(tensors[name])
        for path, table in _compact_tables(trainer.model.encoder):
            table.decay = facts["decays"][path]
        trainer.encoder_optimiser.load_moments(_part(state, "moments"))
    _restore_best(trainer, state)
    if weights := _part(state, "gap/weights"):
        device = trainer.device
        optimiser = {name: own.to(device) for name, own in _part(state, "gap/optimiser").items()}
        trainer.gap_rule.within = {name: own.to(device) for name, own in weights.items()}, optimiser


def _restore_best(trainer: Trainer, state: TrainingState) -> None:
    (trial,), facts = trainer.trials, state.facts
    if facts["best"][1] == 0:  # the last phase has not begun
        return
    trial.best, trial.best_moved_encoder = (facts["best"][0], facts["best"][1]), facts["best_moved_encoder"]
    if _best_is_now(trainer):
        trial.best_state = trainer.weights(0, goes_on=True)
        return
    own = {name: weight.to(trainer.device) for name, weight in _part(state, "best").items()}
    is_pretrained = trainer.trains_encoder and not trial.best_moved_encoder
    trial.best_state = trainer.model.pretrained_weights() | own if is_pretrained else own


def _best_is_now(trainer: Trainer) -> bool:
    """True if the best epoch's weights are the current weights."""
    (trial,) = trainer.trials
    return trial.best[1] == trial.results[-1].epoch


def _part(state: TrainingState, part: str) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): own for name, own in state.tensors.items() if name.startswith(prefix)}


# The encoder.


def changing(model: AdaptedModel) -> dict[str, Tensor]:
    """The tensors of the encoder that training may change, by name: parameters and buffers.

    A `state_dict` does not suffice: it has the assembled embedding table, from which the decay cannot be recovered.
    """
    own = {name: parameter for name, parameter in model.encoder.named_parameters() if id(parameter) not in model.frozen}
    found: dict[str, Tensor] = {name: parameter.detach() for name, parameter in own.items()}
    for path, module in model.encoder.named_modules():
        if not isinstance(module, CompactEmbedding):  # its buffers never change
            found |= dict(module.named_buffers(path, recurse=False))
    return found


def _compact_tables(encoder: nn.Module) -> Iterator[tuple[str, CompactEmbedding]]:
    yield from ((path, own) for path, own in encoder.named_modules() if isinstance(own, CompactEmbedding))


# The file: safetensors with JSON in its metadata and a checksum over all of it, never a pickle.

FORMAT = 1


class DamagedStateError(ValueError):
    """A file that is not a complete training state."""


def write_state(path: Path, state: TrainingState, about: Mapping[str, Any]) -> None:
    """Write a state atomically; the file is synced before it is renamed.

    Args:
        about: further facts for the file, as JSON.
    """
    tensors = {name: own.detach().contiguous().cpu() for name, own in state.tensors.items()}
    words = json.dumps({"format": FORMAT, "facts": state.facts, "about": about})
    with replacing(path) as temporary:
        save_file(tensors, temporary, {"state": words, "sha256": _digest(tensors, words)})


def read_about(path: Path) -> dict[str, Any]:
    """The JSON next to a file's state, without reading the tensors; the file may still be damaged.

    Raises:
        DamagedStateError: its header cannot be read.
        FileNotFoundError: there is no file.
    """
    return dict(_read(path, with_tensors=False)[1])


def read_state(path: Path) -> TrainingState:
    """Read a file's state, and verify its checksum.

    Raises:
        DamagedStateError: the file is damaged.
        FileNotFoundError: there is no file.
    """
    return _read(path, with_tensors=True)[0]


def _read(path: Path, with_tensors: bool) -> tuple[TrainingState, dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            words, digest = metadata["state"], metadata["sha256"]
            names = sorted(file.keys()) if with_tensors else []
            tensors = {name: file.get_tensor(name) for name in names}
        if with_tensors and _digest(tensors, words) != digest:
            raise DamagedStateError("its checksum does not match")
        document = json.loads(words)
        if document["format"] != FORMAT:
            raise DamagedStateError(f"its format is {document['format']}")
        return TrainingState(tensors, document["facts"]), document["about"]
    except (FileNotFoundError, DamagedStateError):
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedStateError(" ".join(str(error).split()) or type(error).__name__) from None


def _digest(tensors: Mapping[str, Tensor], words: str) -> str:
    """sha256 over names, types, shapes, numbers and JSON."""
    digest = hashlib.sha256(words.encode())
    for name in sorted(tensors):
        own = tensors[name]
        digest.update(f"{name} {own.dtype} {tuple(own.shape)}".encode())
        digest.update(own.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
