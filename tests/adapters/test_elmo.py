"""ELMo: the released numbers, the equations in slow loops, and what the rest of Meltpoint asks of an encoder."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import expit as sigmoid

from meltpoint.adapters import encoders
from meltpoint.adapters.data.batch import Batch, Row
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.families.elmo import files
from meltpoint.adapters.families.elmo.encoder import ElmoEncoder
from meltpoint.tasks.core.task import KINDS, Kind

Make = Callable[..., Any]
Numbers = NDArray[np.float64]
SENTENCES = [
    "the old harbour was quiet when the ships came home",
    "London !",
    "naïve 東京 antidisestablishmentarianism-and-other-words-of-more-than-fifty-letters the the",
    "a",
    "prices rose 3.5 percent , the bank said on Monday",
]


def load(folder: Path) -> ElmoEncoder:
    encoder = encoders.load(encoders.resolve(f"elmo:{folder}", "sentence_classification"))
    assert isinstance(encoder, ElmoEncoder)
    return encoder


def batch_of(encoder: Encoder, sentences: Sequence[str]) -> Batch:
    pieces = [tuple(encoder.tokenizer.sentence(text, 1000)[0]) for text in sentences]
    rows = [Row(number, 0, own, (), (), 0) for number, own in enumerate(pieces)]
    return collate(rows, range(len(rows)), encoder.tokenizer.pad_piece, "sentence_classification")


def read(encoder: Encoder, *sentences: str) -> list[list[Numbers]]:
    """Each sentence's states, a layer at a time: (words, dim)."""
    batch = batch_of(encoder, sentences)
    with torch.no_grad():
        layers = encoder(batch)
    return [[own[row, mask].double().numpy() for own in layers] for row, mask in enumerate(batch.piece_mask)]


# --- the released numbers ---


@pytest.fixture(scope="session")
def fixture(shared: Path) -> Path:
    """AllenNLP's toy biLM, with what its authors' own code gives for it."""
    return shared / "data" / "models" / "elmo_fixture_allennlp"


def expected(fixture: Path, number: int, sentence: int) -> Numbers:
    """The authors' top layer, forward beside backward: (words, dim)."""
    with h5py.File(fixture / f"lm_embeddings_{number}.hdf5") as file:
        forward, backward = file[str(sentence)][...].astype(np.float64)
    return np.concatenate([forward, backward], -1)


def test_first_sentences_are_the_authors_and_later_ones_lack_the_state_that_they_carry_over(fixture: Path):
    encoder = load(fixture)
    for number, own in enumerate(json.loads((fixture / "sentences.json").read_text(encoding="utf-8"))):
        first, second = read(encoder, own[0], own[1])
        assert np.abs(first[-1] - expected(fixture, number, 0)).max() < 1e-6
        assert np.abs(second[-1] - expected(fixture, number, 1)).max() > 1e-3


def test_the_released_small_model_has_its_published_size(shared: Path):
    file = shared / "data" / "models" / "elmo_2x1024_128_2048cnn_1xhighway_options.json"
    with torch.device("meta"):
        encoder = ElmoEncoder(files.read(file), "", "")
    assert (encoder.layers, encoder.dim) == (3, 256)
    count = sum(parameter.numel() for parameter in encoder.parameters())
    assert round(count / 1e6, 1) == 13.6  # allennlp.org/elmo, "Small"


# --- the equations ---


class Slow:
    """ELMo in loops over float64 numbers, one sentence at a time, straight from the released file."""

    def __init__(self, folder: Path) -> None:
        said = json.loads((folder / "options.json").read_text(encoding="utf-8"))
        self.cnn, self.lstm = said["char_cnn"], said["lstm"]
        self.weights: dict[str, Numbers] = {}
        with h5py.File(folder / "weights.hdf5") as file:
            file.visititems(lambda name, item: self._keep(name, item))
        self.clipped = [0, 0]

    def _keep(self, name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            self.weights[name] = item[...].astype(np.float64)

    def word(self, characters: list[int]) -> Numbers:
        w = self.weights
        embedded = w["char_embed"][[*characters, *[260] * (50 - len(characters))]]
        pooled = []
        for number, (width, _) in enumerate(self.cnn["filters"]):
            kernel, bias = w[f"CNN/W_cnn_{number}"][0], w[f"CNN/b_cnn_{number}"]
            windows = [embedded[start : start + width] for start in range(50 - width + 1)]
            scores = [np.einsum("wc,wcf->f", window, kernel) + bias for window in windows]
            pooled.append(np.max(scores, 0))
        x = np.concatenate(pooled)
        x = np.maximum(x, 0) if self.cnn["activation"] == "relu" else np.tanh(x)
        for number in range(self.cnn["n_highway"]):
            own = {
                part: w[f"CNN_high_{number}/{part}"] for part in ("W_carry", "b_carry", "W_transform", "b_transform")
            }
            gate = sigmoid(x @ own["W_carry"] + own["b_carry"])
            x = gate * np.maximum(x @ own["W_transform"] + own["b_transform"], 0) + (1 - gate) * x
        return x @ w["CNN_proj/W_proj"] + w["CNN_proj/b_proj"]

    def direction(self, inputs: list[Numbers], cell: str, start: tuple[Numbers, Numbers]) -> tuple[list[Numbers], Any]:
        kernel, bias, projection = (self.weights[f"{cell}/{name}"] for name in ("W_0", "B", "W_P_0"))
        output, memory = start
        limits = [self.lstm["cell_clip"] or math.inf, self.lstm["proj_clip"] or math.inf]
        read = []
        for x in inputs:
            inner, new, forget, outer = np.split(np.concatenate([x, output]) @ kernel + bias, 4)
            bare = sigmoid(forget + 1) * memory + sigmoid(inner) * np.tanh(new)
            memory = np.clip(bare, -limits[0], limits[0])
            projected = (sigmoid(outer) * np.tanh(memory)) @ projection
            output = np.clip(projected, -limits[1], limits[1])
            self.clipped[0] += int((bare != memory).sum())
            self.clipped[1] += int((projected != output).sum())
            read.append(output)
        return read, (output, memory)

    def sentence(self, words: list[str]) -> list[Numbers]:
        """Every layer."""
        edges = [[258, 256, 259], *([258, *word.encode()[:48], 259] for word in words), [258, 257, 259]]
        vectors = [self.word(characters) for characters in edges]
        zeros = np.zeros(self.lstm["projection_dim"]), np.zeros(self.lstm["dim"])
        layers = [[np.stack(vectors)] * 2]
        for number in range(self.lstm["n_layers"]):
            both = []
            for direction in (0, 1):
                inputs = [*layers[-1][direction]][:: -1 if direction else 1]
                cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
                found, _ = self.direction(inputs, cell, zeros)
                if number and self.lstm["use_skip_connections"]:
                    found = [one + two for one, two in zip(found, inputs, strict=True)]
                both.append(np.stack(found)[:: -1 if direction else 1])
            layers.append(both)
        return [np.concatenate(both, -1)[1:-1] for both in layers]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"scale": 2.0, "cell_clip": 0.6, "proj_clip": 0.8},
        {"use_skip_connections": False},
        {"activation": "tanh", "n_highway": 0},
        {"n_layers": 3, "n_highway": 1, "cell_clip": None, "proj_clip": 0.0, "scale": 2.0},
    ],
)
def test_every_layer_is_what_the_equations_say(make_elmo: Callable[..., Path], changed: dict[str, Any]):
    folder = make_elmo(seed=1, **changed)
    encoder, slow = load(folder).double(), Slow(folder)
    for sentence, found in zip(SENTENCES, read(encoder, *SENTENCES), strict=True):
        wanted = slow.sentence(sentence.split())
        assert len(found) == len(wanted) == encoder.layers
        for layer, (one, two) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10, err_msg=f"{sentence}, layer {layer}")
    if "cell_clip" in changed:
        assert [count > 100 for count in slow.clipped] == [bool(changed["cell_clip"])] * 2


# --- batches ---


def test_padding_gets_no_gradient_and_gives_none(elmo: Encoder):
    """The gradients of a padded batch are the sums of its sentences' own."""

    def gradients(*sentences: str) -> list[torch.Tensor]:
        elmo.zero_grad()
        batch = batch_of(elmo, sentences)
        sum((own[batch.piece_mask] ** 2).sum() for own in elmo(batch)).backward()
        return [parameter.grad.clone() for parameter in elmo.parameters()]

    alone = [gradients(sentence) for sentence in SENTENCES]
    for together, *own in zip(gradients(*SENTENCES), *alone, strict=True):
        torch.testing.assert_close(together, sum(own), rtol=1e-4, atol=1e-4)


def test_states_are_float32_under_autocast_and_near_those_without(elmo: Encoder):
    exact = read(elmo, *SENTENCES)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert {own.dtype for own in elmo(batch_of(elmo, SENTENCES))} == {torch.float32}
        coarse = read(elmo, *SENTENCES)
    largest = max(
        np.abs(one - two).max() for a, b in zip(exact, coarse, strict=True) for one, two in zip(a, b, strict=True)
    )
    assert 0 < largest < 0.15  # three digits, on vectors of size 5


# --- adaptation ---


def test_every_parameter_is_in_one_group_and_biases_are_vectors(elmo: Encoder):
    groups = elmo.layer_groups()
    assert [group.name for group in groups] == ["embeddings", "layer_1", "layer_2"]
    assert {id(own) for own in groups[2].parameters} == {id(p) for p in elmo.language_model.layers[1].parameters()}
    inside = [id(parameter) for group in groups for parameter in group.parameters]
    assert sorted(inside) == sorted(id(parameter) for parameter in elmo.parameters())
    vectors = [name for name, parameter in elmo.named_parameters() if parameter.ndim == 1]
    assert vectors == [name for name, _ in elmo.named_parameters() if name.endswith("bias")]  # the rest decays


@pytest.mark.parametrize("kind", KINDS)
def test_fine_tuning_changes_every_parameter_of_every_group(make_trainer: Make, elmo: Encoder, kind: Kind):
    head = "crf" if kind == "sequence_labelling" else "linear"
    trainer = make_trainer("fine_tuning", kind, head, encoder=elmo, weight_decay=0.0, encoder_dropout=0.2)
    before = copy.deepcopy(trainer.model.encoder.state_dict())
    results = list(trainer.results())
    assert all(math.isfinite(result.train_loss) for result in results)
    unchanged = [n for n, own in trainer.model.encoder.state_dict().items() if torch.equal(own, before[n])]
    # A linear head on a sentence reads the first word's state: the direction that ends there has read everything.
    assert unchanged == []
    assert all(torch.equal(own, before[name]) for name, own in elmo.state_dict().items()), "the one handed in stays"


def test_dropout_acts_in_training_only_and_on_what_skips_a_layer_too(elmo: Encoder):
    batch = batch_of(elmo, SENTENCES)
    with torch.no_grad():
        still = elmo(batch)
        elmo.set_dropout(0.5)
        assert all(torch.equal(one, two) for one, two in zip(still, elmo(batch), strict=True))
        moved = elmo.train()(batch)
        again = elmo(batch)
        elmo.set_dropout(0.0)
        none = elmo(batch)
    assert torch.equal(still[0], moved[0]), "the words' own vectors are given whole"
    assert not torch.equal(still[1], moved[1])
    assert not torch.equal(moved[2], again[2])
    assert all(torch.equal(one, two) for one, two in zip(still, none, strict=True))


# --- cached features ---


def test_a_split_is_read_by_an_encoder_that_was_loaded_after_it_was_tokenised(elmo_folder: Path):
    first = load(elmo_folder)
    batch = batch_of(first, ["words that no other test has: xyzzy plugh"])
    later = load(elmo_folder)
    copied = copy.deepcopy(later, {id(later.tokenizer): later.tokenizer})
    with torch.no_grad():
        wanted = first(batch)
        assert all(torch.equal(one, two) for one, two in zip(wanted, later(batch), strict=True))
        assert all(torch.equal(one, two) for one, two in zip(wanted, copied(batch), strict=True))
