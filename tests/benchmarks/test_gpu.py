"""The GPU suite at its toy size on the CPU: FLOPs against torch's counter, and presence of every figure."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from meltpoint.benchmarks.gpu import __main__ as suite
from meltpoint.benchmarks.gpu import ceiling, counting, sharing
from meltpoint.benchmarks.gpu.sizes import BASE, TINY, Size, random_data, save_encoder

SIZES = [TINY, replace(TINY, layers=3, dim=48, heads=4, feed_forward=80, length=24)]


def bert(size: Size) -> transformers.BertModel:
    config = transformers.BertConfig(
        vocab_size=size.vocabulary, hidden_size=size.dim, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, intermediate_size=size.feed_forward, max_position_embeddings=size.positions,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False)


@pytest.mark.parametrize("size", SIZES)
def test_the_count_of_flops_is_the_one_that_torch_makes(size):
    model = bert(size)
    with FlopCounterMode(display=False) as counter:
        states = model(torch.zeros(1, size.length, dtype=torch.int64)).last_hidden_state
    assert counter.get_total_flops() == counting.forward_flops(size)
    with FlopCounterMode(display=False) as counter:
        states.sum().backward()
    assert counter.get_total_flops() == counting.BACKWARD * counting.forward_flops(size)


@pytest.mark.parametrize("size", SIZES)
def test_the_count_of_weights_is_the_model_s(size):
    assert sum(parameter.numel() for parameter in bert(size).parameters()) == counting.weights(size)


def test_bert_base_has_its_published_size():
    assert counting.weights(BASE) == pytest.approx(110e6, rel=0.02)  # Devlin et al. 2019, section 3; with a pooler


def test_the_floor_is_the_slower_of_arithmetic_and_memory():
    arithmetic = BASE.batch * counting.training_flops(BASE) / 1e12
    assert counting.floor_seconds(BASE, 1e12, 1e30) == arithmetic
    assert counting.floor_seconds(BASE, 1e30, 1e12) == counting.step_bytes(BASE) / 1e12


def test_every_input_has_the_size_s_length():
    data = random_data(TINY)
    assert len(data.train.rows) == TINY.examples
    assert {len(row.pieces) for row in data.train.rows} == {TINY.length}
    assert {row.label for row in data.train.rows} <= {0, 1}


def test_a_larger_product_takes_longer():
    cpu = torch.device("cpu")
    small, large = (torch.randn(edge, edge) for edge in (16, 512))
    assert ceiling.seconds_of(lambda: small @ small, cpu) < ceiling.seconds_of(lambda: large @ large, cpu)


def test_the_suite_runs_and_measures_the_trainer_too(monkeypatch):
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    monkeypatch.setattr(suite, "apart", lambda work, *words: work(*words))
    result = suite.measure(TINY, "cpu", repeats=1)
    assert result.trainer is not None
    assert result.ratio is not None
    assert result.ratio.median == pytest.approx(result.ours.median / result.trainer.median)
    assert result.ceiling_share.median == pytest.approx(result.ours.median * result.example_flops / result.matmul_flops)
    assert result.frozen_epoch_seconds.median > 0
    assert result.bundle_ratio.median > 0
    assert any("fine-tuning" in line for line in suite.lines(result))


def test_a_missing_trainer_is_said_and_not_guessed(monkeypatch):
    monkeypatch.setattr(suite, "apart", lambda work, *words: work(*words))
    monkeypatch.setattr(suite, "find_spec", lambda name: None)
    result = suite.measure(TINY, "cpu", repeats=1)
    assert result.trainer is None
    assert "not measured" in "\n".join(suite.lines(result))


def test_the_suite_needs_neither_ray_nor_mlflow():
    code = (
        "import sys, meltpoint.benchmarks.gpu.__main__, meltpoint.benchmarks.gpu.fine_tuning; "
        "print(*[name for name in ('ray', 'mlflow', 'optuna') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, timeout=120)
    assert done.stdout.strip() == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_command_says_what_to_type(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit) as ended:
        suite.main()
    assert ended.value.code == 2
    assert "--device cpu --tiny" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["fine_tuning", "feature_extraction"])
def test_a_process_that_shares_a_gpu_is_timed_from_the_start_of_all(tmp_path, mode):
    encoder, waits = save_encoder(TINY, tmp_path), list[float]()

    class Start:
        """A barrier of one process."""

        def wait(self, seconds: float) -> int:
            """Nobody else is waited for."""
            waits.append(seconds)
            return 0

    seconds, used = sharing.train(TINY, encoder, "cpu", mode, Start())
    assert seconds > 0
    assert used == 0, "there is no GPU whose memory it could take"
    assert len(waits) == 3, "before the clock, and around the reading of the memory"


def test_a_line_of_sharing_compares_with_the_fewest_processes():
    one, four = (sharing.Shared("tiny", "fine_tuning", count, rate, 2**30) for count, rate in ((1, 100.0), (4, 250.0)))
    said = " ".join(sharing.line(four, one).split())
    assert said == "tiny fine_tuning 4 at a time 250 examples/s 2.50 times 1's 1.00 GiB each"
