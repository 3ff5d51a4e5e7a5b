"""labels: names that tell runs apart at a glance, and colours by mode."""

from __future__ import annotations

import colorsys
from types import SimpleNamespace

import pytest

from meltpoint.sweeps.search.cell_progress import Proposal, trial_label
from meltpoint.sweeps.tracking.labels import cell_labels, colour, short_encoder


def cell(encoder: str = "minilm", mode: str = "fine_tuning", variant: str = "") -> SimpleNamespace:
    return SimpleNamespace(
        encoder=encoder, mode=mode, task_name="sst2", variant=variant, name=f"{encoder}.{mode}.{variant}"
    )


def test_a_cell_is_named_by_symbol_and_task_and_by_the_encoder_where_there_are_several() -> None:
    assert list(cell_labels([cell(), cell(mode="feature_extraction")]).values()) == ["🔥 sst2", "❄ sst2"]
    both = cell_labels([cell(), cell("hf:FacebookAI/roberta-large", variant="short")])
    assert list(both.values()) == ["🔥 sst2 · minilm", "🔥 sst2 · short · roberta-large"]


@pytest.mark.parametrize(
    ("role", "number", "seed", "label"),
    [("search", 6, 0, "trial 7"), ("final", 1, 2, "final, seed 2"), ("default", 0, 0, "default, seed 0")],
)
def test_trials_count_from_one_and_finals_by_seed(role, number, seed, label) -> None:
    assert trial_label(Proposal("a" * 16, number, role, cell(), {}, seed)) == label


@pytest.mark.parametrize("encoder", ["minilm", "hf:org/minilm", "hf:/models/minilm/", "elmo:minilm"])
def test_an_encoders_short_name_has_no_folder(encoder: str) -> None:
    assert short_encoder(encoder) == "minilm"


def parts(text: str) -> tuple[float, float, float]:
    return colorsys.rgb_to_hls(*(int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)))


def test_a_mode_has_one_hue_and_its_trials_differ_in_lightness() -> None:
    trials = [colour("fine_tuning", number) for number in range(16)]
    assert len(set(trials)) == 16
    assert all(len(one) == 7 and one[0] == "#" for one in trials)
    hues = [parts(one)[0] for one in [*trials, colour("fine_tuning")]]
    assert max(hues) - min(hues) < 0.02
    assert abs(hues[0] - parts(colour("feature_extraction"))[0]) > 0.2
    assert parts(colour("a mode of one's own"))[0] == pytest.approx(0.36, abs=0.01)
