"""Every mistake in a space raises a one-line error with the file, the key and the remedy."""

from __future__ import annotations

import re

import pytest

from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.search_spaces.files import load

MISTAKES = {
    "a typo": ("learning_rat: 0.1", "Unknown key of a space 'learning_rat'. Did you mean learning_rate?"),
    "above the limit": ("dropout: 0.99", "dropout is 0.99; it takes a number from 0 to 0.95"),
    "an infinite value": ("learning_rate: .inf", "learning_rate is inf; it takes a number from 0 to 1"),
    "a NaN": ("learning_rate: .nan", "learning_rate is nan; it takes a number from 0 to 1"),
    "a word for a number": ("epochs: many", "epochs is 'many'; it takes a whole number"),
    "a fraction for a whole number": ("epochs: 2.5", "epochs is 2.5; it takes a whole number"),
    "a switch for a number": ("epochs: true", "epochs is True; it takes a whole number"),
    "a number for a switch": ("gradual_unfreezing: 1", "gradual_unfreezing is 1; it takes true or false"),
    "YAML 1.1's yes": ("gradual_unfreezing: yes", "gradual_unfreezing is 'yes'; it takes true or false"),
    "hexadecimal": ("epochs: 0x2", "epochs is '0x2'; it takes a whole number"),
    "YAML 1.1's octal": ("epochs: 010", "epochs is '010'; it takes a whole number"),
    "an unknown choice": ("schedule: flat", "schedule is 'flat'; it takes constant or slanted_triangular or"),
    "a bound outside": ("dropout: {uniform: [0, 2]}", "it takes a number from 0 to 0.95"),
    "bounds swapped": ("dropout: {uniform: [0.5, 0.1]}", "dropout goes from 0.5 to 0.1; write the lower bound first"),
    "one bound": ("dropout: {uniform: [0.5]}", "dropout has the range [0.5]; write [lowest, highest]"),
    "bounds that are no list": ("dropout: {uniform: 0.5}", "dropout has the range 0.5; write [lowest, highest]"),
    "a logarithm of zero": (
        "dropout: {log_uniform: [0, 0.5]}",
        "dropout: log_uniform starts at 0; write a lower bound above 0",
    ),
    "a uniform integer": ("epochs: {uniform: [1, 5]}", "write integer or choice, not uniform"),
    "a uniform word": ("schedule: {uniform: [1, 5]}", "write choice, not uniform"),
    "an integer number": ("dropout: {integer: [0, 1]}", "write uniform or choice, not integer"),
    "a bare list": ("batch_size: [16, 32]", "batch_size is a list; write {choice: [...]}"),
    "a choice of nothing": ("epochs: {choice: []}", "epochs: choice is []; write a list"),
    "a choice that is no list": ("epochs: {choice: 3}", "epochs: choice is 3; write a list"),
    "a choice twice": ("dropout: {choice: [0, 0.0]}", "dropout: choice names a value twice"),
    "a list in a choice": ("epochs: {choice: [[1]]}", "epochs is [1]; it takes a whole number"),
    "a wrong kind": ("dropout: {unifrom: [0, 0.5]}", "Unknown key of a range 'unifrom'. Did you mean uniform"),
    "no kind": ("dropout: {first: 0.1}", "dropout has no kind of range; write exactly one of"),
    "two kinds": ("epochs: {choice: [1], integer: [1, 2]}", "epochs has choice and integer; write exactly one of"),
    "a first outside": ("dropout: {uniform: [0, 0.5], first: 0.6}", "dropout: first has 0.6, outside 0 to 0.5"),
    "a first integer outside": ("epochs: {integer: [1, 3], first: 4}", "epochs: first has 4, outside 1 to 3"),
    "a first not chosen": ("epochs: {choice: [1, 2], first: 3}", "epochs: first is 3, which is not among its choices"),
    "a first of one": ("epochs: {fixed: 1, first: 1}", "a fixed value has no first"),
    "a grid outside": ("dropout: {uniform: [0, 0.5], grid: [0.6]}", "dropout: grid has 0.6, outside 0 to 0.5"),
    "a grid of nothing": ("dropout: {uniform: [0, 0.5], grid: []}", "dropout: grid is []; write a list of values"),
    "a grid twice": ("dropout: {uniform: [0, 0.5], grid: [0.1, 0.1]}", "dropout: grid names a value twice"),
    "a grid of choices": ("epochs: {choice: [1, 2], grid: [1]}", "choice is a grid already"),
    "a source that is a number": ("epochs: {fixed: 1, source: 2018}", "epochs: source is 2018; write a sentence"),
    "a condition on a stranger": ("epochs: {fixed: 2, when: {batchsize: 16}}", "epochs: when: Unknown parameter 'batc"),
    "a condition out of range": (
        "epochs: {fixed: 2, when: {batch_size: 0}}",
        "epochs: when: batch_size is 0; it takes",
    ),
    "a condition without a value": (
        "epochs: {fixed: 2, when: {batch_size: []}}",
        "epochs: when: batch_size has no val",
    ),
    "a condition that is a word": ("epochs: {fixed: 2, when: always}", "epochs: when is 'always'; write {other"),
    "a condition on a continuum": (
        "dropout: {uniform: [0, 0.5]}\n  epochs: {fixed: 2, when: {dropout: 0.1}}",
        "epochs: when names dropout, a continuous range; make it a choice",
    ),
    "conditions in a circle": (
        "epochs: {choice: [1, 2], when: {batch_size: 16}}\n  batch_size: {choice: [8, 16], when: {epochs: 2}}",
        "the conditions of epochs, batch_size are cyclic",
    ),
    "a condition on itself": ("epochs: {choice: [1, 2], when: {epochs: 2}}", "the conditions of epochs are cyclic"),
    "a condition that never holds": (
        "batch_size: 32\n  epochs: {fixed: 2, when: {batch_size: 16}}",
        "epochs has no effect: it acts only where batch_size is 16, which this space never tries",
    ),
    "a trick's parameter without the trick": (
        "gradual_unfreezing.epochs_per_group: 1.0",
        "gradual_unfreezing.epochs_per_group has no effect: it acts only where gradual_unfreezing is true",
    ),
    "a key twice": ("epochs: 2\n  epochs: 3", "my_space.yaml:3: not valid YAML: 'epochs' is given twice"),
    "a tab": ("epochs: 2\n\tdropout: 0.1", "my_space.yaml:3: not valid YAML"),
    "an open bracket": ("epochs: {choice: [1, 2}", "my_space.yaml:2: not valid YAML"),
    "a number as a key": ("3: 2", "my_space.yaml:2: not valid YAML: a key must be a string"),
    "a list as a key": ("? [a]\n  : 2", "my_space.yaml:2: not valid YAML: a key must be a string"),
    "an object of Python": (
        "epochs: !!python/object:os.system {}",
        "my_space.yaml:2: not valid YAML: could not determ",
    ),
}


def message(path, allowed, **more) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the text is what is tested, by the caller)
        load(path, allowed, **more)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    return text


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_parameter_is_refused(mistake, space_file, allowed):
    line, expected = MISTAKES[mistake]
    assert expected in message(space_file(f"parameters:\n  {line}\n"), allowed)


FILES = {
    "an empty file": ("", "holds no search space; write `parameters:`"),
    "a list": ("- 1", "holds no search space; write `parameters:`"),
    "no parameters": ("task: sst2", "holds no search space; add `parameters:`"),
    "parameters that are a word": ("parameters: none", "parameters is 'none'; write one `name: range` per line"),
    "a typo at the top": (
        "parametres: {epochs: 3}",
        "Unknown key of a space file 'parametres'. Did you mean parameters",
    ),
    "provenance that is a word": ("parameters: {epochs: 3}\nprovenance: mine", "provenance is 'mine'; write a mapping"),
    "a mode that is a number": ("parameters: {epochs: 3}\nmode: 3", "mode is 3; write a name"),
    "an unknown mode": (
        "modes: {fine_tunning: {parameters: {}}}",
        "Unknown mode 'fine_tunning'. Did you mean fine_tuning",
    ),
    "modes that are a list": ("modes: [fine_tuning]", "modes is ['fine_tuning']; write {MODE: {parameters: …}}"),
    "a mode that is a word": ("modes: {fine_tuning: fast}", "modes: fine_tuning is 'fast'; write {parameters: …}"),
    "a typo in a mode": ("modes: {fine_tuning: {params: {}}}", "Unknown key of a space file 'params'"),
    "a typo in another mode's section": (
        "modes: {fine_tuning: {parameters: {epochs: 3}}, feature_extraction: {parameters: {epoch: 3}}}",
        "Unknown key of a space 'epoch'. Did you mean epochs",
    ),
    "no section for the mode": (
        "modes: {feature_extraction: {parameters: {epochs: 3}}}",
        "holds no search space for mode fine_tuning; add `modes: {fine_tuning: {parameters: …}}`",
    ),
    "another mode's setting": (
        "mode: feature_extraction\nparameters: {epochs: 3}",
        "is a space for mode feature_extraction, not for fine_tuning",
    ),
    "Latin-1": (b"parameters: {epochs: 3} # caf\xe9", "not UTF-8 (byte 29)"),
    "a control character": ("parameters: {epochs: \x07}", "not valid YAML"),
    "early stopping as a switch": (
        "parameters: {epochs: 3}\nearly_stopping: true",
        "early_stopping is True; write {grace",
    ),
    "early stopping's typo": (
        "parameters: {epochs: 3}\nearly_stopping: {grace_epoch: 1}",
        "early_stopping: Unknown key 'grace_epoch'. Did you mean grace_epochs",
    ),
    "early stopping by two kinds of rungs": (
        "parameters: {epochs: 3}\nearly_stopping: {grace_epochs: 1, grace_fraction: 0.5}",
        "early_stopping has both grace_epochs and grace_fraction",
    ),
    "early stopping at the end": (
        "parameters: {epochs: 3}\nearly_stopping: {grace_fraction: 1.0}",
        "early_stopping.grace_fraction is 1.0; it takes a number from 0.01 to 0.99",
    ),
    "early stopping after nothing": (
        "parameters: {epochs: 3}\nearly_stopping: {grace_epochs: 0}",
        "early_stopping.grace_epochs is 0; it takes a whole number from 1",
    ),
    "early stopping of nobody": (
        "parameters: {epochs: 3}\nearly_stopping: {reduction_factor: 1}",
        "early_stopping.reduction_factor is 1; it takes a whole number from 2",
    ),
}


@pytest.mark.parametrize("mistake", FILES)
def test_a_wrong_file_is_refused(mistake, space_file, allowed):
    text, expected = FILES[mistake]
    assert expected in message(space_file(text), allowed, mode="fine_tuning")


def test_an_impossible_key_is_refused_with_its_reason(space_file, allowed):
    strangers = {name: Parameter(name, 1, "") for name in
                 ("bilstm.layers", "stack_and_finetune.stack_epochs", "discriminative_rates.factor")}  # fmt: skip
    every = {**allowed, **strangers}

    def refused(line):
        return message(space_file(f"parameters: {{{line}}}"), allowed, every=every)

    assert "bilstm.layers is not possible here: it belongs to head bilstm" in refused("bilstm.layers: 1")
    assert "it belongs to mode stack_and_finetune" in refused("stack_and_finetune.stack_epochs: 1")
    assert "needs an encoder that trains; put it under `modes:` for fine_tuning or lora" in refused(
        "discriminative_rates.factor: 1"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("epochs: {choice: [2, 3]}", "epochs is searched"),
        ("epochs: {integer: [2, 3]}", "epochs is searched"),
        ("schedule: {choice: [constant, slanted_triangular]}", "schedule may be slanted_triangular"),
        ("schedule: slanted_triangular", "schedule may be slanted_triangular"),
        ("gradual_unfreezing: {choice: [false, true]}", "gradual_unfreezing may be on"),
        ("epochs: 3", "the first phase of stack_and_finetune"),
    ],
)
def test_early_stopping_is_refused_where_trials_cannot_be_compared_half_way(line, reason, space_file, allowed):
    text = f"parameters:\n  {line}\nearly_stopping: {{grace_epochs: 1}}\n"
    if "stack" in reason:
        allowed = {
            **allowed,
            "stack_and_finetune.stack_epochs": Parameter("stack_and_finetune.stack_epochs", 2, "", 1, 9),
        }
    assert f"early_stopping is not possible here: {reason}" in message(space_file(text), allowed)


@pytest.mark.parametrize("line", ["epochs: {choice: [2, 3]}", "schedule: {choice: [constant, slanted_triangular]}"])
def test_trials_can_be_compared_at_a_share_of_their_own_schedules(line, space_file, allowed):
    text = f"parameters:\n  {line}\nearly_stopping: {{grace_fraction: 0.25, reduction_factor: 4}}\n"
    rule = load(str(space_file(text)), allowed).early_stopping
    assert rule is not None
    assert rule.grace_fraction == 0.25


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learning_rate", "--set learning_rate: write KEY=VALUE"),
        ("learning_rate=", "--set learning_rate=: write KEY=VALUE"),
        ("=3", "--set =3: write KEY=VALUE"),
        ("learning_rat=3", "--set learning_rat=3: Unknown key of a space 'learning_rat'. Did you mean learning_rate?"),
        ("dropout=2", "--set dropout=2: dropout is 2"),
        ("dropout={uniform: [0, 0.5", "--set dropout={uniform: [0, 0.5:1: not valid YAML"),
        (
            "slanted_triangular.ratio=16",
            "slanted_triangular.ratio has no effect: it acts only where schedule is slanted",
        ),
        ("epochs=2 and epochs=4", "epochs is set twice"),
        ("epochs={integer: [2, 9]}", "early_stopping is not possible here: epochs is searched"),
    ],
)
def test_a_wrong_override_is_refused(override, expected, make):
    space = make({"dropout": 0.1, "schedule": "constant", "epochs": 3}, early_stopping={})
    with pytest.raises(ValueError, match=re.escape(expected)):
        space.with_overrides(override.split(" and "))
