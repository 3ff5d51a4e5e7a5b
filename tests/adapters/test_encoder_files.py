"""An encoder's fingerprint: every file that loading reads is in it, and a changed one never meets cached states."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from meltpoint.adapters import encoders
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.huggingface import configuration, files
from meltpoint.adapters.families.huggingface.files import licence_of
from meltpoint.adapters.features.layout import feature_key
from meltpoint.tasks.core.task import Example

Folder = Callable[[str], Path]
KIND = "sentence_classification"

OTHER_LANGUAGES = {"word_shape.json", "word_pronunciation.json", "entity_vocab.json"}
"""RoCBert's and LUKE's own tables, which are never downloaded; without the first two RoCBert does not load."""


def load(folder: Path) -> Encoder:
    return encoders.load(encoders.resolve(f"hf:{folder}", KIND))


def print_of(folder: Path) -> str:
    return encoders.fingerprint(encoders.resolve(f"hf:{folder}", KIND))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_a_moved_folder_has_the_same_fingerprint(copy: Path, tiny_folder: Folder):
    assert print_of(copy) == print_of(tiny_folder("bert")) == load(copy).fingerprint


def test_each_file_that_is_downloaded_is_in_the_fingerprint_and_no_other(copy: Path):
    # The readme is read for the licence alone, an adapter is refused, further modules make no state.
    others = {"*.safetensors", "*.safetensors.index.json", "README.md", files.ADAPTER, *configuration.DOWNLOADED}
    names = [pattern.replace("*", "spiece") for pattern in files.HUB_FILES if pattern not in others]
    found = [print_of(copy)]
    for name in names:
        (copy / name).parent.mkdir(exist_ok=True)
        empty = "[]" if name == "modules.json" else "{}"
        with (copy / name).open("a", encoding="utf-8") as file:
            file.write(" " if (copy / name).stat().st_size else empty)
        found.append(print_of(copy))
    assert len(set(found)) == len(names) + 1
    (copy / "README.md").write_text("about it")
    (copy / "sentence_bert_config.json").write_text("{}")
    assert print_of(copy) == found[-1]


def test_every_file_that_a_tokenizer_of_transformers_reads_is_in_the_fingerprint():
    names = transformers.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES
    words = {names.get(family) for family in MODEL_FOR_MASKED_LM_MAPPING_NAMES} - {None}
    classes = [getattr(transformers, word, None) for word in words]
    read = {file for one in classes for file in getattr(one, "vocab_files_names", {}).values()}
    assert {"tokenizer.json", "vocab.txt"} <= read
    assert {file for file in read if not any(fnmatch(file, own) for own in files.BESIDE_WEIGHTS)} <= OTHER_LANGUAGES


def test_another_activation_is_another_fingerprint_so_cached_states_are_not_read(copy: Path):
    before = load(copy)
    split = encode_split(KIND, [Example("0", texts=("the film",), label=0)], before.tokenizer, 16)
    edit(copy / "config.json", hidden_act="relu")
    after = load(copy)
    weights = zip(before.state_dict().values(), after.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in weights), "the weights alone would not tell"
    keys = {feature_key(encoder, split, KIND, "fp32", "all").id for encoder in (before, after)}
    assert len(keys) == 2


def test_other_weights_are_another_fingerprint(copy: Path):
    before = print_of(copy)
    model = transformers.AutoModel.from_pretrained(copy)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save_pretrained(copy)
    assert print_of(copy) != before


@pytest.fixture(scope="module")
def folder(load_tiny: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved encoder."""
    place: Path = tmp_path_factory.mktemp("encoder") / "encoder"
    load_tiny("bert").save(place)
    return place


@pytest.mark.parametrize(
    ("task", "no_label"),
    [("text-classification", "empty sequence"), ("token-classification", "zero-size array"),
     ("zero-shot-classification", "with size 0")],
)  # fmt: skip
def test_no_classification_pipeline_answers_with_a_random_classifier(folder: Path, task: str, no_label: str) -> None:
    more = {"candidate_labels": ["a", "b"]} if task.startswith("zero") else {}
    with pytest.raises((ValueError, IndexError), match=no_label):
        transformers.pipeline(task, str(folder))("the ship came home", **more)


def test_a_licence_is_read_from_the_front_matter_of_the_encoders_own_card(minilm: Path) -> None:
    assert licence_of(minilm) == "apache-2.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: mit\n---\n# A model", "mit"), ("# A model\n\nlicense: mit", None), ("", None),
        ("---\nlicense: [mit]\n---\n", None), ("---\n{: broken\n---\n", None), ("---\n- a list\n---\n", None),
    ],
)  # fmt: skip
def test_a_card_that_states_no_licence_gives_none(tmp_path: Path, text: str, expected: str | None) -> None:
    assert licence_of(tmp_path) is None, "there is no card"
    (tmp_path / "README.md").write_bytes(text.encode())
    assert licence_of(tmp_path) == expected
