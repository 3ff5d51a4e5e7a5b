"""Any encoder of Hugging Face transformers: safetensors only, never remote code, all layers out, in layer groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meltpoint.adapters import ops
from meltpoint.adapters.data.batch import Batch, Row
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.data.sentence_pooling import Prompts, SentencePooling
from meltpoint.adapters.data.tokenising import PieceTokenizer
from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded, is_worthwhile
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.families.huggingface import attention as transformers_attention
from meltpoint.adapters.families.huggingface import cls_only, fused_qkv, master_weights, residual_norm, sentence_files
from meltpoint.adapters.families.huggingface.files import fingerprint, weight_files
from meltpoint.adapters.families.huggingface.gelu import replace_gelus
from meltpoint.adapters.families.huggingface.location import locate
from meltpoint.adapters.families.huggingface.native_head import TransformersHead
from meltpoint.adapters.families.huggingface.no_classifier import leave_without_labels
from meltpoint.adapters.families.huggingface.pretrained import quiet, read
from meltpoint.adapters.families.huggingface.specialise import restore
from meltpoint.adapters.families.reference import EncoderReference
from meltpoint.adapters.files import give_usual_mode
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding, compact
from meltpoint.adapters.layers.quick_dropout import replace_dropouts

_UNBOUNDED = 100_000
"""transformers writes 1e30 as a tokenizer's longest input where it does not know it."""

_ROUNDING = 1e-4
"""How far a short cut's states may lie from the whole way's, in float32."""


class HuggingFaceEncoder(Encoder):
    """A masked language model's encoder, without its pooler and its language-model head.

    Args:
        model: the encoder, loaded, in float32.
        tokenizer: the tokenizer it was pretrained with.
        fingerprint: sha256 (hex, 16 characters) of the files that it was loaded from.
        revision: a folder, or `ID@COMMIT`.
        pooling: how a sentence's vector is made of its states, if it was trained with a pooling.
        prompts: the prefixes that it was trained with.
        sentence_files: what makes a sentence encoder of it, for `save` (`sentence_files.read_files`).
    """

    family = "hf"
    tokenizer: PieceTokenizer

    def __init__(
        self, model: Any, tokenizer: Any, fingerprint: str, revision: str, pooling: SentencePooling | None = None,
        prompts: Prompts | None = None, sentence_files: Mapping[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _make_dropouts_real(model)
        replace_dropouts(model)
        replace_gelus(model)
        self.model = model
        self.eval()
        self.fingerprint = fingerprint
        self.revision = revision
        self.pooling = pooling
        self._sentence_files = sentence_files or {}
        self.max_pieces = _longest_input(model, tokenizer)
        self.tokenizer = PieceTokenizer(tokenizer, self.max_pieces, _takes_segments(model), prompts)
        self._first_position = _first_position(model)
        self.padding_free = self._leaves_out = False
        states, self._above = self._probe()
        self._take_up_short_cuts()
        self.dim = states[0].shape[-1]
        self._layers = len(states)
        if any(state.shape[-1] != self.dim for state in states):
            raise ValueError(
                f"{revision} has layers of several sizes ({type(model).__name__}); such encoders are not supported."
            )

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Every layer's states, embeddings first: a tuple of (batch, pieces, dim)."""
        unpadded = self._unpadded(batch)
        if unpadded is not None:
            return tuple(_in_rows(self._run_unpadded(batch, unpadded), unpadded))
        mask = {"attention_mask": batch.piece_mask.long()} if batch.padded else {}
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        return self._run(input_ids=batch.pieces, **mask, **segments)

    def top(self, batch: Batch) -> Tensor:
        """The last layer's states: (batch, pieces, dim), or (batch, 1, dim) of the first pieces alone."""
        unpadded = self._unpadded(batch)
        if unpadded is None:
            return super().top(batch)
        (top,) = _in_rows(self._run_unpadded(batch, unpadded)[-1:], unpadded)
        return top

    def _unpadded(self, batch: Batch) -> Unpadded | None:
        """The form of a batch without its padding; None if it has none, or has to be read with it."""
        if batch.places is None or not self.padding_free or not is_worthwhile(batch.pieces):
            return None
        return Unpadded(batch.places, batch.lengths, batch.cls_only and self._leaves_out)

    def _run_unpadded(self, batch: Batch, unpadded: Unpadded) -> tuple[Tensor, ...]:
        """Every layer's states of the real pieces, one row after another: (rounded pieces, dim).

        The top layer's are (batch, dim) where each row's first one will be read alone.
        """
        segments = {} if batch.segments is None else {"token_type_ids": unpadded.unpad(batch.segments)[None]}
        positions = unpadded.positions() + self._first_position
        more = {"position_ids": positions, UNPADDED: unpadded, **segments}
        return tuple(states[0] for states in self._run(input_ids=unpadded.unpad(batch.pieces)[None], **more))

    def _run(self, **inputs: Any) -> tuple[Tensor, ...]:
        return tuple(self.model(**inputs, output_hidden_states=True, return_dict=True).hidden_states)

    def save(self, folder: Path) -> None:
        """Write the encoder and its tokenizer in the hub's layout, so that `hf:FOLDER` reads them back.

        The folder names no labels, so that no classification pipeline runs on it (`no_classifier`).
        """
        with quiet():
            self.model.save_pretrained(folder)
            self.tokenizer.save(folder)
        leave_without_labels(folder)
        sentence_files.write_files(folder, self._sentence_files)
        for path in weight_files(folder):
            give_usual_mode(path)

    @property
    def layers(self) -> int:
        """Number of layers that `forward` returns, embeddings included."""
        return self._layers

    def layer_groups(self) -> list[LayerGroup]:
        """The embeddings, each transformer layer, bottom → top; what lies above the last layer goes with it.

        Layers that share their weights (ALBERT) are one group.
        """
        stack = [list(layer.parameters()) for layer in _layer_stack(self.model)]
        inside = {id(parameter) for layer in stack for parameter in layer}
        outside = {name: p for name, p in self.model.named_parameters() if id(p) not in inside}
        bottom = [parameter for name, parameter in outside.items() if name not in self._above]
        stack[-1].extend(outside[name] for name in self._above)
        named = [("embeddings", bottom), *((f"layer_{number}", layer) for number, layer in enumerate(stack, 1))]
        return [LayerGroup(name, tuple(parameters)) for name, parameters in named if parameters]

    def set_dropout(self, ratio: float) -> None:
        """Set every dropout inside the encoder, attention's too; it acts in training mode only.

        Most families hold an `nn.Dropout` and hand its ratio to the fused attention; some (ModernBERT) keep the ratio
        of the attention as a plain number on the module.
        """
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = ratio
                continue
            for name, value in vars(module).items():
                if "dropout" in name and isinstance(value, float):
                    setattr(module, name, ratio)

    def compact_pieces(self, pieces: Iterable[int]) -> CompactEmbedding | None:
        """Put a compact table where the model embeds its pieces (`compact_embedding.compact`).

        Some families (Longformer) lengthen their input themselves, by the padding that their configuration names.
        """
        own = getattr(self.model.config, "pad_token_id", None)
        if isinstance(own, int) and 0 <= own < self.model.get_input_embeddings().num_embeddings:
            return compact(self.model, {*pieces, own})
        return compact(self.model, pieces)

    def train_in_bf16(self) -> dict[nn.Parameter, Tensor]:
        """Linear layers with masters (`master_weights`); none where only torch's AdamW could move them."""
        return master_weights.adopt(self.model) if ops.status() == "on" else {}

    def in_float32(self) -> AbstractContextManager[None]:
        """Linear layers read by their masters."""
        return master_weights.in_float32(self.model)

    def _probe(self) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
        """One forward pass: every layer's states, and the names of the parameters that lie above the layer stack.

        What the first layer's output depends on lies below or beside it (also DeBERTa's relative positions, which
        every layer reads); the rest outside the stack lies above it (ModernBERT's final norm).
        """
        batch = self._batch("a b")
        inside = {id(parameter) for parameter in _layer_stack(self.model).parameters()}
        outside = {name: p for name, p in self.model.named_parameters() if id(p) not in inside}
        with torch.enable_grad():
            states = self(batch)
            first = states[1] if len(states) > 2 else states[0]  # a single layer's output is already past the norm
            reached = torch.autograd.grad(first.sum(), list(outside.values()), allow_unused=True)
        above = tuple(name for name, gradient in zip(outside, reached, strict=True) if gradient is None)
        return tuple(state.detach() for state in states), above

    def _batch(self, *texts: str) -> Batch:
        """Sentences without labels."""
        framed = [self.tokenizer.sentence(text, self.max_pieces) for text in texts]
        rows = [Row(0, 0, tuple(pieces), tuple(segments), (), None) for pieces, segments, _ in framed]
        return collate(rows, range(len(rows)), self.tokenizer.pad_piece, "sentence_classification")

    def _take_up_short_cuts(self) -> None:
        """Enable the faster variants that give the same hidden states on two rows."""
        batch = self._batch("a b c", "a")
        with torch.no_grad():
            self._adopt(residual_norm.adopt, lambda: self(batch))
            if batch.places is None:
                return
            unpadded = Unpadded(batch.places, batch.lengths)
            self.padding_free = self._runs_without_padding(batch, unpadded)
            if self.padding_free:
                self._adopt(fused_qkv.adopt, lambda: self._run_unpadded(batch, unpadded))
                self._leaves_out = self._can_leave_out(batch, unpadded)

    def _runs_without_padding(self, batch: Batch, unpadded: Unpadded) -> bool:
        """True if the family can read rows concatenated without padding.

        Its attention has to be ours, and to see whole rows: two short ones would not show a window.
        """
        config, parameters = self.model.config, inspect.signature(self.model.forward).parameters
        windows = ("sliding_window", "local_attention", "attention_window")
        if any(getattr(config, name, None) for name in windows) or "position_ids" not in parameters:
            return False
        if not self.model.is_backend_compatible():  # its attention is not ours
            return False
        expected = torch.stack(self(batch))[:, batch.piece_mask]
        found = torch.stack([unpadded.pad(states) for states in self._run_unpadded(batch, unpadded)])
        return torch.allclose(found[:, batch.piece_mask], expected, atol=_ROUNDING)

    def _adopt(self, adopt: Callable[[nn.Module], bool], run: Callable[[], Sequence[Tensor]]) -> None:
        """Let every module that a short cut fits take it; all stay as they are where the states are others then."""
        expected = torch.stack(list(run()))
        adopted = [module for module in self.model.modules() if adopt(module)]
        if not torch.allclose(torch.stack(list(run())), expected, atol=_ROUNDING):
            for module in adopted:
                restore(module)

    def _can_leave_out(self, batch: Batch, unpadded: Unpadded) -> bool:
        """True if the top layer can be restricted to the first position (`cls_only`)."""
        expected = self.top(batch)[:, 0]
        top = _layer_stack(self.model)[-1]
        if not cls_only.adopt(top):
            return False
        found = self._run_unpadded(batch, replace(unpadded, cls_only=True))[-1]
        is_same = torch.allclose(found, expected, atol=_ROUNDING)
        if not is_same:
            restore(top)
        return is_same


def _in_rows(layers: Sequence[Tensor], unpadded: Unpadded) -> Iterator[Tensor]:
    """Layers without padding, the top one last → (batch, pieces, dim), or (batch, 1, dim) of the first pieces alone."""
    if not unpadded.cls_only:
        yield from map(unpadded.pad, layers)
        return
    for states in layers[:-1]:
        yield states.index_select(0, unpadded.first)[:, None]
    yield layers[-1][:, None]


def load(reference: EncoderReference) -> HuggingFaceEncoder:
    """Load an encoder and its tokenizer from its folder, or from the hub's cache.

    Raises:
        ValueError: the files cannot be had, are not the expected ones, or hold no encoder; one line with the remedy.
    """
    folder, revision = locate(reference)
    digest = fingerprint(reference, folder)
    model, tokenizer = read(folder, reference.word, torch.float32, _attention_kernel)
    pooling, prompts = sentence_files.read_pooling(folder) or reference.pooling, sentence_files.read_prompts(folder)
    files = sentence_files.read_files(folder)
    encoder = HuggingFaceEncoder(model, tokenizer, digest, revision, pooling, prompts, files)
    encoder.native = TransformersHead(model.config, folder)
    return encoder


def _attention_kernel(model_class: Any) -> str | None:
    """Ours where the family lets attention be replaced, else transformers' choice: torch's kernel where it can."""
    return transformers_attention.register() if model_class.is_backend_compatible() else None


def _layer_stack(model: nn.Module) -> nn.ModuleList:
    """The list of the transformer's layers: the one that holds most of the weights."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=lambda modules: sum(parameter.numel() for parameter in modules.parameters()))


def _make_dropouts_real(model: nn.Module) -> None:
    """Put a dropout where a ratio of 0 made a family build an identity instead (ModernBERT's `out_drop`)."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Identity) and "drop" in name:
                setattr(parent, name, nn.Dropout(0.0))


def _takes_segments(model: Any) -> bool:
    """True if the encoder embeds a second segment."""
    known = "token_type_ids" in inspect.signature(model.forward).parameters
    return known and getattr(model.config, "type_vocab_size", 0) >= 2


def _position_tables(model: nn.Module) -> list[nn.Embedding]:
    """The embeddings of absolute positions."""
    named = [module for name, module in model.named_modules() if name.endswith("position_embeddings")]
    return [module for module in named if isinstance(module, nn.Embedding)]


def _first_position(model: nn.Module) -> int:
    """The number of a row's first position: 0, or what follows those that RoBERTa keeps for padding."""
    return max((table.padding_idx + 1 for table in _position_tables(model) if table.padding_idx is not None), default=0)


def _longest_input(model: Any, tokenizer: Any) -> int:
    """The longest input in subword tokens: the position embeddings, less those that RoBERTa keeps for padding."""
    limit = int(getattr(model.config, "max_position_embeddings", _UNBOUNDED))
    limit = min([limit, *(table.num_embeddings - _first_position(model) for table in _position_tables(model))])
    known = tokenizer.model_max_length  # whatever tokenizer_config.json has under that name
    is_length = isinstance(known, int | float) and 0 < known < _UNBOUNDED
    return min(limit, int(known)) if is_length else limit
