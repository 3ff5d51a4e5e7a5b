"""Any Hugging Face transformers encoder: safetensors only, no remote code, all layers' states, layer groups."""

from __future__ import annotations

import copy
import inspect
import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.batch import UNPADDED, Batch, Row, Unpadded, is_worthwhile
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.data.input_format import Prompts, SentencePooling
from meltpoint.adapters.data.tokenising import PieceTokenizer
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.families import EncoderReference
from meltpoint.adapters.families.huggingface import architecture, configuration, files, pretrained
from meltpoint.adapters.families.huggingface.architecture import name_without
from meltpoint.adapters.families.huggingface.pretrained import UNBOUNDED, TransformersHead
from meltpoint.adapters.files import give_usual_mode
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding, compact

_ROUNDING = 1e-4
"""The largest allowed difference between a shortcut's states and the full computation's, in float32."""


class HuggingFaceEncoder(Encoder):
    """A masked language model's encoder, without its pooler and its language-model head.

    Args:
        model: the encoder, loaded, in float32.
        tokenizer: the tokenizer it was pretrained with.
        fingerprint: sha256 (hex, 16 characters) of the files that it was loaded from.
        revision: a folder, or `ID@COMMIT`.
        pooling: the pooling that turns its states into a sentence vector, if it was trained with one.
        prompts: the prefixes that it was trained with.
        sentence_files: the files that make it a sentence encoder, for `save` (`configuration.read_files`).

    Attributes:
        separate_above: the length of a batch, in pieces, above which each pass reads rows of the same length only: 0 if
            padding changes the states next to it (FNet, ConvBERT).
    """

    family = "hf"
    tokenizer: PieceTokenizer

    def __init__(
        self, model: Any, tokenizer: Any, fingerprint: str, revision: str, pooling: SentencePooling | None = None,
        prompts: Prompts | None = None, sentence_files: Mapping[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model = model
        self.fingerprint = fingerprint
        self.revision = revision
        self.pooling = pooling
        self._sentence_files = sentence_files or {}
        self.max_pieces = pretrained.longest_input(architecture.positions_of(model), tokenizer)
        self.tokenizer = PieceTokenizer(tokenizer, self.max_pieces, _takes_segments(model), prompts)
        self._position_padding = architecture.position_padding(model)
        self.separate_above = self._own_change = architecture.length_of_change(model.config)
        self._window = architecture.window_of(model.config)
        self.static = self.separate_above >= UNBOUNDED
        self.supports_checkpointing = architecture.supports_checkpointing(model)
        self._dropout: float | None = None
        self._lora: tuple[Any, ...] = ()  # peft's model, in a tuple, so that it is no part of this module
        self._frozen_below: int | None = None
        self.padding_free = self._leaves_out = self._always_masks = False
        rows = architecture.rows_to_check(model, self.tokenizer, tokenizer)
        alone = self._read_plainly(rows)
        architecture.make_dropouts_real(model)
        self.eval()
        if model.is_backend_compatible():
            model.set_attn_implementation(architecture.register())
        self._choose_reading(rows, alone)
        with torch.enable_grad():
            states = self(self._batch("a b"))
        self._group_of = architecture.find_groups(model, states)
        self._take_up_short_cuts()
        if self.padding_free and not self._reads(rows, alone):
            self.padding_free = self._leaves_out = False
        self._choose_attention(UNBOUNDED)
        sizes = {states.shape[-1] for states in alone[0]}
        self.dim, self.layers = min(sizes), len(alone[0])
        if len(sizes) > 1:
            raise ValueError(
                f"{revision} has layers of several sizes ({type(model).__name__}); such encoders are not supported."
            )

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Every layer's states, embeddings first: a tuple of (batch, pieces, dim)."""
        unpadded = self._unpadded(batch)
        if unpadded is not None:
            return tuple(_in_rows(self._run_unpadded(batch, unpadded), unpadded))
        if batch.padded and batch.pieces.shape[1] > self.separate_above:
            return self._run_by_length(batch)
        return self._run_rows(batch.pieces, batch.segments, batch.piece_mask if batch.padded else None)

    def top(self, batch: Batch) -> Tensor:
        """The last layer's states: (batch, pieces, dim), or (batch, 1, dim) of the first pieces alone."""
        unpadded = self._unpadded(batch)
        if unpadded is None:
            return super().top(batch)
        (top,) = _in_rows(self._run_unpadded(batch, unpadded)[-1:], unpadded)
        return top

    def checkpoint(self) -> None:
        """See `Encoder.checkpoint`; by transformers, each layer by itself."""
        self.model.config.use_cache = False  # else transformers warns of it
        self.model.activation_checkpointing_enable()
        self.model.disable_input_require_grads()  # else gradients would also flow through frozen layers, to no use
        self.checkpoints, self.static = True, False  # a CUDA graph cannot hold a random state that is put back

    def freeze_below(self, layer: int) -> bool:
        """See `Encoder.freeze_below`; the shortcut is compared with the full computation on two rows."""
        if len(architecture.layer_stack(self.model)) != self.layers - 1 or self.separate_above < UNBOUNDED:
            return False
        self.eval()
        batch = self._batch("a b c", "a").to(next(self.parameters()).device)
        with torch.no_grad():
            states, expected = self(batch)[layer], self.top(batch)
            found = self.top_from(batch, states, layer)
        is_same = torch.allclose(found[batch.piece_mask], expected[batch.piece_mask], atol=_ROUNDING)
        self._frozen_below = layer if is_same else None
        return is_same

    def top_from(self, batch: Batch, states: Tensor, layer: int) -> Tensor:
        """`top`, with the layers above `layer` alone; transformers' own code calls them, on the given states."""
        stack, unpadded = architecture.layer_stack(self.model), self._unpadded(batch)
        given = states if unpadded is None else unpadded.unpad(states)[None]
        name = next(name for name, module in self.model.named_modules() if module is stack)
        hook = stack[layer].register_forward_pre_hook(lambda _, inputs: (given, *inputs[1:]))
        self.model.set_submodule(name, stack[layer:])
        try:
            return self.top(batch)
        finally:
            self.model.set_submodule(name, stack)
            hook.remove()

    def train(self, mode: bool = True) -> HuggingFaceEncoder:
        """Set training mode, except for layers that are frozen for good (`freeze_below`)."""
        super().train(mode)
        if mode and self._frozen_below is not None:
            layers = architecture.layer_stack(self.model)[self._frozen_below :]
            upper = {id(own) for layer in layers for own in layer.modules()}
            for module in self.modules():
                module.training = id(module) in upper
        return self

    def add_lora(self, rank: int, alpha: int) -> None:
        """See `Encoder.add_lora`; by the package `peft`, with its target "all-linear"; layers are replaced in place."""
        from peft import LoraConfig, get_peft_model

        groups = self._group_of
        self.model.name_or_path = ""  # peft would write this machine's path into the adapter
        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear")
        # peft asks transformers by an older name.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            self._lora = (get_peft_model(self.model, config),)
        for part in architecture.lora_parts(self.model):
            part.cast_input_dtype_enabled = False  # autocast casts what needs it
        self._group_of = {name: groups[name_without(name)] for name, _ in self.model.named_parameters()}

    def join_lora(self, others: Sequence[Encoder]) -> None:
        """See `Encoder.join_lora`; the states of a few rows are compared with those of each encoder alone.

        DeBERTa's layers also read its relative positions, which no trial has for itself.
        """
        every = (self, *others)
        batch = self._batch("a b c", "a").repeated(1).to(next(self.parameters()).device)
        parts = [architecture.lora_parts(one) for one in every]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for part in itertools.chain(*parts):  # at 0, as they begin, they would hide a difference
                nn.init.normal_(part.lora_B[architecture.ADAPTER].weight, std=0.02)
            expected = torch.cat([one.eval().top(batch) for one in every])
            architecture.put_side_by_side(parts)
            try:
                found = self.top(batch.repeated(len(every)))
                is_same = torch.allclose(found, expected, rtol=_ROUNDING, atol=_ROUNDING)
            except RuntimeError:  # an input that has no part for each trial
                is_same = False
            for part in parts[0]:
                part.lora_B[architecture.ADAPTER].weight.zero_()
        if not is_same:
            raise ValueError(f"trials cannot train side by side on {self.revision}.")

    def save_lora(self, folder: Path) -> None:
        """See `Encoder.save_lora`."""
        for adapted in self._lora:
            with pretrained.quiet():
                adapted.save_pretrained(str(folder))
            (folder / "README.md").unlink(missing_ok=True)  # peft's empty card

    def _unpadded(self, batch: Batch) -> Unpadded | None:
        """The layout of a batch without its padding; None if it has no padding, or must be read with it."""
        if batch.places is None or not self.padding_free or not is_worthwhile(batch.pieces):
            return None
        if batch.pieces.shape[1] > self.separate_above:
            return None
        return Unpadded(batch.places, batch.lengths, batch.cls_only and self._leaves_out)

    def _run_unpadded(self, batch: Batch, unpadded: Unpadded) -> tuple[Tensor, ...]:
        """Every layer's states of the real pieces, one row after another: (rounded pieces, dim).

        The top layer's states are (batch, dim) if only each row's first state will be read.
        """
        segments = {} if batch.segments is None else {"token_type_ids": unpadded.unpad(batch.segments)[None]}
        positions = unpadded.positions()
        if self._position_padding is not None:
            positions = unpadded.unpad(architecture.positions_after_padding(batch.pieces, self._position_padding))[None]
        more = {"position_ids": positions, UNPADDED: unpadded, **segments}
        if self._window is not None:  # a mask of four dimensions keeps the family from making one of all pieces' pairs
            more["attention_mask"] = unpadded.key_mask()
        return tuple(states[0] for states in self._run(input_ids=unpadded.unpad(batch.pieces)[None], **more))

    def _run_by_length(self, batch: Batch) -> tuple[Tensor, ...]:
        """Every layer's states, 0 where padded; rows of one length are read together, without padding."""
        order, longest = batch.piece_mask.sum(1).argsort(stable=True), batch.pieces.shape[1]
        groups, start = [], 0
        for length, count in Counter(batch.lengths).items():  # ascending
            rows = order[start : start + count]
            segments = None if batch.segments is None else batch.segments[rows, :length]
            states = self._run_rows(batch.pieces[rows, :length], segments, None)
            groups.append([functional.pad(layer, (0, 0, 0, longest - length)) for layer in states])
            start += count
        places = order.argsort()
        return tuple(torch.cat(layer)[places] for layer in zip(*groups, strict=True))

    def _run_rows(self, pieces: Tensor, segments: Tensor | None, mask: Tensor | None) -> tuple[Tensor, ...]:
        """Every layer's states of padded rows with their mask, or of rows of one length (None)."""
        if mask is None and self._always_masks:
            mask = torch.ones_like(pieces)
        masked = {} if mask is None else {"attention_mask": mask.long()}
        typed = {} if segments is None else {"token_type_ids": segments}
        return self._run(input_ids=pieces, **masked, **typed)

    def _run(self, **inputs: Any) -> tuple[Tensor, ...]:
        length = inputs["input_ids"].shape[1]
        self._choose_attention(length)
        states = self.model(**inputs, output_hidden_states=True, return_dict=True).hidden_states
        return tuple(layer if layer.shape[1] <= length else layer[:, :length] for layer in states)  # BigBird's blocks

    def _choose_attention(self, length: int) -> None:
        """Make BigBird attend as a fresh model does at this length; its own switch to full attention is permanent."""
        if getattr(self.model.config, "attention_type", None) != "block_sparse":
            return
        with torch.random.fork_rng(devices=[]):  # it recreates modules, with the old modules' weights
            self.model.set_attention_type("block_sparse" if length > self._own_change else "original_full")
        if self._dropout is not None:
            self.set_dropout(self._dropout)

    def save(self, folder: Path) -> None:
        """Write the encoder and its tokenizer in the hub's layout, so that `hf:FOLDER` reads them back.

        LoRA's matrices are merged into the weights. The folder names no labels, so that no classification pipeline runs
        on it (`leave_without_labels`).
        """
        with pretrained.quiet():
            model = copy.deepcopy(self._lora[0]).merge_and_unload() if self._lora else self.model
            model.save_pretrained(folder)
            self.tokenizer.save(folder)
        configuration.leave_without_labels(folder)
        configuration.write_files(folder, self._sentence_files)
        for path in files.weight_files(folder):
            give_usual_mode(path)

    def layer_groups(self) -> list[LayerGroup]:
        """The embeddings and each transformer layer, bottom → top; parameters above the last layer belong to it.

        Layers that share their weights (ALBERT) are one group.
        """
        parameters = dict(self.model.named_parameters())
        groups: dict[int, list[nn.Parameter]] = {}
        for name, number in self._group_of.items():
            groups.setdefault(number, []).append(parameters[name])
        names = ["embeddings" if 0 in groups else "layer_1", *(f"layer_{number}" for number in range(1, len(groups)))]
        return [LayerGroup(name, tuple(groups[number])) for name, number in zip(names, sorted(groups), strict=True)]

    def set_dropout(self, ratio: float) -> None:
        """See `Encoder.set_dropout`; attention's is included."""
        self._dropout = ratio
        architecture.set_dropout(self.model, ratio)

    def compact_pieces(self, pieces: Iterable[int]) -> CompactEmbedding | None:
        """Put a compact table where the model embeds its pieces (`compact_embedding.compact`).

        Some families (Longformer) pad their input themselves, with the padding piece of their configuration.
        """
        own = getattr(self.model.config, "pad_token_id", None)
        if isinstance(own, int) and 0 <= own < self.model.get_input_embeddings().num_embeddings:
            return compact(self.model, {*pieces, own})
        return compact(self.model, pieces)

    def _batch(self, *texts: str) -> Batch:
        """Sentences without labels."""
        framed = [self.tokenizer.sentence(text, self.max_pieces) for text in texts]
        rows = [Row(0, 0, tuple(pieces), tuple(segments), (), None) for pieces, segments, _ in framed]
        return _collated(rows, self.tokenizer)

    def _read_plainly(self, rows: Sequence[Row]) -> list[tuple[Tensor, ...]]:
        """Every layer's states of each row, read alone, with its mask, as transformers reads a text."""
        found = []
        for row in rows:
            batch = _collated([row], self.tokenizer)
            try:
                with torch.no_grad():
                    found.append(self._run_rows(batch.pieces, batch.segments, batch.piece_mask))
            except Exception as error:  # a family's code may raise anything for an unknown value
                reason = " ".join(str(error).split())[:200]
                raise ValueError(f"{self.revision}: transformers cannot read a text with it ({reason}).") from error
        return found

    def _choose_reading(self, rows: Sequence[Row], alone: Sequence[tuple[Tensor, ...]]) -> None:
        """Pad rows if that does not change their states; otherwise read rows of the same length together.

        The mask is left out if nothing is padded, unless the family then detects padding itself (XLM: its pad piece).
        """
        for separate_above, always_masks in itertools.product((self._own_change, 0), (False, True)):
            self.separate_above, self._always_masks = separate_above, always_masks
            if self._reads(rows, alone):
                return
        raise ValueError(
            f"{self.revision}: the states of a text depend on the other texts of its batch "
            f"({type(self.model).__name__}); such encoders are not supported."
        )

    def _reads(self, rows: Sequence[Row], alone: Sequence[tuple[Tensor, ...]]) -> bool:
        """True if the rows' states, together or alone, equal the states that transformers gives each row alone."""
        for chosen in (range(len(rows)), [1]):
            batch = _collated([rows[number] for number in chosen], self.tokenizer)
            with torch.no_grad():
                states = torch.stack(self(batch))
            for place, number in enumerate(chosen):
                expected = torch.stack(alone[number])[:, 0]
                near = _ROUNDING * max(1.0, float(expected.nan_to_num().abs().max()))
                found = states[:, place, : expected.shape[1]]
                if not torch.allclose(found, expected, rtol=0.0, atol=near, equal_nan=True):
                    return False
        return True

    def _take_up_short_cuts(self) -> None:
        """Enable the faster variants that give the same hidden states on two rows."""
        batch = self._batch("a b c" + " a" * (self._window or 0), "a")
        if batch.places is None:
            return
        unpadded = Unpadded(batch.places, batch.lengths)
        with torch.no_grad():
            self.padding_free = self._runs_without_padding(batch, unpadded)
            self._leaves_out = self.padding_free and self._can_leave_out(batch, unpadded)

    def _runs_without_padding(self, batch: Batch, unpadded: Unpadded) -> bool:
        """True if the family can read rows concatenated without padding.

        Its attention must be ours, also where it sees a window of a row; the first row exceeds that window.
        """
        takes_positions = "position_ids" in inspect.signature(self.model.forward).parameters
        if not (takes_positions and self.model.is_backend_compatible()):  # otherwise its attention is not ours
            return False
        expected = torch.stack(self(batch))[:, batch.piece_mask]
        found = torch.stack([unpadded.pad(states) for states in self._run_unpadded(batch, unpadded)])
        return torch.allclose(found[:, batch.piece_mask], expected, atol=_ROUNDING)

    def _can_leave_out(self, batch: Batch, unpadded: Unpadded) -> bool:
        """True if the top layer can be restricted to the first position (`cls_only`)."""
        expected = self.top(batch)[:, 0]
        top = architecture.layer_stack(self.model)[-1]
        if not architecture.adopt(top):
            return False
        found = self._run_unpadded(batch, replace(unpadded, cls_only=True))[-1]
        is_same = torch.allclose(found, expected, atol=_ROUNDING)
        if not is_same:
            architecture.restore(top)
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
        ValueError: the files are unavailable, are not the expected ones, or hold no encoder; one line with the remedy.
    """
    folder, revision = files.locate(reference)
    digest = files.fingerprint(reference, folder)
    model, tokenizer = pretrained.read(folder, reference.word, torch.float32)
    pooling = configuration.read_pooling(folder) or reference.pooling
    prompts = configuration.read_prompts(folder, reference.prompts)
    copied = configuration.read_files(folder, prompts)
    encoder = HuggingFaceEncoder(model, tokenizer, digest, revision, pooling, prompts, copied)
    encoder.native = TransformersHead(model.config, folder)
    return encoder


def _collated(rows: Sequence[Row], tokenizer: PieceTokenizer) -> Batch:
    return collate(rows, range(len(rows)), tokenizer.pad_piece, "sentence_classification")


def _takes_segments(model: Any) -> bool:
    """True if the encoder embeds a second segment."""
    known = "token_type_ids" in inspect.signature(model.forward).parameters
    return known and getattr(model.config, "type_vocab_size", 0) >= 2
