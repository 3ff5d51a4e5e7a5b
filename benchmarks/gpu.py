"""Training on one GPU: examples a second, share of the measured bf16 ceiling and peak memory, as one JSON document.

Each part is written when it is done, so a run that is cut off keeps what it measured. `--tiny` runs every part on a CPU
with a tiny encoder: a test of the script, whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from meltpoint.adapters import encoders, heads
from meltpoint.adapters.data.input_format import input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.hardware import GRAPHS, Hardware, claim_device
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.settings import complete
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData
from meltpoint.benchmarks import made_up

COMMON: dict[str, Any] = {
    "learning_rate": 3e-5, "weight_decay": 0.01, "dropout": 0.1, "gradient_clip": 1.0, "max_pieces": 128, "patience": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One trial's work.

    Attributes:
        folder: of the encoder.
        pieces: the sentences' length; None for SST-2's lengths.
        members: trials side by side on the frozen encoder.
        graphs: False starts each kernel by itself.
    """

    folder: str
    mode: str = "fine_tuning"
    head: str = "linear"
    pieces: int | None = None
    batch_size: int = 32
    examples: int = 4096
    epochs: int = 4
    members: int = 1
    graphs: bool = True
    tiny: bool = False


def claim(tiny: bool) -> Hardware:
    """The GPU, or with `tiny` the CPU."""
    return claim_device(1, 0.0 if tiny else 1.0)


def trainer_of(trial: Trial, hardware: Hardware) -> Trainer:
    """A trainer of a trial, on its made-up sentences."""
    encoder = encoders.load(encoders.resolve(f"hf:{trial.folder}", "sentence_classification"))
    setting = {**COMMON, "batch_size": trial.batch_size, "epochs": trial.epochs}
    if trial.mode != "feature_extraction":
        setting["encoder_dropout"] = 0.1
    members = [Member(complete(setting | {"learning_rate": 3e-5 * (1 + n)}, trial.mode, trial.head), 0)
               for n in range(trial.members)]  # fmt: skip
    own = input_format_of(members[0].setting, heads.get(trial.head).joint_pairs)
    splits = [made_up.sentences(trial.examples, trial.pieces, 0), made_up.sentences(256, trial.pieces, 1)]
    encoded = [encode_split("sentence_classification", split, encoder.tokenizer, 128, own) for split in splits]
    data = EncodedData(made_up.TASK, encoded[0], encoded[1], splits[1], splits[0])
    model = build(encoder, made_up.TASK, trial.mode, trial.head, members, hardware.device)
    model.encoder.static = model.encoder.static and trial.graphs
    return Trainer(model, data, trial.mode, members, hardware)


def one_trial(trial: Trial) -> dict[str, Any]:
    """Train a trial alone: the examples a second of its later epochs, the seconds of its first one and of dev."""
    hardware = claim(trial.tiny)
    if not trial.tiny:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer = trainer_of(trial, hardware)
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


def the_trainer(trial: Trial) -> dict[str, Any]:
    """Hugging Face's Trainer on the same sentences, with bf16, fused AdamW and batches grouped by length."""
    import datasets
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(trial.folder)
    texts = made_up.sentences(trial.examples, trial.pieces, 0)
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
            learning_rate=3e-5, bf16=not trial.tiny, optim="adamw_torch_fused",
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


def parts(base: str, mini: str, tiny: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """Every measurement by name; the cheap and the important ones first."""
    few: dict[str, Any] = {"tiny": tiny, "examples": 64, "epochs": 3} if tiny else {"tiny": False}
    short = Trial(mini, **few)
    large = Trial(base, pieces=128, **few | ({} if tiny else {"examples": 2048, "epochs": 3}))

    return {
        "minilm fine_tuning": lambda: one_trial(short),
        "minilm fine_tuning, plain": lambda: one_trial(replace(short, graphs=False, epochs=3)),
        "minilm Trainer": lambda: the_trainer(replace(short, epochs=3)),
        "minilm lora": lambda: one_trial(replace(short, mode="lora")),
        "minilm frozen bilstm, 8": lambda: one_trial(
            replace(short, mode="feature_extraction", head="bilstm", members=8, examples=few.get("examples", 1024))
        ),
        "bert_base fine_tuning, 32": lambda: one_trial(large),
        "bert_base fine_tuning, 128": lambda: one_trial(replace(large, batch_size=128)),
        "bert_base fine_tuning, 32, plain": lambda: one_trial(replace(large, graphs=False)),
        "bert_base lora, 32": lambda: one_trial(replace(large, mode="lora")),
        "bert_base Trainer, 32": lambda: the_trainer(large),
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
    sizes = {"base": "tiny", "mini": "tiny"} if tiny else {"base": "bert_base", "mini": "minilm"}
    found: dict[str, Any] = {
        "device": "CPU" if tiny else torch.cuda.get_device_name(0),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "ceiling_flops": ceiling(tiny), "parts": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="meltpoint-gpu-") as folder:
        base, mini = (str(made_up.encoder_folder(sizes[size], Path(folder) / size)) for size in ("base", "mini"))
        for name, part in parts(base, mini, tiny).items():
            if options.only not in name:
                continue
            if time.monotonic() - began > options.seconds:
                found["parts"][name] = {"left_out": "no time left"}
                continue
            start = time.monotonic()
            try:
                result = part()
            except Exception as error:  # noqa: BLE001 - the other parts are still measured, and the document says it
                traceback.print_exc()
                result = {"failed": f"{type(error).__name__}: {error}"}
            if name.startswith("bert_base") and "examples_per_second" in result:
                work = made_up.work_of_an_example(sizes["base"], 128) * result["examples_per_second"]
                result["share_of_ceiling"] = work / found["ceiling_flops"]
            result["wall_s"] = time.monotonic() - start
            found["parts"][name] = result
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, {key: round(v, 4) if isinstance(v, float) else v for key, v in result.items()}, flush=True)


if __name__ == "__main__":
    main()
