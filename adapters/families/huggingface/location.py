"""The folder of a Hugging Face encoder: a local one, or a downloaded one in the hub's cache."""

from __future__ import annotations

from pathlib import Path

from meltpoint.adapters.families.huggingface.files import check_folder
from meltpoint.adapters.families.huggingface.hub import snapshot
from meltpoint.adapters.families.reference import EncoderReference


def locate(reference: EncoderReference) -> tuple[Path, str]:
    """The folder with an encoder's files, downloaded first if necessary, and its revision.

    Returns:
        (folder, revision): the revision is the folder's path, or `ID@COMMIT` for a hub encoder.

    Raises:
        ValueError: the files are not available; one line with the remedy.
    """
    if reference.is_folder:
        folder = check_folder(Path(reference.source))
        return folder, str(folder)
    folder = check_folder(snapshot(reference))
    return folder, f"{reference.source}@{folder.name}"
