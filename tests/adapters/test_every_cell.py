"""Every encoder × mode × head × kind of task: what is possible trains, and what is not is refused in one clear line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meltpoint.adapters import encoders, heads, modes
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.settings import check_possible
from meltpoint.tasks.core.task import KINDS, Kind

Make = Callable[..., Any]
FAMILIES = ("hf", "elmo", "skipthoughts")
SENTENCES = "skipthoughts"
EVERY = list(itertools.product(FAMILIES, heads.names(), KINDS))
OF_WORDS = ("sequence_labelling", "word_tagging")


def is_possible(family: str, head: str, kind: Kind) -> bool:
    """What an encoder's nature allows; said once more here, by other words than the code's."""
    serves = heads.get(head)
    if kind not in serves.kinds or (serves.is_native and family != "hf"):
        return False
    if family == SENTENCES:  # one vector a sentence: nothing to label, nothing to align
        return kind not in OF_WORDS and serves.reads == "first" and (kind[:4] != "pair" or serves.separate_pairs)
    if family == "elmo":  # no [CLS], and one sentence at a time
        return kind in OF_WORDS or (serves.reads == "all" and (kind[:4] != "pair" or serves.separate_pairs))
    return True


POSSIBLE = [cell for cell in EVERY if is_possible(*cell)]
IMPOSSIBLE = [cell for cell in EVERY if not is_possible(*cell)]


@pytest.fixture(scope="session")
def words(tiny_folder: Callable[[str], Path], elmo_folder: Path, skip_thoughts_folder: Path) -> dict[str, str]:
    """Family → the word of a tiny encoder of it."""
    folders = {"hf": tiny_folder("bert"), "elmo": elmo_folder, SENTENCES: skip_thoughts_folder}
    return {family: f"{family}:{folder}" for family, folder in folders.items()}


@pytest.fixture(scope="session")
def loaded(words: dict[str, str]) -> dict[str, Encoder]:
    """Family → a tiny encoder of it; tests must not change it."""
    return {family: encoders.load(encoders.resolve(word, "sentence_classification")) for family, word in words.items()}


def trains(make_trainer: Make, encoder: Encoder, mode: str, head: str, kind: Kind) -> None:
    """One short trial: finite losses, a score, and the head's weights moved."""
    epochs = {"stack_and_finetune__stack_epochs": 1} if mode == "stack_and_finetune" else {}
    trainer = make_trainer(mode, kind, head, encoder=encoder, train=6, dev=4, epochs=1, **epochs)
    before = {name: own.detach().clone() for name, own in trainer.model.own_parameters().items()}
    results = list(trainer.results())
    assert [result.phase for result in results][-1] == modes.get(mode).phases(trainer.setting)[-1].name
    assert all(math.isfinite(result.train_loss) for result in results)
    assert all(math.isfinite(result.dev[trainer.data.task.metric]) for result in results)
    assert any(not own.equal(before[name]) for name, own in trainer.model.own_parameters().items())


@pytest.mark.parametrize(("family", "head", "kind"), POSSIBLE)
def test_what_is_possible_is_allowed_and_trains_frozen(
    make_trainer: Make, loaded: dict[str, Encoder], words: dict[str, str], family: str, head: str, kind: Kind
):
    check_possible(encoders.resolve(words[family], kind), head, kind)
    trains(make_trainer, loaded[family], "feature_extraction", head, kind)


@pytest.mark.parametrize("mode", ["fine_tuning", "stack_and_finetune"])
@pytest.mark.parametrize(("family", "head", "kind"), POSSIBLE)
def test_what_is_possible_trains_with_its_encoder(
    make_trainer: Make, loaded: dict[str, Encoder], mode: str, family: str, head: str, kind: Kind
):
    trains(make_trainer, loaded[family], mode, head, kind)


@pytest.mark.parametrize(("family", "head", "kind"), IMPOSSIBLE)
def test_what_is_impossible_is_refused_in_one_line_that_names_what_is_not(
    words: dict[str, str], family: str, head: str, kind: Kind
):
    with pytest.raises(ValueError, match=r"cannot serve|reads|has none|leave out tasks that label words") as refused:
        check_possible(encoders.resolve(words[family], kind), head, kind)
    line = str(refused.value)
    assert "\n" not in line
    able = [name for name in heads.names() if is_possible(family, name, kind)]
    if able:
        assert any(name in line for name in able)


def test_there_is_a_possible_head_for_every_kind_but_words_of_sentence_vectors():
    served = {(family, kind) for family, _, kind in POSSIBLE}
    assert set(itertools.product(FAMILIES, KINDS)) - served == {(SENTENCES, kind) for kind in OF_WORDS}
