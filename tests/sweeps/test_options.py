"""options: what the command line's words become before a sweep keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.sweeps.command_line.options import encoder_words


def test_folders_of_every_family_become_absolute_and_keep_their_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "st").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    folder = (tmp_path / "models" / "st").resolve()
    found = encoder_words(["minilm,hf:models/st", "skipthoughts:models/st#uni+eos", "skipthoughts:./models/st"])
    assert found == ("minilm", f"hf:{folder}", f"skipthoughts:{folder}#uni+eos", f"skipthoughts:{folder}")


def test_words_that_name_no_folder_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("hf:some/model@main", "skipthoughts:", "hf:", "skipthoughts:#uni", "skipthoughts:nowhere#uni", "bert-base")
    assert encoder_words(words) == words
