"""An encoder, an optional mix of its layers, and a head, as one model in layer groups."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from meltpoint.adapters import heads, modes
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.layers.affine import ScalarMix
from meltpoint.adapters.layers.bundle import MemberRng, keep_members
from meltpoint.adapters.layers.side_by_side import SideBySide
from meltpoint.adapters.multiplier_table import Phase
from meltpoint.tasks.core.task import Task


@dataclass(frozen=True)
class Member:
    """One trial of a bundle.

    Attributes:
        setting: a complete setting (`settings.complete`).
        seed: the seed of the order of its examples, its initial weights and its dropout masks.
    """

    setting: Setting
    seed: int


class AdaptedModel(nn.Module):
    """Encoder → hidden states → head, for a bundle of trials that share the encoder.

    Attributes:
        mix: the learned mixes of all layers, or None if the heads read the top layer.
        members: number of trials; more than one only if they share the encoder's weights, but for `beside`.
        layers_read: indices of the encoder's layers whose cached states the model reads, bottom → top.
        starts_at: the layer whose cached states stand in for it and those below, which never train; None if the layers
            above it train, too, or the encoder cannot start there.
        frozen: ids of the encoder's parameters that never train, or train side by side.
        beside: the encoder's weights that each member has for itself, side by side, by name; empty if its weights are
            common to all members.
    """

    def __init__(
        self, encoder: Encoder, head: Head, mix: ScalarMix | None, rng: MemberRng, members: int, pretrained: Encoder,
        layers_read: tuple[int, ...],
    ) -> None:  # fmt: skip
        super().__init__()
        self._pretrained = (pretrained,)  # in a tuple, so that it is not part of this module
        self.encoder = encoder
        self.mix = mix
        self.head = head
        self.rng = rng
        self.members = members
        self.layers_read = layers_read
        self.beside = {f"{name}.weight": part for name, part in self.named_modules() if isinstance(part, SideBySide)}
        self.starts_at: int | None = None
        self.frozen: frozenset[int] = frozenset()
        self.encoder_is_frozen = False

    def freeze_encoder(self, frozen: bool) -> None:
        """Freeze or unfreeze the encoder; a frozen encoder runs in evaluation mode and without gradients."""
        self.encoder_is_frozen = frozen
        self.encoder.train(self.training and not frozen)

    def train(self, mode: bool = True) -> AdaptedModel:
        """Set training mode for the head, and for the encoder unless it is frozen."""
        super().train(mode)
        self.encoder.train(mode and not self.encoder_is_frozen)
        return self

    def states(self, batch: Batch) -> Tensor:
        """The hidden states that the heads read: (members or 1, rows, pieces, dim)."""
        layers = batch.states if batch.states is not None and self.starts_at is None else self._encode(batch)
        if self.mix is not None:
            return self.mix(layers)
        return layers[-1] if len(layers) == 1 else layers.float().mean(0)

    def _encode(self, batch: Batch) -> Tensor:
        """Run the encoder: (layers, lanes, rows, pieces, dim) of the layers that are read, or only [CLS]'s states.

        A frozen encoder returns all its states, which are cached for every head; otherwise only this head's states.
        """
        labels_words = self.head.shape.of_kind.labels_words
        cls_only = self.head.reads == "first" and not (self.encoder_is_frozen or labels_words)
        batch, lanes = replace(batch, cls_only=cls_only), batch.lanes
        if self.beside and self.members > 1:
            batch, lanes = batch.repeated(self.members // lanes), self.members
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encoder_is_frozen):
            if batch.states is not None and self.starts_at is not None:
                read = self.encoder.top_from(batch, batch.states[0, 0].float(), self.starts_at)[None]
            elif self.starts_at is not None or self.layers_read == (self.encoder.layers - 1,):
                read = self.encoder.read_top(batch)[None]
            else:
                every = self.encoder.read(batch)
                read = torch.stack([every[layer] for layer in self.layers_read])
        return read.view(len(read), lanes, -1, *read.shape[2:])

    def forward(self, batch: Batch) -> Tensor:
        """The heads' scores: (members, rows, outputs) or (members, rows, words, outputs)."""
        return self.head(self.states(batch), batch)

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Each member's own parameters by name, with the members as first dimension: head, mix and `beside`."""
        named = self.named_parameters()
        return {name: own for name, own in named if not name.startswith("encoder.") or name in self.beside}

    def layer_groups(self) -> list[LayerGroup]:
        """Every parameter that may train in one group, bottom → top; the head and the mix come last."""
        groups = [
            LayerGroup(group.name, tuple(own for own in group.parameters if id(own) not in self.frozen))
            for group in self.encoder.layer_groups()
        ]
        groups.append(LayerGroup("head", tuple(self.own_parameters().values())))
        covered = {id(parameter) for group in groups for parameter in group.parameters}
        trained = {id(parameter) for parameter in self.parameters()} - self.frozen
        trained |= {id(layer.weight) for layer in self.beside.values()}
        assert covered == trained, "a parameter is in no layer group"
        return groups

    @property
    def pretrained(self) -> Encoder:
        """The encoder before its first step, whose states may be cached."""
        return self._pretrained[0]

    @property
    def encoder_size(self) -> int:
        """The number of weights of the loaded encoder."""
        return sum(own.numel() for own in self.pretrained.parameters())

    def encoder_sizes(self, member: int = 0) -> list[int]:
        """The number of a member's weights of each layer group that may train, with the whole embedding table."""
        own = {id(layer.weight): layer.of(member).numel() for layer in self.beside.values()}
        if own:
            return [sum(own.get(id(p), 0) for p in group.parameters) for group in self.encoder.layer_groups()]
        groups = self.layer_groups()[:-1] if self.frozen else self.pretrained.layer_groups()
        return [sum(p.numel() for p in group.parameters) for group in groups]

    def own_weights(self, member: int) -> dict[str, Tensor]:
        """A copy of a member's own weights, in the shapes of a bundle of one."""
        own = {name: parameter.detach()[member : member + 1] for name, parameter in self.own_parameters().items()}
        own |= {name: layer.of(member) for name, layer in self.beside.items()}
        return {name: tensor.clone() for name, tensor in own.items()}

    def encoder_weights(self, copied: bool = True) -> dict[str, Tensor]:
        """The encoder's weights that may train, named as in this model; all of its tensors if all weights may.

        Args:
            copied: True for copies that further training does not change.
        """
        named = self.encoder.named_parameters() if self.frozen else self.encoder.state_dict().items()
        trained = {f"encoder.{name}": own.detach() for name, own in named if id(own) not in self.frozen}
        return {name: own.clone() for name, own in trained.items()} if copied else trained

    def pretrained_weights(self) -> dict[str, Tensor]:
        """The encoder's weights before its first step, not copied."""
        return dict(self.pretrained.state_dict(prefix="encoder."))

    def load_trained(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Load weights: each member's own, and the encoder's if it was trained.

        Raises:
            ValueError: names or shapes that are not this model's.
        """
        own = self.own_parameters()
        for name, parameter in own.items():
            if any(name not in state or state[name].shape[1:] != parameter.shape[1:] for state in states):
                raise ValueError(f"the weights do not fit the model: {name}")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(torch.cat([state[name] for state in states]))
        rest = {name.removeprefix("encoder."): tensor for name, tensor in states[0].items() if name not in own}
        if rest:
            self.encoder.load_state_dict(rest, strict=not self.frozen)

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members, in this order."""
        self.head.keep(members)
        if self.mix is not None:
            keep_members(self.mix, members)
        for layer in self.beside.values():
            layer.keep(members)
        self.members = len(members)


def build(
    encoder: Encoder, task: Task, mode: str, head: str, members: Sequence[Member], device: str, trains: bool = True
) -> AdaptedModel:
    """A fresh model on a device; a head's initial weights are a function of its member's seed.

    The given encoder stays unchanged; if it will train, the model gets a copy.

    Args:
        members: trials that agree on everything that shapes the computation (`settings.bundle_key`).
        trains: False for a model that only predicts, with an encoder that was trained before.

    Raises:
        ValueError: the mode or the setting does not fit the encoder.
    """
    adaptation = modes.get(mode)
    is_alone = adaptation.trains_encoder and not adaptation.side_by_side
    assert len(members) == 1 or not is_alone, "each trial trains its own encoder"
    shape = HeadShape(
        task.kind, encoder.dim, task.outputs, task.label_range,
        native=encoder.native, pooling=encoder.pooling, joins_pairs=encoder.tokenizer.joins_pairs,
        class_weights=task.class_weights,
    )  # fmt: skip
    rng = MemberRng([member.seed for member in members])
    top = heads.get(head)(shape, [member.setting for member in members], rng)
    setting = members[0].setting
    wanted = adaptation.layers(setting)
    mix = ScalarMix(encoder.layers, len(members)) if wanted == "mix" else None
    layers_read = tuple(range(encoder.layers))
    if wanted not in ("mix", "mean"):
        depth = 1.0 if wanted == "top" else float(wanted)
        layers_read = (math.floor(depth * (encoder.layers - 1) + 0.5),)
    pretrained = encoder
    if adaptation.trains_encoder:
        encoder = copy.deepcopy(encoder, {id(encoder.tokenizer): encoder.tokenizer})  # weights only
        encoder.set_dropout(float(setting["encoder_dropout"]))
        if adaptation.adapt is not None and trains:
            _adapt(encoder, members, adaptation.adapt)
    model = AdaptedModel(encoder, top, mix, rng, len(members), pretrained, layers_read)
    if adaptation.trains_encoder and trains:
        _freeze_for_good(model, adaptation.phases(setting))
    model.freeze_encoder(not adaptation.trains_encoder)
    return model.to(device)


def _adapt(encoder: Encoder, members: Sequence[Member], adapt: Callable[[Encoder, Setting], None]) -> None:
    """Give an encoder each member's new weights, which depend on its seed alone; several members' are side by side."""
    common = {id(own): own for own in (encoder.tokenizer, *encoder.parameters())}
    others = [copy.deepcopy(encoder, dict(common)) for _ in members[1:]]
    for one, member in zip((encoder, *others), members, strict=True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(member.seed)
            adapt(one, member.setting)
    if others:
        encoder.join_lora(others)


def _freeze_for_good(model: AdaptedModel, phases: Sequence[Phase]) -> None:
    """Set the parameters that never train, and the layer from which the others can be computed."""
    groups = model.encoder.layer_groups()
    lowest = next(index for index in range(len(groups) + 1)
                  if index == len(groups) or any(phase.trains(index, len(groups)) for phase in phases))  # fmt: skip
    below = {id(own) for group in groups[:lowest] for own in group.parameters}
    model.frozen = frozenset(below | {id(own) for own in model.encoder.parameters() if not own.requires_grad})
    for own in model.encoder.parameters():
        own.requires_grad_(id(own) not in model.frozen)
    model.frozen |= {id(layer.weight) for layer in model.beside.values()}
    if 0 < lowest < len(groups) == model.encoder.layers and model.encoder.freeze_below(lowest - 1):
        model.starts_at, model.layers_read = lowest - 1, (lowest - 1,)
