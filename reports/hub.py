"""A finalist on the Hugging Face hub: its folder with card, results and setting, and the push of that folder.

The results have two forms: `model-index` in the card, and the hub's newer `.eval_results/*.yaml`, with the fields of
https://github.com/huggingface/hub-docs/blob/main/eval_results.yaml.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from meltpoint.reports.exports import cell_card
from meltpoint.reports.results import results_of
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.export import Form, best_space, export_finalist
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name, word_of
from meltpoint.sweeps.storage.files import StoragePath, storing_folder, write
from meltpoint.tasks import get
from meltpoint.tasks.core.files import schema_line

if TYPE_CHECKING:
    from huggingface_hub import EvalResultEntry

SETTING = "setting.yaml"
PREFERRED: tuple[Form, ...] = ("transformers", "model")
"""The forms that are tried if none is named; the hub's own widgets and `pipeline` read the first."""
FOLDER_OF_PATH = re.compile(r"^([^/\\:=]+=)?(\w{2,}:)?(\w:)?[/\\].*[/\\]")
"""The part before the last name of an absolute path, which may follow `NAME=` and `hf:`."""


def push(
    ledger: Ledger, summary: SweepSummary, repo: str, tell: Callable[[object], None], *, cell: str | None = None,
    forms: Sequence[Form] = (), private: bool = False, dry_run: StoragePath | None = None,
) -> None:  # fmt: skip
    """Write one finalist's folder and upload it in one commit.

    Args:
        repo: USER/NAME on the hub.
        tell: called with the repository's URL; in a dry run with each file.
        cell: its name (E.M.T); None for the recommended one.
        forms: at most one; none for the first of `PREFERRED` that the finalist can have.
        private: create the repository as a private one.
        dry_run: the folder to write `USER/NAME` into; nothing is then uploaded.

    Raises:
        ValueError: bad input, no token, or the hub refuses the token.
        OSError: the hub cannot be reached, or refuses the upload.
    """
    from huggingface_hub import get_token  # slow to import
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented there

    if repo.count("/") != 1:
        raise ValueError(f"--push {repo}: write USER/NAME, with your name or your organisation's on the hub.")
    validate_repo_id(repo)
    if len(forms) > 1:
        raise ValueError(f"--push uploads one model; take one of --{', --'.join(forms)}.")
    token = get_token() if dry_run is None else ""
    if token is None:
        raise ValueError("--push needs a token: run `hf auth login`, or set HF_TOKEN; --dry-run needs none.")
    chosen = _recommended(summary) if cell is None else summary.named(cell)
    with tempfile.TemporaryDirectory(prefix="meltpoint-") as scratch:
        folder = _folder(ledger, summary, chosen, repo, forms or PREFERRED, Path(scratch))
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        if dry_run is None:
            title = f"{chosen.header.task} by {chosen.header.mode}, from the sweep {summary.name}"
            tell(_upload(folder, names, repo, private, token, title))
            return
        with storing_folder(dry_run / repo) as local:
            shutil.copytree(folder, local, dirs_exist_ok=True)
        for name in names:
            tell(dry_run / repo / name)


def _recommended(summary: SweepSummary) -> CellSummary:
    """The cell that `predict NAME` uses.

    Raises:
        ValueError: the sweep has several tasks, or no finals yet.
    """
    found = [one.winner.cell for one in results_of(summary).recommendations]
    if not found:
        raise ValueError(f"Sweep '{summary.name}' has no recommendation yet; see `meltpoint status {summary.name}`.")
    if len({cell.header.task for cell in summary.cells}) > 1:
        names = ", ".join(cell.name for cell in found)
        raise ValueError(f"Sweep '{summary.name}' has several tasks; choose a model with --cell, such as {names}.")
    return found[0]


def _folder(
    ledger: Ledger, summary: SweepSummary, cell: CellSummary, repo: str, forms: Sequence[Form], place: Path
) -> Path:  # fmt: skip
    """Write all that belongs into the repository."""
    for form in forms:
        try:
            card = cell_card(summary, cell, form)
            folder = Path(str(export_finalist(ledger, summary, cell.name, place, form, card, name="model")))
            break
        except ValueError:
            if form == forms[-1]:
                raise
    assert cell.best is not None, "a cell with a finalist has a best setting"
    setting = _published(best_space(summary, cell, cell.best))
    write(folder / SETTING, f"{schema_line('space')}\n{setting.dump()}")
    if (entry := eval_result(summary, cell, repo)) is not None:
        from huggingface_hub import eval_result_entries_to_yaml

        text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True)
        write(folder / ".eval_results" / f"{cell_name(cell.header.task)}.yaml", text)
    return folder


def _published(space: Space) -> Space:
    """A setting without the names of this machine and of its folders."""
    facts: dict[str, Any] = dict(space.provenance)
    facts["data"] = {**_without_folders(facts["data"]), "data_dir": None}
    facts["hardware"] = facts["hardware"] and {**facts["hardware"], "host": ""}
    return replace(space, cell=_without_folders(space.cell), provenance=facts)


def _without_folders(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words, of which a path is only its last name."""
    return {
        key: FOLDER_OF_PATH.sub(r"\1\2", value) if isinstance(value, str) else value for key, value in words.items()
    }


def eval_result(summary: SweepSummary, cell: CellSummary, repo: str) -> EvalResultEntry | None:
    """The test score of a cell's model in the hub's form; None unless it is of a whole test split on the hub."""
    from huggingface_hub import EvalResultEntry, constants

    final, task = cell.kept, get(word_of(summary.spec, cell.header.task))
    score = None if final is None else (final.test or {}).get(final.metric)
    is_part = bool(summary.spec.test_from or task.test_from or ":" in task.name)  # carved, or some genres
    if final is None or score is None or is_part or task.hub is None or Path(task.hub.id).is_absolute():
        return None
    source = task.hub.elsewhere.get("test", task.hub)
    return EvalResultEntry(
        dataset_id=source.id, task_id=source.config or "default", value=score,
        dataset_revision=source.revision if re.fullmatch("[0-9a-f]{40}", source.revision) else None,
        date=datetime.fromtimestamp(final.started_at, UTC).date().isoformat(),
        source_url=f"{constants.ENDPOINT}/{repo}", source_name="Model card",
        notes="; ".join([f"{final.metric} on test, seed {final.seed}", *cell.header.notes]),
    )  # fmt: skip


def _upload(folder: Path, names: Sequence[str], repo: str, private: bool, token: str, title: str) -> str:
    """Create the repository if it does not exist, and commit the folder's files; return its URL."""
    from huggingface_hub import CommitOperationAdd, HfApi, errors
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # likewise

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(token=token)
    try:
        url = api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise ValueError(f"{repo} exists and is public; make it private in its settings, or leave out --private.")
        # Not upload_folder, which may split a folder into several commits.
        added = [CommitOperationAdd(name, folder / name) for name in names]
        api.create_commit(repo, added, commit_message=title)
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            remedy = f"make a token that may write to it at {api.endpoint}/settings/tokens, then run `hf auth login`"
            raise ValueError(f"{api.endpoint} refuses your token for {repo}; {remedy}, or set HF_TOKEN.") from error
        raise OSError(f"{api.endpoint} refuses {repo}: {' '.join(str(error).split())}") from error
    except (errors.HTTPError, OSError, RuntimeError) as error:  # type: ignore[attr-defined]  # the client's httpx
        reason = f"{api.endpoint} cannot be reached ({' '.join(str(error).split())})"
        raise OSError(f"{reason}; check the network and push again") from error
    return str(url)
