"""Heads: every head for every kind that it serves, padding never changes a score, bf16 works, the loss teaches."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from meltpoint.adapters import heads, layers
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import first_states, pool
from meltpoint.adapters.layers.dropout import MemberRng
from meltpoint.tasks.core.task import KINDS, Kind

DIM = 12
SETTING = {
    "dropout": 0.0, "bilstm.hidden_size": 8, "bilstm.layers": 2, "mlp.hidden_size": 16,
    "esim.hidden_size": 8,
    "bcn.hidden_size": 8, "highway_lstm.hidden_size": 8, "densenet.growth_rate": 4,
    "bimpm.hidden_size": 8, "bimpm.perspectives": 2,
    "sim_transformer.heads": 4, "sim_transformer.feed_forward_size": 16,
}  # fmt: skip
SERVED = [(word, kind) for word, kind in itertools.product(heads.names(), KINDS) if kind in heads.get(word).kinds]
LENGTHS = [7, 4, 9]
PARTS = torch.tensor([[0, 1, 1, 0, 2, 2, 0] + [0] * 5, [0, 1, 2, 0] + [0] * 8, [0, 1, 1, 1, 1, 0, 2, 2, 0] + [0] * 3])
"""Which sentence of its pair each piece belongs to, special tokens and padding to none; (rows, 12)."""
CUTS = torch.tensor([4, 2, 6])
"""Where the second sentence's own input would begin, for heads that read pairs encoded separately."""
STARTS = [[1, 2, 4], [1], [1, 3, 4, 5, 7]]


def build(word: str, kind: Kind, **setting: float) -> Head:
    regression = kind == "pair_regression"
    shape = HeadShape(kind, DIM, 1 if regression else 4, (0.0, 5.0) if regression else None)
    return heads.get(word, kind)(shape, [SETTING | setting], MemberRng([0]))


def make_batch(kind: Kind, rows: list[int] | None = None, width: int = 0) -> tuple[Tensor, Batch]:
    """Random states, (1, rows, width, dim), of three rows of different lengths (or some of them), with labels."""
    rows = [0, 1, 2] if rows is None else rows
    generator = torch.Generator().manual_seed(1)
    everything = torch.randn(3, 12, DIM, generator=generator)
    width = width or max(LENGTHS[row] for row in rows)
    mask = torch.arange(width) < torch.tensor([LENGTHS[row] for row in rows])[:, None]
    states = everything[None, rows, :width]
    pieces = torch.ones(len(rows), width, dtype=torch.int64)
    if kind != "sequence_labelling":
        labels = torch.tensor([0.5, 4.0, 2.5] if kind == "pair_regression" else [1, 3, 0])[rows]
        parts = PARTS[rows, :width] if kind.startswith("pair") else None
        cuts = CUTS[rows] if kind.startswith("pair") else None
        return states, Batch(tuple(rows), pieces, mask, None, labels=labels, parts=parts, cuts=cuts)
    most = max(len(STARTS[row]) for row in rows)
    starts = torch.tensor([STARTS[row] + [0] * (most - len(STARTS[row])) for row in rows])
    word_mask = torch.tensor([[i < len(STARTS[row]) for i in range(most)] for row in rows])
    labels = (starts + 1) % 4 * word_mask
    return states, Batch(tuple(rows), pieces, mask, None, starts, word_mask, labels)


# --- the registry ---


def test_the_heads_of_the_first_release_are_there():
    assert {"bilstm", "bilstm_crf", "crf", "linear", "mlp"} <= set(heads.names())


def test_an_unknown_head_names_the_near_misses():
    with pytest.raises(ValueError, match=r"Unknown head 'lineer'. Did you mean linear\?"):
        heads.get("lineer")


def test_a_head_for_an_impossible_kind_names_those_that_serve_it():
    with pytest.raises(
        ValueError, match=r"Head 'crf' cannot serve pair regression; these can: .*bilstm, .*linear, mlp"
    ):
        heads.get("crf", "pair_regression")


def test_the_hyperparameters_read_from_the_files_text_are_those_of_the_classes():
    found = heads.parameters()
    assert set(found) == {own for name in heads.names() for own in heads.get(name).hyperparameters}
    assert heads.declared_in([*heads.__path__, *layers.__path__]) == found, "without a torch import"


def test_a_hyperparameter_of_no_plain_values_is_not_read_from_the_text(tmp_path):
    path = tmp_path / "own.py"
    path.write_text('SIZE = Parameter("own.size", 3, "units", 1, 9)\n', encoding="utf-8")
    assert heads.declared_in([str(tmp_path)]) == (Parameter("own.size", 3, "units", 1, 9),)
    path.write_text('SIZE = Parameter("own.size", len("abc"), "units", 1, 9)\n', encoding="utf-8")
    assert heads.declared_in([str(tmp_path)]) is None


def test_every_hyperparameter_is_there_once_and_dotted_by_its_family():
    names = [parameter.name for parameter in heads.parameters()]
    assert len(names) == len(set(names))
    families = {name.split("_")[0] for name in heads.names()} | set(heads.names())
    assert {name.partition(".")[0] for name in names} <= families


# --- every head, every kind ---


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_scores_loss_and_predictions_have_their_shapes(word: str, kind: Kind):
    head = build(word, kind)
    states, batch = make_batch(kind)
    scores = head(states, batch)
    outputs = head.shape.outputs
    assert scores.shape == ((1, 3, 5, outputs) if kind == "sequence_labelling" else (1, 3, outputs))
    assert scores.dtype == torch.float32
    loss = head.loss(scores, batch)
    assert loss.shape == (1,)
    predictions = head.decode(scores[0], batch, 0)
    if kind == "sequence_labelling":
        assert [len(labels) for labels in predictions] == [3, 1, 5]
    assert len(predictions) == 3
    loss.sum().backward()
    assert all(parameter.grad is not None for parameter in head.parameters())


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_padding_and_neighbours_do_not_change_a_rows_scores(word: str, kind: Kind):
    head = build(word, kind).eval()
    together = head(*make_batch(kind, width=12))
    for row in range(3):
        alone = head(*make_batch(kind, [row]))[0, 0]
        expected = together[0, row][: len(alone)]
        torch.testing.assert_close(alone, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_a_head_learns_its_batch_by_heart(word: str, kind: Kind):
    head = build(word, kind)
    states, batch = make_batch(kind)
    optimiser = torch.optim.Adam(head.parameters(), 0.05)
    for _ in range(80):
        optimiser.zero_grad()
        head.loss(head(states, batch), batch).sum().backward()
        optimiser.step()
    scores = head(states, batch)
    assert head.loss(scores, batch).item() < 0.05
    found = head.decode(scores[0], batch, 0)
    if kind == "sequence_labelling":
        assert found == [row[mask].tolist() for row, mask in zip(batch.labels, batch.word_mask, strict=True)]
    elif kind == "pair_regression":
        assert found == pytest.approx(batch.labels.tolist(), abs=0.3)
    else:
        assert found == batch.labels.tolist()


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_autocast_to_bf16_works_and_scores_stay_float32(word: str, kind: Kind):
    head = build(word, kind)
    states, batch = make_batch(kind)
    exact = head(states, batch)
    with torch.autocast("cpu", torch.bfloat16):
        scores = head(states.bfloat16(), batch)
        loss = head.loss(scores, batch)
    assert (scores.dtype, loss.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(scores, exact, atol=0.1, rtol=0.1)
    loss.sum().backward()
    assert {parameter.grad.dtype for parameter in head.parameters()} == {torch.float32}


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_dropout_acts_in_training_only(word: str, kind: Kind):
    head = build(word, kind, dropout=0.5)
    states, batch = make_batch(kind)
    head.eval()
    assert torch.equal(head(states, batch), head(states, batch))
    head.train()
    assert not torch.equal(head(states, batch), head(states, batch))
    drawn = []
    for step in (4, 4, 5):
        head.rng.begin(step)
        drawn.append(head(states, batch))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_equal_seeds_give_equal_heads(word: str, kind: Kind):
    one, two = build(word, kind), build(word, kind)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_a_head_that_reads_first_pieces_needs_no_others(word: str, kind: Kind):
    head = build(word, kind).eval()
    states, batch = make_batch(kind)
    expected = head(states, batch)
    compact = first_states(states, batch)
    if batch.cuts is not None:
        compact = torch.stack([compact, states[:, torch.arange(3), batch.cuts]], 2)
        mask, ones = torch.ones(3, 2, dtype=torch.bool), torch.ones(3, dtype=torch.int64)
        parts = torch.tensor([[1, 2]]).expand(3, -1)
        small = dataclasses.replace(batch, pieces=mask.long(), piece_mask=mask, parts=parts, cuts=ones)
    elif batch.word_starts is None:
        compact = compact[:, :, None]
        mask = torch.ones(3, 1, dtype=torch.bool)
        parts = None if batch.parts is None else batch.parts[:, :1]
        small = dataclasses.replace(batch, pieces=mask.long(), piece_mask=mask, parts=parts)
    else:
        starts = torch.arange(compact.shape[2]).expand(3, -1)
        small = dataclasses.replace(batch, pieces=starts, piece_mask=batch.word_mask, word_starts=starts)
        expected = expected * batch.word_mask[None, :, :, None]
    found = head(compact, small)
    if batch.word_starts is not None:
        found = found * batch.word_mask[None, :, :, None]
    assert (head.reads == "first") == torch.allclose(found, expected, atol=1e-6)


# --- each head's own claims ---


def test_linear_reads_the_first_piece_only():
    head = build("linear", "sentence_classification")
    states, batch = make_batch("sentence_classification")
    changed = states.clone()
    changed[:, :, 1:] = 0
    assert torch.equal(head(states, batch), head(changed, batch))
    torch.testing.assert_close(head(states, batch), head.scores.linear(states[:, :, 0]))


def test_linear_reads_each_words_first_piece():
    head = build("linear", "sequence_labelling")
    states, batch = make_batch("sequence_labelling")
    scores = head(states, batch)
    torch.testing.assert_close(scores[:, 2, 3], head.scores.linear(states[:, 2, 5:6])[:, 0])


def compared(form: str, one: Tensor, two: Tensor) -> list[float]:
    """A pair of vectors as Kiros et al. and GLUE's baselines write it, number by number."""
    pairs = list(zip(one.tolist(), two.tolist(), strict=True))
    own = [u for u, _ in pairs] + [v for _, v in pairs] if form == "glue" else []
    return own + [abs(u - v) for u, v in pairs] + [u * v for u, v in pairs]


@pytest.mark.parametrize(("form", "width"), [("kiros", 2 * DIM), ("glue", 4 * DIM)])
def test_sentence_vectors_compare_the_first_states_of_both_sentences(form: str, width: int):
    head = build("sentence_vectors", "pair_classification", **{"sentence_vectors.pair": form})
    states, batch = make_batch("pair_classification")
    assert head.scores.linear.weight.shape == (1, 4, width)
    rows = [compared(form, states[0, row, 0], states[0, row, cut]) for row, cut in enumerate(CUTS.tolist())]
    torch.testing.assert_close(head(states, batch), head.scores.linear(torch.tensor([rows])))


def test_sentence_vectors_of_one_sentence_are_its_first_state():
    head = build("sentence_vectors", "sentence_classification")
    states, batch = make_batch("sentence_classification")
    torch.testing.assert_close(head(states, batch), head.scores.linear(states[:, :, 0]))


def test_sentence_vectors_never_score_pairs_that_were_encoded_jointly():
    states, batch = make_batch("pair_classification")
    with pytest.raises(AssertionError, match="encoded separately"):
        build("sentence_vectors", "pair_classification")(states, dataclasses.replace(batch, cuts=None))


def test_sentence_vectors_do_not_label_words():
    with pytest.raises(ValueError, match="Head 'sentence_vectors' cannot serve sequence labelling"):
        heads.get("sentence_vectors", "sequence_labelling")


def test_mlp_has_two_fully_connected_layers_of_the_size_asked_for():
    head = build("mlp", "sentence_classification")
    assert [tuple(p.shape) for p in head.parameters() if p.dim() == 3] == [(1, 16, DIM), (1, 4, 16)]


def test_mlp_starts_with_kaimings_variance():
    head = heads.get("mlp")(HeadShape("sentence_classification", 500, 2), [{"mlp.hidden_size": 400}], MemberRng([0]))
    assert head.hidden.weight.detach().std().item() == pytest.approx((2 / 500) ** 0.5, rel=0.02)
    assert not head.hidden.bias.any()


def test_pooling_takes_maximum_and_mean_over_real_pieces():
    states = torch.tensor([[[1.0], [-3.0], [99.0]], [[-1.0], [-2.0], [-6.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    batch = Batch((0, 1), mask.long(), mask)
    assert pool(states[None], batch).tolist() == [[[1.0, -1.0], [-1.0, -3.0]]]


def test_a_setting_outside_a_parameters_limits_is_refused():
    with pytest.raises(ValueError, match=r"bilstm\.hidden_size is 0"):
        build("bilstm", "sentence_classification", **{"bilstm.hidden_size": 0})


def test_a_head_takes_the_defaults_of_what_its_setting_does_not_name():
    head = heads.get("bilstm")(HeadShape("sequence_labelling", DIM, 3), [{}], MemberRng([0]))
    assert (head.bilstm.dim, head.bilstm.layers) == (400, 2)
    assert head.scores.dropout.levels == [round(0.1 * 2**16)]
