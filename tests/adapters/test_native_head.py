"""The head `native` gives the logits of transformers' own model of the family, before training and after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from meltpoint.adapters import encoders, heads
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.huggingface.pretrained import TransformersHead, auto_class
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.specification.space_rules import pooler_notes
from meltpoint.tasks.core.task import Kind
from meltpoint.tests.adapters.conftest import FAMILIES, save_tiny
from meltpoint.tests.adapters.devices import cpu_tensors

pytestmark = cpu_tensors

Make = Callable[..., Any]
SENTENCES: Kind = "sentence_classification"
KINDS: tuple[Kind, ...] = (SENTENCES, "sequence_labelling")
TOP = "head.top.module.model."


def batch_of(trainer: Any) -> Batch:
    """The rows of train as one padded batch."""
    split, pad = trainer.data.train, trainer.model.encoder.tokenizer.pad_piece
    return collate(split.rows, range(len(split.rows)), pad, trainer.data.task.kind)


@torch.no_grad()
def ours(trainer: Any, batch: Batch) -> Tensor:
    return trainer.model.eval()(batch)[0]


def plain_model(trainer: Any, folder: Path) -> Any:
    """transformers' own model of the folder, with the trial's present weights."""
    task, model = trainer.data.task, trainer.model
    plain = auto_class(task.kind).from_pretrained(folder, num_labels=task.outputs, attn_implementation="eager").eval()
    plain.base_model.load_state_dict(model.encoder.model.state_dict(), strict=False)
    head = {name.removeprefix(TOP): own[0] for name, own in model.own_parameters().items()}
    assert not plain.load_state_dict(head, strict=False).unexpected_keys
    return plain


@torch.no_grad()
def theirs(plain: Any, batch: Batch) -> Tensor:
    """Its logits; for sequence labelling those of each word's first piece."""
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    logits: Tensor = plain(input_ids=batch.pieces, attention_mask=batch.piece_mask.long(), **segments).logits
    if batch.word_starts is None:
        return logits
    return logits.gather(1, batch.word_starts[:, :, None].expand(-1, -1, logits.shape[2]))


def difference(trainer: Any, folder: Path) -> float:
    batch = batch_of(trainer)
    one, two = ours(trainer, batch), theirs(plain_model(trainer, folder), batch)
    if batch.word_mask is not None:
        one, two = one[batch.word_mask], two[batch.word_mask]
    return float((one - two).abs().max())


# --- the logits of transformers ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_transformers_before_and_after_training(
    make_trainer: Make, load_tiny: Callable[[str], Encoder], tiny_folder: Callable[[str], Path], family: str, kind: Kind
):
    trainer = make_trainer("fine_tuning", kind, "native", encoder=load_tiny(family), train=8, dev=4, epochs=2)
    assert difference(trainer, tiny_folder(family)) < 1e-5
    before = {name: own.detach().clone() for name, own in trainer.model.own_parameters().items()}
    list(trainer.results())
    assert not any(torch.equal(own, before[name]) for name, own in trainer.model.own_parameters().items())
    assert difference(trainer, tiny_folder(family)) < 1e-5


def test_it_trains_as_transformers_own_model_does(make_trainer: Make, tiny_folder: Callable[[str], Path]):
    rate, decay, steps = 1e-3, 0.1, 3
    trainer = make_trainer(
        "fine_tuning", SENTENCES, "native", train=8, batch_size=8, epochs=steps, learning_rate=rate, dropout=0.0,
        encoder_dropout=0.0, weight_decay=decay, gradient_clip=0.0,
    )  # fmt: skip
    batch, plain = batch_of(trainer), plain_model(trainer, tiny_folder("bert"))
    assert batch.segments is not None
    assert batch.labels is not None
    groups = [
        {"params": [p for p in plain.parameters() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in plain.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        given = {"input_ids": batch.pieces, "attention_mask": batch.piece_mask.long(), "labels": batch.labels}
        plain(**given, token_type_ids=batch.segments).loss.backward()
        optimiser.step()
    list(trainer.results())
    assert float((ours(trainer, batch) - theirs(plain, batch)).abs().max()) < 1e-4


def test_a_family_that_pools_over_all_pieces_is_read_whole(make_trainer: Make, tmp_path: Path):
    save_tiny(tmp_path, "modernbert")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.classifier_pooling = "mean"
    config.save_pretrained(tmp_path)
    encoder = encoders.load(encoders.resolve(f"hf:{tmp_path}", SENTENCES))
    trainer = make_trainer("fine_tuning", SENTENCES, "native", encoder=encoder)
    assert trainer.model.head.reads == "all"
    assert difference(trainer, tmp_path) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_reads_the_first_state_alone_nothing_else_is_computed(make_trainer: Make, kind: Kind):
    trainer = make_trainer("fine_tuning", kind, "native", train=4)
    trainer.model.eval()
    states = trainer.model.states(batch_of(trainer))
    assert trainer.model.head.reads == "first"
    assert (states.shape[2] == 1) == (kind == SENTENCES)


# --- the pooler ---


def pooler_of(trainer: Any) -> Tensor:
    found: Tensor = trainer.model.own_parameters()[f"{TOP}bert.pooler.dense.weight"].detach()[0].clone()
    return found


def test_the_pretrained_pooler_is_the_checkpoints_and_learns(make_trainer: Make, tiny_folder: Callable[[str], Path]):
    trainer = make_trainer("fine_tuning", SENTENCES, "native", native__pooler="pretrained")
    shipped = load_file(tiny_folder("bert") / "model.safetensors")["pooler.dense.weight"]
    assert torch.equal(pooler_of(trainer), shipped)
    list(trainer.results())
    assert not torch.equal(pooler_of(trainer), shipped)


def test_a_fresh_pooler_depends_on_the_seed_alone(make_trainer: Make, tiny_folder: Callable[[str], Path]):
    shipped = load_file(tiny_folder("bert") / "model.safetensors")["pooler.dense.weight"]
    found = [
        pooler_of(make_trainer("fine_tuning", SENTENCES, "native", seed=seed, native__pooler="fresh"))
        for seed in (0, 0, 1)
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert not torch.equal(found[0], shipped)
    assert float(found[0].std()) == pytest.approx(0.02, rel=0.2)  # transformers' own initialisation


def test_without_a_pooler_it_is_the_head_linear(make_trainer: Make):
    native = make_trainer("fine_tuning", SENTENCES, "native", native__pooler="none")
    linear = make_trainer("fine_tuning", SENTENCES, "linear")
    own = native.model.own_parameters()
    assert set(own) == {f"{TOP}classifier.weight", f"{TOP}classifier.bias"}
    with torch.no_grad():
        for part in ("weight", "bias"):
            linear.model.own_parameters()[f"head.scores.linear.{part}"].copy_(own[f"{TOP}classifier.{part}"])
    batch = batch_of(native)
    assert torch.allclose(ours(native, batch), ours(linear, batch), atol=1e-6)


@pytest.fixture(scope="module")
def without_pooler(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT whose checkpoint ships no pooler."""
    folder = tmp_path_factory.mktemp("without") / "bert"
    shutil.copytree(tiny_folder("bert"), folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: own for name, own in weights.items() if not name.startswith("pooler.")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def notes(word: str, kind: Kind = SENTENCES, pooler: str | None = None) -> tuple[str, ...]:
    own = {parameter.name: parameter for parameter in heads.get("native").hyperparameters}
    space = Space.of({} if pooler is None else {"native.pooler": pooler}, own, where="the test")
    return pooler_notes(encoders.resolve(word, kind), "native", kind, space)


def test_a_checkpoint_without_the_poolers_weights_begins_with_a_fresh_one_and_a_note_says_so(
    make_trainer: Make, without_pooler: Path, tiny_folder: Callable[[str], Path]
):
    word = f"hf:{without_pooler}"
    encoder = encoders.load(encoders.resolve(word, SENTENCES))
    pretrained, fresh = (
        make_trainer("fine_tuning", SENTENCES, "native", encoder=encoder, native__pooler=pooler)
        for pooler in ("pretrained", "fresh")
    )
    assert torch.equal(pooler_of(pretrained), pooler_of(fresh))
    (note,) = notes(word)
    assert note.endswith("ships no pooler weights; native.pooler = pretrained starts with a new pooler")
    assert not notes(word, pooler="fresh")
    assert not notes(word, "sequence_labelling")
    assert not notes(f"hf:{tiny_folder('bert')}")


@pytest.mark.parametrize(("family", "kind"), [("roberta", SENTENCES), ("bert", "sequence_labelling")])
def test_leaving_out_a_pooler_that_is_not_there_is_refused(tiny_folder: Callable[[str], Path], family: str, kind: Kind):
    with pytest.raises(ValueError, match="has no pooler to leave out; set pretrained"):
        notes(f"hf:{tiny_folder(family)}", kind, "none")


# --- encoders that are not of transformers ---


def test_the_families_without_a_head_are_those_that_transformers_lacks():
    from transformers.models.auto import modeling_auto

    from meltpoint.adapters.families.huggingface.configuration import UNFIT, WITHOUT_HEAD

    known = set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES) - UNFIT.keys() - {"bart", "mbart", "mvp"}
    assert known - set(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES) == WITHOUT_HEAD[False]
    assert known - set(modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES) == WITHOUT_HEAD[True]


def test_a_folder_that_is_gone_is_named(tmp_path: Path):
    head = TransformersHead(transformers.BertConfig(hidden_size=8, num_attention_heads=2), tmp_path / "gone")
    with pytest.raises(ValueError, match="gone is gone"):
        head.build(SENTENCES, 2, "pretrained", [torch.Generator()])
