"""The model of a user of the Trainer: AutoModel → [CLS] → dropout → linear."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters import encoders
from meltpoint.adapters.heads.linear import BERT_STD
from meltpoint.benchmarks.job import Job


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
        self.freeze(frozen)

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
    return SentenceClassifier(encoder, labels, job.dropout, frozen=job.mode == "feature_extraction")
