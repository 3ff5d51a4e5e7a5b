"""`Parameter`, a hyperparameter's declaration (type, limits, default), and every cell's parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = bool | int | float | str
Setting = Mapping[str, Value]
"""One point of a search space: parameter name → value. A name is plain (`learning_rate`) or prefixed by the
plug-in that declares it (`slanted_triangular.cut_fraction`, `bilstm.hidden_size`)."""


@dataclass(frozen=True)
class Parameter:
    """One hyperparameter.

    Attributes:
        name: its key in settings, spaces, MLflow and tables.
        default: its value if a search space does not name it; the default's type is the parameter's type.
        help: one line, with the unit.
        minimum, maximum: the closed interval of valid numbers.
        choices: the valid values of a string; empty for numbers and booleans.
        shapes: whether trials must agree on it to train in one bundle.
        of_pairs: whether it applies only to pairs of sentences, although its head also supports other kinds.
    """

    name: str
    default: Value
    help: str
    minimum: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] = ()
    shapes: bool = False
    of_pairs: bool = False

    def check(self, value: object) -> Value:
        """Return the value, converted to the parameter's type.

        Raises:
            ValueError: wrong type, outside the limits, or not a choice; the message lists the valid values.
        """
        kind: Any = type(self.default)
        if isinstance(value, str):
            is_valid = value in self.choices
        elif isinstance(value, bool):
            is_valid = kind is bool
        else:
            is_valid = isinstance(value, int | float) and kind in (int, float) and self.minimum <= value <= self.maximum
        if not is_valid or (kind is int and isinstance(value, float) and not value.is_integer()):
            raise ValueError(f"{self.name} is {value!r}; it takes {self.domain()}.")
        checked: Value = kind(value)
        return checked

    def domain(self) -> str:
        """The valid values as text, for error messages."""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return " or ".join(self.choices)
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        if math.isinf(self.minimum) and math.isinf(self.maximum):
            return kind
        if math.isinf(self.maximum):
            return f"{kind} of at least {self.minimum:g}"
        return f"{kind} from {self.minimum:g} to {self.maximum:g}"


MAX_PIECES = Parameter(
    "max_pieces", 128,
    "longest input in subword tokens, special tokens included; a sweep's default follows the task's lengths", 8, 8192,
    shapes=True,
)  # fmt: skip
"""The default outside a sweep; each cell of a sweep has its own (`sweeps/specification/space_rules.py`)."""

CLASS_WEIGHTS = Parameter(
    "class_weights", "none", "class weights in the loss: balanced by shares of train, or the task's",
    choices=("none", "balanced", "task"),
)  # fmt: skip
FOCAL_GAMMA = Parameter("focal_gamma", 0.0, "gamma of the focal loss (Lin et al. 2017); 0 is cross-entropy", 0.0, 10.0)
THRESHOLD = Parameter("threshold", 0.5, "least probability at which one of several labels is predicted", 0.01, 0.99)
OF_TARGET: Mapping[str, tuple[Parameter, ...]] = {
    "label": (CLASS_WEIGHTS, FOCAL_GAMMA),
    "labels": (FOCAL_GAMMA, THRESHOLD),
}
"""Target of a kind (`TaskKind.target`) → the hyperparameters of its loss and predictions."""

COMMON = (
    Parameter("learning_rate", 1e-3, "peak learning rate of the top layer group", 0.0, 1.0),
    Parameter("dropout", 0.1, "dropout ratio on the head's input and between its layers", 0.0, 0.95),
    Parameter("encoder_dropout", 0.1, "dropout ratio inside the encoder while it trains", 0.0, 0.95),
    Parameter(
        "optimiser", "adamw",
        "adamw; adamw_bf16, which keeps an encoder's moments in bf16 to save memory; or bert_adam, BERT's own, without "
        "bias correction and with an epsilon of 1e-6", choices=("adamw", "adamw_bf16", "bert_adam"), shapes=True,
    ),
    Parameter("weight_decay", 0.01, "Adam's decoupled weight decay; never on biases and layer norms", 0.0, 1.0),
    Parameter("epochs", 3, "passes over the training data; with patience, the maximum", 1, 1000),
    Parameter("patience", 0, "epochs without a better dev score after which training ends; 0 trains all", 0, 1000),
    Parameter("batch_size", 32, "examples per step", 1, 4096, shapes=True),
    Parameter("gradient_clip", 1.0, "largest norm of the gradient; 0 means no clipping", 0.0, 1e6),
    MAX_PIECES,
    Parameter(
        "precision", "auto", "bf16 autocast, fp32, or auto: bf16 if the hardware supports it",
        choices=("auto", "bf16", "fp32"), shapes=True,
    ),
)  # fmt: skip
"""The hyperparameters of every cell, independent of encoder, mode, head and tricks."""


def common_value(setting: Setting, name: str) -> Value:
    """The value of a common hyperparameter; modes without it (`Mode.unused`) have its default."""
    return setting[name] if name in setting else next(one.default for one in COMMON if one.name == name)
