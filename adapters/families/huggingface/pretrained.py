"""Models that transformers loads: an encoder and its tokenizer, checked to belong together, and its family's head.

`AutoModelForSequenceClassification` and `AutoModelForTokenClassification` know each family's classification head:
BERT's pooler, dropout and classifier, RoBERTa's dense layer and tanh, DistilBERT's dense layer and ReLU. Here the
family's own class gets a stand-in for the encoder that returns given hidden states, so that the family's own `forward`
computes the scores.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from meltpoint.adapters.data.tokenising import PieceTokenizer
from meltpoint.adapters.families import EncoderReference
from meltpoint.adapters.families.huggingface.configuration import read_prompts, supported_config
from meltpoint.adapters.families.huggingface.files import first_line, locate, weight_files
from meltpoint.adapters.head import Reads
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

AGAIN = "Copy or download the whole folder again."

UNBOUNDED = 100_000
"""Lengths from here on mean "no limit"; transformers writes 1e30 as a tokenizer's unknown longest input."""

RESERVED_POSITIONS = {
    "camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
"""Model types that number positions from `pad_token_id + 1`, so that the first position embeddings are never used."""


@cache
def check(folder: Path, word: str) -> None:
    """Refuse a folder whose model cannot be adapted; one that can is read once per process.

    Raises:
        ValueError: as `read`.
    """
    read(folder, word, "auto")  # weights in the file's dtype are memory-mapped, not copied


def read(folder: Path, word: str, dtype: torch.dtype | Literal["auto"]) -> tuple[Any, Any]:
    """Load the bare encoder, without a pooler, and its tokenizer.

    Args:
        folder: the folder of its files.
        word: the encoder's name on the command line, for messages.
        dtype: the weights' type; "auto" for the file's dtype.

    Raises:
        ValueError: it is not a text encoder, a file cannot be read, or the files do not belong together; one line.
    """
    with quiet():
        config = supported_config(folder, word)
        tokenizer = read_tokenizer(folder, word)
        model = _read_model(config, folder, word, dtype)
    pieces, rows = max(tokenizer.get_vocab().values()) + 1, model.get_input_embeddings().weight.shape[0]
    if pieces > rows:
        raise ValueError(
            f"{word}: its tokenizer has {pieces} pieces, but its weights embed {rows}. Save the tokenizer that the "
            f"weights were trained with, or resize the embeddings (resize_token_embeddings) and save both again."
        )
    return model, tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' load reports and progress bars; errors are raised by the callers instead."""
    log: Any = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def read_tokenizer(folder: Path, word: str) -> Any:
    """Load a fast tokenizer, without running code from the folder."""
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # tokenizers raises a plain Exception for a damaged tokenizer.json
        raise ValueError(
            f"{word}: its tokenizer cannot be read ({first_line(error)}). Save it again next to the weights."
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{word} has no fast tokenizer; save one next to the weights as tokenizer.json.")
    return tokenizer


def _read_model(config: Any, folder: Path, word: str, dtype: torch.dtype | Literal["auto"]) -> Any:
    """Load the bare encoder without a pooler; every weight must be in the file."""
    classes: Any = transformers.MODEL_MAPPING[type(config)]
    model_class = classes[0] if isinstance(classes, tuple) else classes
    takes_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
    pooler = {"add_pooling_layer": False} if takes_pooler else {}
    try:
        model, report = model_class.from_pretrained(
            folder, config=config, use_safetensors=True, dtype=dtype, local_files_only=True,
            output_loading_info=True, ignore_mismatched_sizes=True, **pooler,
        )  # fmt: skip
    except MemoryError:
        raise
    except Exception as error:  # a family's code may raise anything for an unknown value
        raise ValueError(f"{word}: its weights do not fit its config.json ({first_line(error)}). {AGAIN}") from error
    for name, in_file, expected in sorted(report["mismatched_keys"]):
        shapes = f"{name} is {tuple(in_file)} in the file but {tuple(expected)} by config.json"
        raise ValueError(f"{word}: its weights do not fit its config.json: {shapes}. {AGAIN}")
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        lack = f"lacks {len(missing)} of the encoder's weights that its config.json names, including {missing[0]}"
        raise ValueError(f"{word} {lack}. {AGAIN}")
    unread = _without_place(model, report["unexpected_keys"])
    if unread:
        raise ValueError(
            f"{word} holds {len(unread)} weights that {model_class.__name__} does not use by its config.json, "
            f"including {unread[0]}, so its states would differ from its makers'. Save the encoder without them."
        )
    if not takes_pooler and isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = nn.Identity()
    return model


def _without_place(model: Any, unexpected: Iterable[str]) -> list[str]:
    """The unexpected weights inside the encoder (adapters, further layers), without heads and buffers."""
    inside = {name.partition(".")[0] for name, _ in model.named_parameters()}
    buffers = {name for name, _ in model.named_buffers()}
    names = {name: name.removeprefix(f"{model.base_model_prefix}.") for name in unexpected}
    return sorted(n for n, own in names.items() if own.partition(".")[0] in inside and own not in buffers)


def load_tokenizer(reference: EncoderReference) -> PieceTokenizer:
    """The tokenizer of an encoder's folder, downloaded first if necessary; it gives no segments.

    Its longest input is the loaded encoder's, without the model's class, which takes seconds to import.

    Raises:
        ValueError: the files are not available, or cannot be read; one line with the remedy.
    """
    folder, _ = locate(reference)
    with quiet():
        tokenizer = read_tokenizer(folder, reference.word)
        config = supported_config(folder, reference.word)
    positions = int(getattr(config, "max_position_embeddings", UNBOUNDED))
    pad = 1 if config.model_type == "mpnet" else getattr(config, "pad_token_id", None)
    if config.model_type in RESERVED_POSITIONS and isinstance(pad, int):
        positions -= pad + 1
    longest = longest_input(positions, tokenizer)
    return PieceTokenizer(tokenizer, longest, token_types=False, prompts=read_prompts(folder, reference.prompts))


def longest_input(positions: int, tokenizer: Any) -> int:
    """The longest input in subword tokens: an encoder's positions, or its tokenizer's limit if that is less."""
    known = tokenizer.model_max_length  # the unchecked value from tokenizer_config.json
    is_length = isinstance(known, int | float) and 0 < known < UNBOUNDED
    return min(positions, int(known)) if is_length else positions


# The classification head, without the encoder below it.


class GivenOutput(BaseModelOutputWithPooling):
    """Hidden states; other outputs of some encoders (Longformer's global attention) are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class GivenStates(nn.Module):
    """A stand-in for the encoder that returns given hidden states, and the encoder's pooler's output for them.

    Args:
        encoder: the encoder to replace; its pooler is reused.
        has_pooler: whether the head reads the encoder's pooler.
    """

    def __init__(self, encoder: nn.Module, has_pooler: bool) -> None:
        super().__init__()
        self.states: Tensor | None = None
        self.pooler: nn.Module | None = getattr(encoder, "pooler", None) if has_pooler else None
        self.pooler_activation: nn.Module | None = getattr(encoder, "pooler_activation", None) if self.pooler else None

    def forward(self, *_: Any, **__: Any) -> GivenOutput:
        """The states, (batch, pieces, dim), and the pooled one, (batch, dim)."""
        assert self.states is not None, "the states are given before the call"
        return GivenOutput(last_hidden_state=self.states, pooler_output=self._pooled(self.states))

    def _pooled(self, states: Tensor) -> Tensor:
        """The first piece's state, passed through the pooler if there is one."""
        if self.pooler is None:
            return states[:, 0]
        if not isinstance(self.pooler, nn.Linear):
            pooled: Tensor = self.pooler(states)
            return pooled
        pooled = self.pooler(states[:, 0])  # ALBERT's pooler is only the dense layer; its tanh is another module
        return pooled if self.pooler_activation is None else self.pooler_activation(pooled)


class PlainHead(nn.Module):
    """A family's head for one trial; its parameters have the names of the family's own class after `model.`.

    Args:
        model: the family's class, with `GivenStates` instead of its encoder.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(batch, pieces, dim) and their mask, (batch, pieces) → (batch, outputs) or (batch, pieces, outputs)."""
        given = getattr(self.model, self.model.base_model_prefix)
        given.states = states
        pieces = torch.zeros(mask.shape, dtype=torch.int64, device=states.device)  # some heads read their shape
        logits: Tensor = self.model(input_ids=pieces, attention_mask=mask.long(), return_dict=True).logits
        given.states = None
        return logits


class TransformersHead:
    """The head of a checkpoint's family (`adapters.head.FamilyHead`).

    Args:
        config: the encoder's configuration.
        folder: the folder of the checkpoint's weights; None for an encoder without one.
    """

    def __init__(self, config: Any, folder: Path | None) -> None:
        self.config, self.folder = config, folder
        self._blank, self._sentence_reads = cache(self._make_blank), cache(self._find_reads)

    def build(
        self, kind: Kind, outputs: int, pooler: str, generators: Sequence[torch.Generator]
    ) -> list[nn.Module]:  # fmt: skip
        """The initial head, one per generator; see `FamilyHead.build`."""
        blank = self._blank(kind, outputs, pooler != "none")
        given = self._shipped(blank) if pooler == "pretrained" else {}
        return [PlainHead(_begun(blank, given, generator)) for generator in generators]

    def reads(self, kind: Kind) -> Reads:
        """ "all" if the scores of a sentence depend on more than the first piece's state (ModernBERT's mean)."""
        return "first" if kinds.get(kind).labels_words else self._sentence_reads(kind)

    def _find_reads(self, kind: Kind) -> Reads:
        (head,) = self.build(kind, 2, "fresh", [torch.Generator().manual_seed(0)])
        states = torch.randn(1, 3, int(self.config.hidden_size), generator=torch.Generator().manual_seed(0))
        mask, first = torch.ones(1, 3, dtype=torch.bool), states[:, :1].repeat(1, 3, 1)
        with torch.no_grad():
            return "first" if torch.equal(head.eval()(states, mask), head(first, mask)) else "all"

    def has_pooler(self, kind: Kind) -> bool:
        """True if the family's head reads a pooler that is part of the encoder."""
        return bool(self._pooler_names(kind))

    def ships_pooler(self, kind: Kind) -> bool:
        """True if the checkpoint's files hold the weights of that pooler."""
        return self._pooler_names(kind) <= self._shipped(self._blank(kind, 2, True)).keys()

    def names_pooler(self) -> bool:
        """True if the checkpoint's files hold weights of any pooler; unlike the others, this imports no class."""
        for path in self._files():
            with safe_open(path, "pt") as file:
                if any("pooler" in name.split(".") for name in file.keys()):  # noqa: SIM118 - not a mapping
                    return True
        return False

    def _pooler_names(self, kind: Kind) -> set[str]:
        blank = self._blank(kind, 2, True)
        return {name for name, _ in blank.named_parameters() if name.startswith(f"{blank.base_model_prefix}.")}

    def _make_blank(self, kind: Kind, outputs: int, has_pooler: bool) -> Any:
        """The family's class without its encoder; its weights are not set."""
        config, family = copy.deepcopy(self.config), auto_class(kind)
        mapping = "TOKEN" if kinds.get(kind).labels_words else "SEQUENCE"
        if type(config) not in getattr(transformers, f"MODEL_FOR_{mapping}_CLASSIFICATION_MAPPING"):
            name = type(config).__name__.removesuffix("Config")
            raise ValueError(f"transformers has no {family.__name__} for {name}; use another head than native.")
        config.num_labels = outputs
        with quiet(), torch.device("meta"):
            model = family.from_config(
                config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
            )
        stand_in = GivenStates(model.base_model, has_pooler and not kinds.get(kind).labels_words)
        setattr(model, model.base_model_prefix, stand_in)
        model.to_empty(device="cpu")
        if stand_in.pooler is not None and not _reads_pooler(model, stand_in.pooler):
            stand_in.pooler = stand_in.pooler_activation = None  # BigBird's head reads the states directly
        return model

    def _shipped(self, blank: Any) -> Mapping[str, Tensor]:
        """The head's weights in the checkpoint, except its output layer's, which are for other labels."""
        prefix, found = f"{blank.base_model_prefix}.", {}
        output = output_layer(blank)
        wanted = {name: own.shape for name, own in blank.named_parameters() if not name.startswith(f"{output}.")}
        aliases = {name.removeprefix(prefix): name for name in wanted} | {name: name for name in wanted}
        for path in self._files():
            with safe_open(path, "pt") as file:
                for name in aliases.keys() & set(file.keys()):
                    tensor = file.get_tensor(name)
                    if tensor.shape == wanted[aliases[name]]:
                        found[aliases[name]] = tensor.float()
        return found

    def _files(self) -> list[Path]:
        files = [] if self.folder is None else weight_files(self.folder)
        if self.folder is not None and not files:
            raise ValueError(f"{self.folder} is gone, with the weights of the encoder's pooler; restore it.")
        return files


def auto_class(kind: Kind) -> Any:
    """The Auto class of a kind of task."""
    unit = "Token" if kinds.get(kind).labels_words else "Sequence"
    return getattr(transformers, f"AutoModelFor{unit}Classification")


def output_layer(model: nn.Module) -> str:
    """The name of the layer that gives the scores: the last linear one."""
    names: list[str] = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    return names[-1]


def _reads_pooler(model: Any, pooler: nn.Module) -> bool:
    """True if the scores depend on a pooler."""
    states, mask = torch.zeros(1, 1, int(model.config.hidden_size)), torch.ones(1, 1, dtype=torch.bool)
    scores = PlainHead(model)(states, mask).sum()
    found = torch.autograd.grad(scores, list(pooler.parameters()), allow_unused=True)
    return all(gradient is not None for gradient in found)


def _begun(blank: Any, given: Mapping[str, Tensor], generator: torch.Generator) -> Any:
    """A copy with transformers' initial weights, overwritten by the given ones."""
    seed = int(torch.randint(2**62, (), generator=generator))
    model = copy.deepcopy(blank)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.initialize_weights()
    model.load_state_dict(dict(given), strict=False)
    return model
