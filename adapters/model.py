"""An encoder, an optional mix of its layers, and a head, as one model in layer groups."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from meltpoint.adapters import heads, modes
from meltpoint.adapters.batch import Batch
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.parameters import Setting
from meltpoint.adapters.scalar_mix import ScalarMix
from meltpoint.tasks.core.task import Task


class AdaptedModel(nn.Module):
    """What is trained: encoder → states → head.

    Attributes:
        mix: the learned mix of all layers, or None where the head sees the top layer.
    """

    def __init__(self, encoder: Encoder, head: Head, mix: ScalarMix | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.mix = mix
        self.head = head
        self.encoder_is_frozen = False

    def freeze_encoder(self, frozen: bool) -> None:
        """A frozen encoder runs in evaluation mode and without gradients, so that its features never vary."""
        self.encoder_is_frozen = frozen
        self.encoder.train(self.training and not frozen)

    def train(self, mode: bool = True) -> AdaptedModel:
        """Training mode for the head, and for the encoder unless it is frozen."""
        super().train(mode)
        self.encoder.train(mode and not self.encoder_is_frozen)
        return self

    def states(self, batch: Batch) -> Tensor:
        """What the head sees: (batch, pieces, dim)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encoder_is_frozen):
            layers = self.encoder(batch)
        states: Tensor = layers[-1] if self.mix is None else self.mix(layers)
        return states

    def forward(self, batch: Batch) -> Tensor:
        """The head's scores: (batch, outputs) or (batch, words, outputs)."""
        scores: Tensor = self.head(self.states(batch), batch)
        return scores

    def layer_groups(self) -> list[LayerGroup]:
        """Every parameter in one group, bottom → top; the head and the mix come last."""
        own = [*self.head.parameters(), *(self.mix.parameters() if self.mix is not None else ())]
        groups = [*self.encoder.layer_groups(), LayerGroup("head", tuple(own))]
        covered = {id(parameter) for group in groups for parameter in group.parameters}
        assert covered == {id(parameter) for parameter in self.parameters()}, "a parameter is in no layer group"
        return groups

    def trained_state(self, encoder_trains: bool) -> dict[str, Tensor]:
        """A copy of the weights that training may have changed."""
        state = self.state_dict()
        return {k: v.detach().clone() for k, v in state.items() if encoder_trains or not k.startswith("encoder.")}


def build(encoder: Encoder, task: Task, mode: str, head: str, setting: Setting, device: str) -> AdaptedModel:
    """A fresh model on a device; the caller seeds the generator first, since the head starts from random weights.

    The encoder that is handed in stays as it was: where it will train, the model gets a copy.

    Args:
        setting: a complete setting (`catalogue.complete`).
    """
    adaptation = modes.get(mode)
    shape = HeadShape(task.kind, encoder.dim, task.outputs, task.label_range)
    top = heads.get(head)(shape, setting)
    mix = ScalarMix(encoder.layers) if adaptation.layers == "mix" else None
    if adaptation.trains_encoder:
        encoder = copy.deepcopy(encoder, {id(encoder.tokenizer): encoder.tokenizer})  # weights only
        encoder.set_dropout(float(setting["encoder_dropout"]))
    model = AdaptedModel(encoder, top, mix)
    model.freeze_encoder(not adaptation.trains_encoder)
    return model.to(device)
