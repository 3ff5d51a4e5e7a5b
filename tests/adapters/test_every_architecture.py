"""Every architecture that is accepted: transformers' own states, whatever the batch, and groups in the forward's order.

Tiny random models; the reference is transformers alone, a fresh model for each text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.huggingface.architecture import layer_stack
from meltpoint.adapters.families.huggingface.configuration import UNFIT
from meltpoint.adapters.families.huggingface.encoder import HuggingFaceEncoder
from meltpoint.tasks.core.task import Example
from meltpoint.tests.adapters.conftest import word_piece_tokenizer

KIND = "sentence_classification"
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 66,
}  # fmt: skip
XLM = {"emb_dim": 32, "n_layers": 3, "n_heads": 2, "max_position_embeddings": 66, "n_langs": 1}
CHANGES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "convbert": {"embedding_size": 32},
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 66},
    "electra": {"embedding_size": 16},
    "esm": {"pad_token_id": 1, "mask_token_id": 4, "token_dropout": True},
    "flaubert": XLM,
    "longformer": {"attention_window": 8},
    "luke": {"entity_vocab_size": 8},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 16},
    "modernbert": {"local_attention": 8},
    "neomme": {"num_key_value_heads": 2, "sliding_window": 4},
    "squeezebert": {"embedding_size": 32},
    "ultrabert": {"sliding_window": 4},
    "xlm": XLM,
}
"""Model type → what differs from `SIZES`; XLM, FlauBERT and DistilBERT name their sizes in another way."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert, two groups of layers": ("albert", {"num_hidden_groups": 2, "num_hidden_layers": 4}),
    "big_bird, sparse": ("big_bird", {
            "attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 64,
        }),
    "bert, relabelled padding": ("bert", {"pad_token_id": 7}),
    "deberta-v2, relative": (
        "deberta-v2", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"},
    ),
    "deberta-v2, version 3": (
        "deberta-v2", {
            "relative_attention": True, "pos_att_type": "p2c|c2p", "norm_rel_ebd": "layer_norm", "share_att_key": True,
            "position_buckets": 16, "max_relative_positions": -1, "position_biased_input": False, "type_vocab_size": 0,
        },
    ),
    "modernbert, mmBERT": (
        "modernbert", {"global_rope_theta": 16e4, "local_rope_theta": 16e4, "position_embedding_type": "sans_pos"},
    ),
    "nomic_bert, long rope": (
        "nomic_bert", {"rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 20,
            "short_factor": [1.0] * 8, "long_factor": [3.0] * 8,
        }},
    ),
    "roberta, its own padding": ("roberta", {"pad_token_id": 0}),
    "roberta, a word for padding": ("roberta", {"pad_token_id": 40, "max_position_embeddings": 110}),
    "xlm, sinusoids": ("xlm", {"sinusoidal_embeddings": True}),
}  # fmt: skip
"""A name of ours → a model type and what its configuration changes."""
FAILING = {"esm, no padding": ("esm", {"pad_token_id": None}), "flaubert, norm first": ("flaubert", {"pre_norm": True})}
"""The same, of those that transformers 5.23 itself fails on."""
BY_LENGTH = {
    "big_bird, sparse", "convbert", "fnet", "mobilebert", "nomic_bert, long rope", "nystromformer", "yoso",
}  # fmt: skip
"""Those whose states of a text depend on the padding, or the length, of its batch in transformers."""

WITHOUT_CHECKPOINTING = {"albert", "flaubert", "mpnet", "squeezebert", "xlm"}
"""Those that transformers cannot recompute layer by layer."""


def accepted() -> list[str]:
    """Model types with a masked language model that are encoders of text."""
    configs = {
        config().model_type: config() for config in MODEL_FOR_MASKED_LM_MAPPING if config.model_type not in UNFIT
    }
    other = ("vision_config", "audio_config")
    return sorted(
        name for name, config in configs.items()
        if not getattr(config, "is_encoder_decoder", False) and not any(hasattr(config, part) for part in other)
    )  # fmt: skip


NAMES = [*accepted(), *VARIANTS]


def save(folder: Path, name: str) -> Path:
    """A tiny random model of an architecture, of weights so large that positions and padding show."""
    model_type, changed = {**VARIANTS, **FAILING}.get(name, (name, {}))
    tokenizer = word_piece_tokenizer("bert")
    family = CONFIG_MAPPING[model_type]
    sizes = {} if model_type in ("xlm", "flaubert", "distilbert") else SIZES
    known = {} if (family().pad_token_id or 0) < len(tokenizer) else {"pad_token_id": 0}
    given = {"vocab_size": len(tokenizer), **sizes, **known, **CHANGES.get(model_type, {}), **changed}
    marks = {f"{word}_token_id": 3 for word in ("bos", "eos", "cls", "sep") if hasattr(family(), f"{word}_token_id")}
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(family(**{**marks, **given}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.2)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, HuggingFaceEncoder]]:
    """Architecture → its folder, and the encoder that is loaded from it; made once."""
    found: dict[str, tuple[Path, HuggingFaceEncoder]] = {}

    def make(name: str) -> tuple[Path, HuggingFaceEncoder]:
        if name not in found:
            folder = save(tmp_path_factory.mktemp("architecture"), name)
            encoder = load(folder)
            found[name] = folder, encoder
        return found[name]

    return make


def load(folder: Path) -> HuggingFaceEncoder:
    encoder = encoders.load(encoders.resolve(f"hf:{folder}", KIND))
    assert isinstance(encoder, HuggingFaceEncoder)
    return encoder


def plain_model(folder: Path) -> Any:
    return transformers.AutoModel.from_pretrained(folder).eval()


TEXTS = [
    "a long film",
    "the [PAD] old [UNK] harbour [MASK] was [SEP] quiet [CLS] 日 [PAD] home",
    "quiet ships",
    " ".join(f"the [PAD] {word} [MASK] came" for word in ("harbour", "ships", "film", "cities")),
    "the [UNK] old [PAD] film " * 30,
]
"""Short, with every special token's text, as long as another, longer, and as long as the positions allow."""


def read(encoder: Encoder, texts: list[str]) -> list[torch.Tensor]:
    """All layers' states of each text, read in one batch: (layers, pieces, dim)."""
    rows = encode_split(KIND, [Example(text, (text,)) for text in texts], encoder.tokenizer, encoder.max_pieces).rows
    batch = collate(rows, range(len(rows)), encoder.tokenizer.pad_piece, KIND)
    with torch.no_grad():
        states, top = torch.stack(encoder(batch)), encoder.top(batch)
    assert torch.equal(states[-1], top)
    return [states[:, number, : len(row.pieces)] for number, row in enumerate(rows)]


@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_transformers_alone_and_in_company(made: Callable[..., Any], name: str):
    folder, encoder = made(name)
    plain, tokenizer = plain_model(folder), transformers.AutoTokenizer.from_pretrained(folder)
    in_company = read(encoder, TEXTS)
    assert in_company[-1].shape[1] == encoder.max_pieces >= 64
    for text, together in zip(TEXTS, in_company, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=encoder.max_pieces, return_tensors="pt")
        if not encoder.tokenizer.sentence("a", 8)[1]:
            inputs.pop("token_type_ids", None)
        with torch.no_grad():
            expected = torch.stack(
                [layer[0, : inputs["input_ids"].shape[1]]
                 for layer in copy.deepcopy(plain)(**inputs, output_hidden_states=True).hidden_states]
            )  # fmt: skip
        near = 2e-5 * float(expected.abs().max())
        torch.testing.assert_close(together, expected, atol=near, rtol=0.0)
        torch.testing.assert_close(read(encoder, [text])[0], expected, atol=near, rtol=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_loading_leaves_the_model_as_transformers_reads_it(made: Callable[..., Any], name: str):
    folder, _ = made(name)
    encoder, plain = load(folder), plain_model(folder)
    ours = encoder.model.state_dict()
    for key, tensor in plain.state_dict().items():
        assert key not in ours or torch.equal(ours[key], tensor), key
    own_modules = dict(encoder.model.named_modules())
    for path, module in plain.named_modules():
        if "pooler" in path or path not in own_modules:
            continue
        own = own_modules[path]
        facts = {key: value for key, value in vars(module).items() if isinstance(value, bool | int | str)}
        changed = {key for key, value in facts.items() if value != vars(own).get(key, value)}
        assert not changed, f"{path}: {changed}"


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_group_is_one_layer_and_groups_are_in_the_order_of_the_forward_pass(
    made: Callable[..., Any], name: str
):
    encoder = load(made(name)[0])
    calls: dict[int, int] = {}
    names = {id(parameter): found for found, parameter in encoder.model.named_parameters()}

    def note(module: torch.nn.Module, _: object) -> None:
        for parameter in module.parameters(recurse=False):
            calls.setdefault(id(parameter), len(calls))

    for module in encoder.model.modules():
        module.register_forward_pre_hook(note)
    read(encoder, TEXTS[:1])
    embeddings, *layers = encoder.layer_groups()
    assert embeddings.name == "embeddings"
    grouped = [id(parameter) for group in (embeddings, *layers) for parameter in group.parameters]
    assert sorted(grouped) == sorted(names)
    assert not [names[id(p)] for p in embeddings.parameters if re.search(r"\.\d+\.", names[id(p)])]
    last = -1
    for number, group in enumerate(layers):
        assert group.name == f"layer_{number + 1}"
        numbered = {id(p): int(found[1]) for p in group.parameters if (found := re.search(r"\.(\d+)\.", names[id(p)]))}
        assert set(numbered.values()) == {number}, "all that has a layer's number, and of no other layer"
        called = [calls[parameter] for parameter in numbered if parameter in calls]
        assert min(called) > last, "groups follow one another"
        last = max(called)


TODAY = {
    "bert": True, "deberta-v2, version 3": False, "eurobert": True, "gte": True, "modernbert": True,
    "modernbert, mmBERT": True, "nomic_bert": True, "xlm-roberta": True,
}  # fmt: skip
"""Architectures of the named encoders and their like → whether they skip padding; DeBERTa's attention cannot."""


def test_encoders_of_today_skip_padding_where_their_attention_allows(made: Callable[..., Any]):
    assert {name: made(name)[1].padding_free for name in TODAY} == TODAY


@pytest.mark.parametrize("name", TODAY)
def test_lora_reaches_every_linear_layer_and_is_merged_into_plain_weights(
    made: Callable[..., Any], tmp_path: Path, name: str
):
    encoder = load(made(name)[0])
    linear = {path for path, module in encoder.model.named_modules() if isinstance(module, torch.nn.Linear)}
    encoder.add_lora(rank=2, alpha=32)
    added = {path: weight for path, weight in encoder.model.named_parameters() if ".lora_B." in path}
    assert {path.partition(".lora_B.")[0] for path in added} == linear != set()
    (plain,) = read(encoder, TEXTS[:1])
    with torch.no_grad():
        for weight in added.values():
            weight.fill_(0.01)
    (expected,) = read(encoder, TEXTS[:1])
    assert not torch.allclose(expected, plain, atol=1e-3)
    encoder.save(tmp_path)
    torch.testing.assert_close(read(load(tmp_path), TEXTS[:1]), [expected], rtol=1e-5, atol=1e-5)


def gradients(encoder: HuggingFaceEncoder) -> dict[str, torch.Tensor]:
    """Of a pass with dropout over two texts."""
    rows = encode_split(KIND, [Example(text, (text,)) for text in TEXTS[:2]], encoder.tokenizer, 64).rows
    torch.manual_seed(0)
    encoder.set_dropout(0.1)
    encoder.train().top(collate(rows, [0, 1], encoder.tokenizer.pad_piece, KIND)).square().sum().backward()
    return {path: own.grad for path, own in encoder.named_parameters() if own.grad is not None}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_with_checkpointing_are_the_plain_ones_bit_for_bit(made: Callable[..., Any], name: str):
    plain, checkpointed = load(made(name)[0]), load(made(name)[0])
    if not plain.supports_checkpointing:
        assert name.partition(",")[0] in WITHOUT_CHECKPOINTING
        return
    checkpointed.checkpoint()
    given: list[tuple[Any, ...]] = []
    for layer in layer_stack(checkpointed.model):
        layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs))
    expected, found = gradients(plain), gradients(checkpointed)
    # torch puts a GPU's random state back for tensors that are given by position alone.
    assert all(isinstance(inputs[0], torch.Tensor) for inputs in given)
    assert given
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[path], gradient) for path, gradient in expected.items())


def test_the_architectures_that_read_one_length_at_a_time_are_known(made: Callable[..., Any]):
    """One that is new here is slower than padded rows; one that has gone may have lost its check."""
    found = {name for name in NAMES if made(name)[1].separate_above < 100}
    assert found == BY_LENGTH


@pytest.mark.parametrize("name", FAILING)
def test_a_model_that_transformers_cannot_read_with_is_refused_in_one_line(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="transformers cannot read a text with it") as refused:
        load(save(tmp_path, name))
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)
