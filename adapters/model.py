"""An encoder, an optional mix of its layers, and a head, as one model in layer groups."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from meltpoint.adapters import heads, modes
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.hyperparameters import Seeds, Setting
from meltpoint.adapters.layers.affine import ScalarMix
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.adapters.layers.compact_embedding import Snapshot, snapshot
from meltpoint.tasks.core.task import Task


@dataclass(frozen=True)
class Member:
    """One trial of a bundle.

    Attributes:
        setting: a complete setting (`settings.complete`).
        seed: the trial's seed.
        separate: the seeds of its sources of randomness if they differ; None if all are `seed`.
    """

    setting: Setting
    seed: int
    separate: Seeds | None = None

    @property
    def seeds(self) -> Seeds:
        """The seed of each source of randomness."""
        return self.separate or Seeds.all_of(self.seed)


class AdaptedModel(nn.Module):
    """Encoder → hidden states → head, for a bundle of trials that share the encoder.

    Attributes:
        mix: the learned mixes of all layers, or None if the heads read the top layer.
        members: number of trials; more than one only if the encoder never trains.
    """

    def __init__(
        self, encoder: Encoder, head: Head, mix: ScalarMix | None, rng: MemberRng, members: int, pretrained: Encoder
    ) -> None:
        super().__init__()
        self._pretrained = (pretrained,)  # in a tuple, so that it is not part of this module
        self.encoder = encoder
        self.mix = mix
        self.head = head
        self.rng = rng
        self.members = members
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

    @property
    def layers_read(self) -> tuple[int, ...]:
        """Indices of the encoder's layers that the heads read, bottom → top."""
        return tuple(range(self.encoder.layers)) if self.mix is not None else (self.encoder.layers - 1,)

    def states(self, batch: Batch) -> Tensor:
        """The hidden states that the heads read: (members or 1, rows, pieces, dim)."""
        layers = batch.states if batch.states is not None else self._encode(batch)
        if self.mix is None:
            return layers[-1]
        mixed: Tensor = self.mix(layers)
        return mixed

    def _encode(self, batch: Batch) -> Tensor:
        """Run the encoder: (layers, lanes, rows, pieces, dim) of the layers that are read, or only [CLS]'s states.

        A frozen encoder returns all its states, which are cached for every head; otherwise only this head's states.
        """
        labels_words = self.head.shape.of_kind.labels_words
        cls_only = self.head.reads == "first" and not (self.encoder_is_frozen or labels_words)
        batch = replace(batch, cls_only=cls_only)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encoder_is_frozen):
            read = self.encoder.read_top(batch)[None] if self.mix is None else torch.stack(self.encoder.read(batch))
        return read.view(len(read), batch.lanes, -1, *read.shape[2:])

    def forward(self, batch: Batch) -> Tensor:
        """The heads' scores: (members, rows, outputs) or (members, rows, words, outputs)."""
        scores: Tensor = self.head(self.states(batch), batch)
        return scores

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """The head's and the mix's parameters by name; the first dimension of each is the members'."""
        return {name: own for name, own in self.named_parameters() if not name.startswith("encoder.")}

    def layer_groups(self) -> list[LayerGroup]:
        """Every parameter in one group, bottom → top; the head and the mix come last."""
        groups = [*self.encoder.layer_groups(), LayerGroup("head", tuple(self.own_parameters().values()))]
        covered = {id(parameter) for group in groups for parameter in group.parameters}
        assert covered == {id(parameter) for parameter in self.parameters()}, "a parameter is in no layer group"
        return groups

    def encoder_sizes(self) -> list[int]:
        """The number of weights of each layer group of the loaded encoder, with its whole table."""
        return [sum(p.numel() for p in group.parameters) for group in self._pretrained[0].layer_groups()]

    def own_weights(self, member: int) -> Snapshot:
        """A copy of a member's head and mix, in the shapes of a bundle of one."""
        own = self.own_parameters().items()
        return Snapshot({name: parameter.detach()[member : member + 1].clone() for name, parameter in own})

    def encoder_weights(self, copied: bool = True) -> Snapshot:
        """The encoder's weights, named as in this model.

        Args:
            copied: True for copies that further training does not change.
        """
        return snapshot(self.encoder, "encoder.", copied)

    def pretrained_weights(self) -> Snapshot:
        """The encoder's weights before its first step, not copied."""
        return snapshot(self._pretrained[0], "encoder.", copied=False)

    def load_trained(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Load weights: each member's own, and the encoder's if it was trained.

        Raises:
            ValueError: names or shapes that are not this model's.
        """
        assert len(states) == self.members, "one state per member"
        own = self.own_parameters()
        for name, parameter in own.items():
            if any(name not in state or state[name].shape[1:] != parameter.shape[1:] for state in states):
                raise ValueError(f"the weights do not fit the model: {name}")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(torch.cat([state[name] for state in states]))
        rest = {name.removeprefix("encoder."): tensor for name, tensor in states[0].items() if name not in own}
        if rest:
            self.encoder.load_state_dict(rest)

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members, in this order."""
        self.head.keep(members)
        if self.mix is not None:
            self.mix.keep(members)
        self.members = len(members)


def build(encoder: Encoder, task: Task, mode: str, head: str, members: Sequence[Member], device: str) -> AdaptedModel:
    """A fresh model on a device; a head's initial weights are a function of its member's `seeds.initial`.

    The given encoder stays unchanged; if it will train, the model gets a copy.

    Args:
        members: trials that agree on everything that shapes the computation (`settings.bundle_key`).
    """
    adaptation = modes.get(mode)
    assert len(members) == 1 or not adaptation.trains_encoder, "each trial trains its own encoder"
    shape = HeadShape(
        task.kind, encoder.dim, task.outputs, task.label_range,
        native=encoder.native, pooling=encoder.pooling, joins_pairs=encoder.tokenizer.joins_pairs,
        class_weights=task.class_weights,
    )  # fmt: skip
    seeds = [member.seeds for member in members]
    rng = MemberRng([each.dropout for each in seeds], [each.initial for each in seeds])
    top = heads.get(head)(shape, [member.setting for member in members], rng)
    mix = ScalarMix(encoder.layers, len(members)) if adaptation.layers(members[0].setting) == "mix" else None
    pretrained = encoder
    if adaptation.trains_encoder:
        encoder = copy.deepcopy(encoder, {id(encoder.tokenizer): encoder.tokenizer})  # weights only
        encoder.set_dropout(float(members[0].setting["encoder_dropout"]))
    model = AdaptedModel(encoder, top, mix, rng, len(members), pretrained)
    model.freeze_encoder(not adaptation.trains_encoder)
    return model.to(device)
