"""An exported folder predicts, in a process that knows nothing else, exactly what the model predicted here."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file

from meltpoint.adapters import encoders, exported_model, heads, modes
from meltpoint.adapters.data.input_format import FEATS
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.exported_model import FACTS, HEAD, load_folder, save_folder
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.tasks.core.task import KINDS, Example, Kind

Make = Callable[..., Any]
SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from meltpoint.adapters.exported_model import load_folder
asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
answers = {}
for folder, texts in asked.items():
    texts = [tuple(text) if isinstance(text, list) else text for text in texts]
    answers[folder] = load_folder(folder).predict(texts)
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Saved:
    """A trained model, its folder, texts, and what it predicts for them here."""

    trainer: Trainer
    folder: Path
    texts: list[Any]
    here: list[Any]


def plain(example: Example) -> Any:
    """An example's text as `predict` takes it."""
    if example.words:
        return list(example.words)
    return example.texts[0] if len(example.texts) == 1 else example.texts


def save(trainer: Trainer, mode: str, head: str, folder: Path) -> None:
    facts = {"sweep": "tests", "seed": 0}
    save_folder(folder, trainer.model, trainer.data.task, mode, head, trainer.setting, trainer.precision, facts)


@pytest.fixture(scope="module")
def saved(
    make_trainer: Make, make_examples: Callable[[Kind, int], list[Example]], tmp_path_factory: pytest.TempPathFactory
) -> dict[Kind, Saved]:
    """A trained and saved model of every kind, the modes and heads taking turns."""
    found = {}
    turns = itertools.cycle(
        [("feature_extraction", "bilstm"), ("fine_tuning", "mlp"), ("stack_and_finetune", "linear")]
    )
    for kind, (mode, other) in zip(KINDS, turns, strict=False):
        head = "bilstm_crf" if kind == "sequence_labelling" else other
        trainer = make_trainer(mode, kind, head, train=16, epochs=8, dropout=0.0, learning_rate=5e-3)
        list(trainer.results())
        folder = tmp_path_factory.mktemp("exported") / f"{kind} model"
        save(trainer, mode, head, folder)
        examples = make_examples(kind, 12)
        hidden = [Example(e.id, texts=e.texts, words=e.words) for e in examples]
        ids = trainer.score(
            encode_split(kind, hidden, trainer.model.encoder.tokenizer, 32), hidden
        ).predictions  # fmt: skip
        names = trainer.data.task.labels
        here = [[names[i] for i in p] if isinstance(p, list) else names[p] if names else p for p in ids]
        if kind == "multi_label_classification":
            here = [[name for name, has in zip(names, p, strict=True) if has] for p in ids]
        found[kind] = Saved(trainer, folder, [plain(example) for example in examples], here)
    return found


# --- the same predictions ---


def test_a_fresh_process_predicts_exactly_what_this_one_did_for_every_kind(saved: dict[Kind, Saved], tmp_path: Path):
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({str(one.folder): one.texts for one in saved.values()}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(asked)], capture_output=True, encoding="utf-8", cwd=tmp_path, env=environment
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for kind, one in saved.items():
        assert answers[str(one.folder)] == one.here, kind
        assert len({str(answer) for answer in one.here}) > 1, "constant answers would prove little"


@pytest.mark.parametrize("is_old", [False, True], ids=["today's", "of an older version"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_whose_facts_were_changed_is_one_line(
    saved: dict[Kind, Saved], kind: Kind, is_old: bool, tmp_path: Path
):
    folder = shutil.copytree(saved[kind].folder, tmp_path / "copy")
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    if is_old:
        save_file(load_file(folder / HEAD), folder / HEAD)  # it told nothing of its kind
    others = [] if is_old else [{"kind": other} for other in (*KINDS, "none") if other != kind]
    for change in (*others, {"head": "none"}, {"mode": "none"}, {"labels": 3}):
        (folder / FACTS).write_text(json.dumps(facts | change), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"^{re.escape(str(folder))}[^\n]*$"):
            load_folder(folder)


@pytest.mark.parametrize("mode", modes.names())
@pytest.mark.parametrize("head", heads.names())
def test_every_mode_and_head_loads_again(make_trainer: Make, tmp_path: Path, mode: str, head: str):
    served = heads.get(head).kinds
    kind = next(
        one for one in ("sequence_labelling", "sentence_classification", "pair_classification") if one in served
    )
    trainer = make_trainer(mode, kind, head)
    save(trainer, mode, head, tmp_path)
    model = load_folder(str(tmp_path))
    ours, loaded = trainer.model.state_dict(), model.model.state_dict()
    if mode == "lora":  # its encoder is merged: test_ladder compares the predictions
        ours = {name: tensor for name, tensor in ours.items() if not name.startswith("encoder.")}
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in ours.items())
    if kind == "sequence_labelling":
        assert [len(labels) for labels in model.predict([["the", "old", "harbour"], []])] == [3, 0]
    else:
        texts = ["the old harbour", ""] if kind == "sentence_classification" else [("the old", "harbour"), ("", "a")]
        assert set(model.predict(texts)) <= {"no", "yes"}


@pytest.mark.parametrize(
    ("family", "mode", "kind", "head", "setting"),
    [
        ("elmo", "fine_tuning", "sentence_classification", "pooling", {}),
        ("skipthoughts", "feature_extraction", "pair_classification", "sentence_vectors", {}),
        ("hf", "feature_extraction", "pair_classification", "sentence_vectors", {FEATS: True}),
    ],
)
def test_every_family_and_the_statistics_of_a_pair_predict_again(
    make_trainer: Make, elmo: Encoder, skip_thoughts_folder: Path, load_tiny: Callable[[str], Encoder], tmp_path: Path,
    family: str, mode: str, kind: Kind, head: str, setting: dict[str, Any],
):  # fmt: skip
    skip = encoders.load(encoders.resolve(f"skipthoughts:{skip_thoughts_folder}#bi+eos", kind))
    encoder = {"elmo": elmo, "skipthoughts": skip, "hf": load_tiny("bert")}[family]
    trainer = make_trainer(mode, kind, head, encoder=encoder, dev=12, **setting)
    list(trainer.results())
    save(trainer, mode, head, tmp_path)
    wanted = trainer.score(trainer.data.dev, trainer.data.dev_examples).predictions
    loaded = load_folder(tmp_path)
    assert loaded.predict([plain(one) for one in trainer.data.dev_examples]) == [("no", "yes")[n] for n in wanted]
    assert loaded.facts["encoder_family"] == family
    ours, theirs = trainer.model.state_dict(), loaded.model.state_dict()
    assert all(torch.equal(own, theirs[name]) for name, own in ours.items())


def test_the_document_says_what_was_trained(saved: dict[Kind, Saved]):
    facts = load_folder(saved["sentence_classification"].folder).facts
    named = {key: facts[key] for key in ("kind", "task", "labels", "mode", "head", "precision", "sweep", "seed")}
    assert named == {
        "kind": "sentence_classification", "task": "tiny", "labels": ["no", "yes"], "mode": "fine_tuning",
        "head": "mlp", "precision": "fp32", "sweep": "tests", "seed": 0,
    }  # fmt: skip
    assert facts["setting"] == saved["sentence_classification"].trainer.setting


def test_sentences_longer_than_the_models_input_get_a_label_for_every_word(saved: dict[Kind, Saved]):
    words = ["the", "old", "ships", "of", "London"] * 40
    assert [len(labels) for labels in load_folder(saved["sequence_labelling"].folder).predict([words])] == [200]


@pytest.mark.parametrize("kind", KINDS)
def test_no_texts_give_no_predictions(saved: dict[Kind, Saved], kind: Kind):
    assert load_folder(saved[kind].folder).predict([]) == []


# --- mistakes ---


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("sentence_classification", ("a", "b"), "a string"),
        ("sentence_classification", 5, "a string"),
        ("pair_classification", "a b", "a pair of strings"),
        ("pair_classification", ("a", "b", "c"), "a pair of strings"),
        ("pair_regression", ("a", 5), "a pair of strings"),
        ("pair_regression", None, "a pair of strings"),
        ("sequence_labelling", "the old harbour", "a list of words"),
        ("sequence_labelling", ["the", 5], "a list of words"),
        ("sequence_labelling", 5, "a list of words"),
    ],
)
def test_a_text_of_the_wrong_form_is_refused_by_its_number(
    saved: dict[Kind, Saved], kind: Kind, text: Any, wanted: str
):
    model = load_folder(saved[kind].folder)
    with pytest.raises(ValueError, match=rf"^text 1 is .*; {kind.replace('_', ' ')} takes {wanted}\.$"):
        model.predict([saved[kind].texts[0], text])


def test_one_text_instead_of_a_list_is_refused(saved: dict[Kind, Saved]):
    with pytest.raises(ValueError, match=r"takes a list of texts, not the one text 'good film'"):
        load_folder(saved["sentence_classification"].folder).predict("good film")


@pytest.mark.parametrize("texts", [{"text": ["good film"]}, pandas.DataFrame({"text": ["good film"]})])
def test_a_table_instead_of_a_list_is_refused(saved: dict[Kind, Saved], texts: Any):
    with pytest.raises(ValueError, match=r"takes a list of texts, not a (dict|DataFrame); name a column"):
        load_folder(saved["sentence_classification"].folder).predict(texts)


def test_what_is_no_folder_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"nowhere is not an exported model .* `meltpoint export NAME --model`\.$"):
        load_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "content"),
    [(FACTS, b"no json"), (FACTS, b"[]"), (FACTS, b"{}"), (FACTS, b"\xff\xfe"), (HEAD, b"no weights"), (HEAD, b"")],
)
def test_a_broken_file_is_refused_in_one_line(saved: dict[Kind, Saved], tmp_path: Path, file: str, content: bytes):
    broken = shutil.copytree(saved["sentence_classification"].folder, tmp_path / "broken")
    (broken / file).write_bytes(content)
    with pytest.raises(ValueError, match=r"broken is not an exported model") as caught:
        load_folder(broken)
    assert "\n" not in str(caught.value)


def test_the_weights_of_another_head_are_refused_and_never_left_random(saved: dict[Kind, Saved], tmp_path: Path):
    mixed = shutil.copytree(saved["sentence_classification"].folder, tmp_path / "mixed")
    shutil.copy(saved["pair_classification"].folder / HEAD, mixed / HEAD)
    with pytest.raises(ValueError, match=r"is not an exported model .*, but its weights are of "):
        load_folder(mixed)


def test_a_folder_without_its_encoder_is_refused(saved: dict[Kind, Saved], tmp_path: Path):
    bare = shutil.copytree(saved["sentence_classification"].folder, tmp_path / "bare")
    shutil.rmtree(bare / exported_model.ENCODER)
    with pytest.raises(ValueError, match=r"There is no folder .*encoder"):
        load_folder(bare)
