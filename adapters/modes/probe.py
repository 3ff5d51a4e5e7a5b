"""🔍 Probe: one linear layer on frozen states, fitted by L-BFGS; no gradient steps, no randomness.

Logistic regression for labels and for each word, ridge regression for scores (Alain & Bengio 2016; Conneau & Kiela
2018, section 3). Middle layers are often better than the last (Skean et al. 2025, arXiv 2502.02013), so the layer is
searched.
"""

from __future__ import annotations

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import DefaultHead, DefaultHeads, Layers, Mode, Phase, by_kind

C = Parameter(
    "probe.c", 1.0, "inverse strength of the L2 penalty on standardised states, as scikit-learn's C", 1e-8, 1e8
)
LAYERS = Parameter(
    "probe.layers", "depth", "the head's input: the one layer at probe.depth, or the mean of all layers",
    choices=("depth", "mean"), shapes=True,
)  # fmt: skip
DEPTH = Parameter(
    "probe.depth", 1.0, "the layer's relative depth: 0 is the embeddings, 1 the top layer", 0.0, 1.0, shapes=True
)


def layers(setting: Setting) -> Layers:
    """The layer at the depth, or the mean of all layers."""
    return "mean" if setting[LAYERS.name] == "mean" else float(setting[DEPTH.name])


def fitted(c: float) -> Phase:
    """The phase in which the solver fits the head on the frozen encoder, with scikit-learn's C."""
    return Phase("probe", 1, 0.0, encoder_trains=False, fit_c=c)


def phases(setting: Setting) -> tuple[Phase, ...]:
    """One phase: the fit."""
    return (fitted(float(setting[C.name])),)


_POOLED = DefaultHead("pooling", "a linear classifier on pooled states: Conneau & Kiela 2018, section 3")
HEADS = DefaultHeads(
    joint=by_kind(
        labels=DefaultHead("linear", "a linear classifier on each word's state: Liu et al. 2019, section 3"),
        sentences=_POOLED, pairs=_POOLED,
    )
)  # fmt: skip


MODE = Mode(
    name="probe",
    symbol="🔍",
    layers=layers,
    trains_encoder=False,
    default_heads=HEADS,
    phases=phases,
    verb="Probe {}",
    colour="#1b8f8f",
    rung=0,
    space="feature_extraction",
    is_random=False,
    fits_head=True,
    unused=(
        "learning_rate", "dropout", "optimiser", "weight_decay", "epochs", "patience", "batch_size", "gradient_clip",
        "schedule", "focal_gamma", "sentence_vectors.hidden_size", "sentence_vectors.regression",
    ),
    hyperparameters=(C, LAYERS, DEPTH),
    summary="one linear layer on frozen states, fitted by L-BFGS in seconds",
)  # fmt: skip
