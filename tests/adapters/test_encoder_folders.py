"""The folder of an exported model's encoder: transformers reads it, and runs no random classifier on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from meltpoint.adapters import encoders
from meltpoint.adapters.families.huggingface.files import licence_of


@pytest.fixture(scope="module")
def folder(load_tiny: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved encoder."""
    place: Path = tmp_path_factory.mktemp("encoder") / "encoder"
    load_tiny("bert").save(place)
    return place


@pytest.mark.parametrize("task", ["text-classification", "token-classification", "zero-shot-classification"])
def test_no_classification_pipeline_answers_with_a_random_classifier(folder: Path, task: str) -> None:
    more = {"candidate_labels": ["a", "b"]} if task.startswith("zero") else {}
    with pytest.raises((ValueError, IndexError)):
        transformers.pipeline(task, str(folder))("the ship came home", **more)


def test_whoever_trains_a_classifier_on_it_names_the_labels_and_gets_one(folder: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert model.classifier.out_features == 3


def test_its_states_are_the_encoders(folder: Path, load_tiny: Callable[[str], Any]) -> None:
    ours, again = load_tiny("bert"), encoders.load(encoders.resolve(f"hf:{folder}", "sentence_classification"))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())
    assert transformers.AutoModel.from_pretrained(folder).config.hidden_size == 32
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["id2label"] == {}


def test_a_licence_is_read_from_the_front_matter_of_the_encoders_own_card(minilm: Path) -> None:
    assert licence_of(minilm) == "apache-2.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: mit\n---\n# A model", "mit"),
        ("---\nlicense: |\n  mit`.\n\n  ## Limits\n\n  None.\n---\n", "mit'. ## Limits None."),
        (f"---\nlicense: {'mit ' * 100}\n---\n", ("mit " * 25)),
        ("\ufeff---\r\nlicense: mit\r\n---\r\n", "mit"),
        ("# A model\n\nlicense: mit", None),
        ("---\nlicense: mit\n", None),
        ("---\nlicense: [mit]\n---\n", None),
        ("---\n{: broken\n---\n", None),
        ("---\n- a list\n---\n", None),
        ("", None),
    ],
)
def test_a_card_that_states_no_licence_gives_none(tmp_path: Path, text: str, expected: str | None) -> None:
    (tmp_path / "README.md").write_bytes(text.encode())
    assert licence_of(tmp_path) == expected


def test_a_folder_without_a_card_has_no_licence(tmp_path: Path) -> None:
    assert licence_of(tmp_path) is None
