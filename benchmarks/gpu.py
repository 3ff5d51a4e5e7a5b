"""Training on one GPU: examples a second, share of the measured bf16 ceiling and peak memory, as one JSON document.

Each part is written when it is done, so a run that is cut off keeps what it measured. `--tiny` runs every part on a CPU
with a tiny encoder: a test of the script, whose figures mean nothing."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from meltpoint.adapters import encoders, heads
from meltpoint.adapters.data.input_format import input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.families.huggingface.architecture import layer_stack
from meltpoint.adapters.hardware import GRAPHS, claim_device
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.settings import complete
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.tasks.core.task import Example, Task

WORDS = 28_000
SIZES: dict[str, dict[str, int]] = {
    "bert_large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "bert_base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}
"""BERT-large, with DeBERTa-large's layers, and BERT-base (Devlin et al. 2018), all-MiniLM-L6-v2, and one for tests on a
CPU."""

MPS = "nvidia-cuda-mps-control"

TASK = Task("made_up", "sentence_classification", "accuracy", "", {}, labels=("no", "yes"))


def encoder_folder(size: str, folder: Path) -> Path:
    """Write a BERT of a size, in the hub's layout."""
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(WORDS))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    torch.manual_seed(0)
    shape: dict[str, Any] = dict(SIZES[size])
    config = transformers.BertConfig(vocab_size=30_522, **shape)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def sentences(count: int, pieces: int | None, seed: int) -> list[Example]:
    """Sentences of a length in subword tokens, or of SST-2's lengths (19 words in the mean, 52 at most) if None.

    The label is whether the first word's number is even.
    """
    draw = random.Random(seed)
    found = []
    for number in range(count):
        length = pieces - 2 if pieces is not None else min(52, max(2, round(draw.lognormvariate(2.8, 0.55))))
        words = [draw.randrange(WORDS) for _ in range(length)]
        found.append(Example(str(number), texts=(" ".join(f"w{word}" for word in words),), label=words[0] % 2))
    return found


def work_of_an_example(size: str, pieces: int) -> float:
    """Floating-point operations of a training step's products for one sentence: 6 a weight and subword token, and
    attention's 12 · layers · pieces² · dim (Kaplan et al. 2020, table 1)."""
    shape = SIZES[size]
    dim, layers, inner = shape["hidden_size"], shape["num_hidden_layers"], shape["intermediate_size"]
    weights = layers * (4 * dim * dim + 2 * dim * inner)
    return float(6 * weights * pieces + 12 * layers * pieces**2 * dim)


COMMON: dict[str, Any] = {
    "learning_rate": 3e-5, "weight_decay": 0.01, "dropout": 0.1, "gradient_clip": 1.0, "patience": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One trial's work.

    Attributes:
        folder: of the encoder.
        pieces: the sentences' length; None for SST-2's lengths.
        members: trials side by side on the encoder's frozen weights.
        finals: True gives each of them its own seed, as finals have.
        graphs: False starts each kernel by itself.
        checkpoints: True recomputes activations in the backward pass.
        compiled: True compiles the encoder's layers (torch.compile).
    """

    folder: str
    mode: str = "fine_tuning"
    head: str = "linear"
    pieces: int | None = None
    batch_size: int = 32
    examples: int = 4096
    epochs: int = 4
    members: int = 1
    finals: bool = False
    graphs: bool = True
    compiled: bool = False
    checkpoints: bool = False
    tiny: bool = False


def trainer_of(trial: Trial) -> Trainer:
    """A trainer of a trial on its made-up sentences: on the GPU, or with `tiny` on the CPU."""
    hardware = claim_device(1, 0.0 if trial.tiny else 1.0)
    encoder = encoders.load(encoders.resolve(f"hf:{trial.folder}", "sentence_classification"))
    longest = trial.pieces or 128
    setting = {**COMMON, "batch_size": trial.batch_size, "epochs": trial.epochs, "max_pieces": longest}
    if trial.mode != "feature_extraction":
        setting["encoder_dropout"] = 0.1
    members = [Member(complete(setting | {"learning_rate": 3e-5 * (1 + n)}, trial.mode, trial.head), n * trial.finals)
               for n in range(trial.members)]  # fmt: skip
    own = input_format_of(members[0].setting, heads.get(trial.head).joint_pairs)
    splits = [sentences(trial.examples, trial.pieces, 0), sentences(256, trial.pieces, 1)]
    encoded = [encode_split("sentence_classification", split, encoder.tokenizer, longest, own) for split in splits]
    data = EncodedData(TASK, encoded[0], encoded[1], splits[1], splits[0])
    model = build(encoder, TASK, trial.mode, trial.head, members, hardware.device)
    model.encoder.static = model.encoder.static and trial.graphs
    if trial.checkpoints:
        model.encoder.checkpoint()
    if trial.compiled:
        for layer in layer_stack(model.encoder):
            layer.compile(dynamic=False)
    return Trainer(model, data, trial.mode, members, hardware)


def one_trial(trial: Trial) -> dict[str, Any]:
    """Train a trial alone: the examples a second of its later epochs, the seconds of its first one and of dev."""
    if not trial.tiny:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer = trainer_of(trial)
    results = [result for ((_, result), *_) in trainer.epochs() if isinstance(result, EpochResult)]
    later = results[1:]  # shapes are recorded in the first epoch
    seconds = statistics.median(result.train_seconds for result in later) * trial.members
    return {
        "examples_per_second": trial.members * trial.examples / seconds,
        "first_epoch_s": results[0].train_seconds * trial.members, "later_epoch_s": seconds,
        "dev_s": statistics.median(result.dev_seconds for result in later) * trial.members,
        "peak_gib": 0.0 if trial.tiny else torch.cuda.max_memory_allocated() / 2**30,
        "refusal": trainer.recorded.refusal, "dev": [result.dev["accuracy"] for result in results],
    }  # fmt: skip


def _beside_others(trial: Trial, seconds: float, ready: Any, results: Any) -> None:
    """A process that trains until the time is up; it reports the examples of all whole epochs after the barrier."""
    try:
        iterator = trainer_of(trial).epochs()
        next(iterator), next(iterator)
        ready.wait(timeout=180)
        start, done = time.monotonic(), 0
        while time.monotonic() - start < seconds:
            next(iterator)
            done += 1
        results.put(done * trial.examples / (time.monotonic() - start))
    except Exception:  # noqa: BLE001 - reported by the parent
        results.put(traceback.format_exc())


def side_by_side(trial: Trial, processes: int, seconds: float) -> dict[str, Any]:
    """Train the same trial in several processes at once: their examples a second, all together."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(processes), context.Queue()
    endless = replace(trial, epochs=1000)
    every = [context.Process(target=_beside_others, args=(endless, seconds, ready, results), daemon=True)
             for _ in range(processes)]  # fmt: skip
    for process in every:
        process.start()
    rates = [results.get(timeout=240) for _ in every]
    for process in every:
        process.join()
    faults = [rate for rate in rates if isinstance(rate, str)]
    if faults:
        raise RuntimeError(faults[0])
    return {"examples_per_second": sum(rates), "processes": processes, "slowest": min(rates), "fastest": max(rates)}


def the_trainer(trial: Trial, compiled: bool) -> dict[str, Any]:
    """Hugging Face's Trainer on the same sentences, with bf16, fused AdamW and batches grouped by length."""
    import datasets
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(trial.folder)
    texts = sentences(trial.examples, trial.pieces, 0)
    columns = dict(tokenizer([e.texts[0] for e in texts], truncation=True, max_length=128, padding=False))
    data = datasets.Dataset.from_dict({**columns, "labels": [e.label for e in texts]})
    model = transformers.AutoModelForSequenceClassification.from_pretrained(trial.folder)
    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            if not trial.tiny:
                torch.cuda.synchronize()
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, num_train_epochs=trial.epochs, per_device_train_batch_size=trial.batch_size,
            learning_rate=3e-5, bf16=not trial.tiny, optim="adamw_torch_fused", torch_compile=compiled,
            train_sampling_strategy="group_by_length", save_strategy="no", logging_strategy="no", report_to="none",
            disable_tqdm=True, logging_nan_inf_filter=False, use_cpu=trial.tiny,
        )  # fmt: skip
        began = time.perf_counter()
        transformers.Trainer(
            model=model, args=arguments, train_dataset=data, callbacks=[Clock()],
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
        ).train()  # fmt: skip
    later = [two - one for one, two in pairwise(times)]
    return {"examples_per_second": trial.examples / statistics.median(later), "first_epoch_s": times[0] - began}


def ceiling(tiny: bool) -> float:
    """Operations a second of a plain bf16 product of random matrices, the median of 20."""
    size, device = (256, "cpu") if tiny else (8192, "cuda")
    one, two = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(25):
        if not tiny:
            torch.cuda.synchronize()
        began = time.perf_counter()
        one @ two
        if not tiny:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(seconds[5:])


def under_mps(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure while NVIDIA's MPS runs the kernels of several processes at the same time; plainly where it is not."""
    if shutil.which(MPS) is None:
        return {**measure(), "without": MPS}
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([MPS, "-d"], check=True)
        try:
            return measure()
        finally:
            subprocess.run([MPS], input="quit\n", text=True, check=False)
            del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]


def parts(folders: Mapping[str, str], tiny: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """Every measurement by name; the cheap and the important ones first."""
    count, seconds, examples = (2, 0.2, 64) if tiny else (8, 6.0, 2048)
    tuned = Trial(folders["minilm"], examples=64, epochs=3, tiny=True) if tiny else Trial(folders["minilm"])
    lora = replace(tuned, mode="lora")
    frozen = replace(tuned, mode="feature_extraction", head="bilstm", examples=64 if tiny else 1024)
    large = Trial(folders["bert_base"], pieces=128, examples=examples, epochs=3, tiny=tiny)
    largest = replace(large, folder=folders["bert_large"], pieces=64 if tiny else 512, examples=64 if tiny else 256)
    larger = replace(large, batch_size=256, epochs=4)
    alone = {
        "minilm fine_tuning": tuned,
        "minilm lora": lora,
        "minilm lora, 16 side by side": replace(lora, members=2 * count),
        "bert_base fine_tuning, 32": large,
        "bert_base fine_tuning, 128": replace(large, batch_size=128),
        "bert_base fine_tuning, 256": larger,
        "bert_base fine_tuning, 256, compiled": replace(larger, compiled=True),
        "bert_base lora, 32": replace(large, mode="lora"),
        "bert_base lora, 32, 8 side by side": replace(large, mode="lora", members=count),
        "minilm frozen bilstm": frozen,
        "minilm frozen bilstm, 8 side by side": replace(frozen, members=count),
        "minilm frozen bilstm, 3 finals": replace(frozen, members=3, finals=True),
        "minilm lora, 3 finals": replace(lora, members=3, finals=True),
        "bert_large fine_tuning, 512 pieces": largest,
        "bert_large fine_tuning, 512 pieces, plain": replace(largest, graphs=False),
        "bert_large fine_tuning, 512 pieces, checkpoints": replace(largest, checkpoints=True),
        "minilm fine_tuning, plain": replace(tuned, graphs=False, epochs=3),
        "bert_base fine_tuning, 32, plain": replace(large, graphs=False),
    }
    found = {name: functools.partial(one_trial, trial) for name, trial in alone.items()}
    beside = functools.partial(side_by_side, tuned, seconds=seconds)
    return found | {
        "minilm fine_tuning, 8 processes, MPS": lambda: under_mps(lambda: beside(processes=count)),
        "minilm fine_tuning, 16 processes, MPS": lambda: under_mps(lambda: beside(processes=2 * count)),
        "minilm Trainer": lambda: the_trainer(replace(tuned, epochs=3), False),
        "bert_base Trainer, 32": lambda: the_trainer(large, False),
        "bert_base Trainer, 128, compiled": lambda: the_trainer(replace(large, batch_size=128, epochs=4), True),
        "minilm fine_tuning, 8 processes": lambda: beside(processes=count),
    }


def main() -> None:
    """Measure, and write the JSON document."""
    parser = argparse.ArgumentParser(prog="gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--tiny", action="store_true", help="on a CPU, with a tiny encoder")
    parser.add_argument("--only", default="", help="only parts whose name has this word")
    parser.add_argument("--seconds", type=float, default=420.0, help="begin no part after this time")
    options = parser.parse_args()
    began, tiny = time.monotonic(), options.tiny
    os.environ[GRAPHS] = "1"
    found: dict[str, Any] = {
        "device": "CPU" if tiny else torch.cuda.get_device_name(0),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "ceiling_flops": ceiling(tiny), "parts": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="meltpoint-gpu-") as folder:
        folders = {size: Path(folder) / size for size in SIZES}
        for name, part in parts({size: str(path) for size, path in folders.items()}, tiny).items():
            if options.only not in name:
                continue
            size = name.split()[0]
            if not folders[size].exists():
                encoder_folder("tiny" if tiny else size, folders[size])
            if time.monotonic() - began > options.seconds:
                found["parts"][name] = {"left_out": "no time left"}
                continue
            start = time.monotonic()
            try:
                result = part()
            except Exception as error:  # noqa: BLE001 - the other parts are still measured, and the document says it
                traceback.print_exc()
                result = {"failed": f"{type(error).__name__}: {error}"}
            if name.startswith(("bert_base fine_tuning", "bert_base Trainer")) and "examples_per_second" in result:
                work = work_of_an_example("bert_base", 128) * result["examples_per_second"]
                result["share_of_ceiling"] = work / found["ceiling_flops"]
            result["wall_s"] = time.monotonic() - start
            found["parts"][name] = result
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, {key: round(v, 4) if isinstance(v, float) else v for key, v in result.items()}, flush=True)


if __name__ == "__main__":
    main()
