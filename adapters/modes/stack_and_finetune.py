"""❄🔥 Stack and fine-tune: first train the head on the frozen encoder, then everything together at a small rate.

"How About the Best of Both Worlds?" (arXiv 1907.05338), Methodology. The first phase's rate of 1e-3 was the best of
the five tried there.
"""

from meltpoint.adapters.hyperparameters import Parameter, Setting
from meltpoint.adapters.multiplier_table import DefaultHead, DefaultHeads, Mode, Phase, by_kind, top_layer
from meltpoint.tasks.core.kinds import reading

EPOCHS = Parameter("stack_and_finetune.stack_epochs", 2, "epochs of the first phase, with the encoder frozen", 1, 1000)
RATE = Parameter("stack_and_finetune.stack_learning_rate", 1e-3, "learning rate of the first phase", 0.0, 1.0)
RESTART = Parameter("stack_and_finetune.restart_schedule", True, "whether the schedule restarts with the second phase")
GAP = Parameter(
    "stack_and_finetune.largest_gap", 0.0,
    "the first phase ends at the last epoch in which train exceeds dev by at most this much; 0 turns this off",
    0.0, 2.0,
)  # fmt: skip
"""arXiv 1907.05338, Methodology: phase 1 goes "only up to a point where the prediction accuracy of the training and
validation data sets do not differ much", not to its best score. 2 is the largest possible gap of a correlation."""


def phases(setting: Setting) -> tuple[Phase, ...]:
    """Two phases: the head alone, then encoder and head together."""
    stack = Phase("stack", int(setting[EPOCHS.name]), float(setting[RATE.name]), encoder_trains=False)
    finetune = Phase("finetune", int(setting["epochs"]), float(setting["learning_rate"]), encoder_trains=True)
    return (stack, finetune)


HEADS = DefaultHeads(
    joint=by_kind(
        labels=DefaultHead("bilstm", "a BiLSTM on BERT: arXiv 1907.05338, experiment A"),
        sentences=DefaultHead("highway_lstm", "the Highway-LSTM of arXiv 1907.05338, experiment B"),
        pairs=DefaultHead("sim_transformer", "the Sim-Transformer of arXiv 1907.05338, experiment C"),
    ),
    single={
        kind: DefaultHead("bilstm_crf", "a BiLSTM and a CRF on ELMo: Peters, Ruder & Smith 2019, table 5")
        for kind in reading("words")
    },
)
"""The stacked networks of arXiv 1907.05338, experiments A to C."""


MODE = Mode(
    name="stack_and_finetune",
    symbol="❄🔥",
    layers=top_layer,
    trains_encoder=True,
    default_heads=HEADS,
    phases=phases,
    verb="Stack, then fine-tune {}",
    colour="#8a4fd0",
    rung=7,
    hyperparameters=(EPOCHS, RATE, RESTART, GAP),
    idle_when_constant=(RESTART,),
    summary="the head trains on the frozen encoder first, then everything trains together",
)
