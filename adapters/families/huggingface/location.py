"""The folder of a Hugging Face encoder: a local one, or a downloaded one in the hub's cache."""

from __future__ import annotations

from pathlib import Path

from meltpoint.adapters.families.huggingface.files import check_folder
from meltpoint.adapters.families.reference import EncoderReference


def locate(reference: EncoderReference) -> tuple[Path, str]:
    """The folder that holds an encoder's files, downloaded first where need be, and its revision in words.

    Returns:
        (folder, the folder's name again or `ID@COMMIT`).

    Raises:
        ValueError: the files cannot be had; one line with the remedy.
    """
    if reference.is_folder:
        folder = check_folder(Path(reference.source))
        return folder, str(folder)
    from meltpoint.adapters.families.huggingface import hub  # huggingface_hub is slow to import

    folder = check_folder(hub.snapshot(reference))
    return folder, f"{reference.source}@{folder.name}"
