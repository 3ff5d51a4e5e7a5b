"""The folders of exported finalists, each with a model card in the hub's format, and their upload to the hub.

Results have two forms there: `model-index` in the card, and the newer `.eval_results/*.yaml`, with the fields of
https://github.com/huggingface/hub-docs/blob/main/eval_results.yaml.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from meltpoint.adapters import encoders, modes
from meltpoint.adapters.data.input_format import Prefix, Prompts
from meltpoint.reports.formats import markdown_text, title
from meltpoint.reports.notes import searched_again
from meltpoint.reports.recommendation import Recommendation
from meltpoint.reports.results import results_of
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.cost import spread_text
from meltpoint.sweeps.results.export import KEPT, Form, best_space, export_finalist
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name, word_of
from meltpoint.sweeps.storage.files import StoragePath, storing_folder, write
from meltpoint.tasks import get
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import schema_line
from meltpoint.tasks.core.metrics import CALIBRATION
from meltpoint.tasks.core.scoring import axis_name, score_text
from meltpoint.tasks.core.task import Kind
from meltpoint.tasks.core.wording import some

if TYPE_CHECKING:
    from huggingface_hub import EvalResultEntry

LIBRARY: dict[Form, str] = {"model": "meltpoint", "transformers": "transformers", "onnx": "onnx"}
"""Form → `library_name` of the front matter."""

UNKNOWN = "unknown"
"""The hub's identifier for an unknown licence."""
HUB_METRICS = {
    "matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr", "span_f1": "seqeval",
    "macro_f1": "f1", "micro_f1": "f1", "weighted_f1": "f1", "word_accuracy": "accuracy",
}  # fmt: skip
"""Metric → its name on the hub, if different."""
SPLIT_NAMES = {"dev": "validation", "test": "test"}


def usage(form: Form, kind: Kind, prefix: str = "") -> str:
    """A block of Python that loads the folder and predicts; `prefix` precedes each text."""
    return _template("model_use.md.jinja").render(form=form, kind=kinds.get(kind), prefix=prefix)


@dataclass(frozen=True)
class EncoderFacts:
    """The encoder of a model, as its card names it; never a path on this machine.

    Attributes:
        title: its id on the hub, its name, or the name of its folder.
        hub_id: its id on the hub; None if unknown.
        licence: as its own model card states it; None if it states none, or if its files are gone.
        prompts: the prefixes of its makers.
    """

    title: str
    hub_id: str | None = None
    licence: str | None = None
    prompts: Prompts = field(default_factory=Prompts)

    @classmethod
    def of(cls, word: str, kind: Kind) -> EncoderFacts:
        """The facts of an encoder, given as on the command line."""
        try:
            reference = encoders.resolve(word, kind)
            licence, prompts = encoders.stated_licence(reference), encoders.prompts(reference)
        except ValueError:
            family, _, source = word.rpartition("=")[2].partition(":")
            return cls(Path(source).name or family)
        return cls(reference.hub_id or Path(reference.source).name, reference.hub_id, licence, prompts)


def cell_card(summary: SweepSummary, cell: CellSummary, form: Form) -> str | None:
    """The card of a cell's exported finalist; None if the cell has no finalist to export."""
    final, head = cell.kept, cell.header
    if final is None:
        return None
    encoder = EncoderFacts.of(summary.spec.named_encoder(head.encoder), head.kind)
    kind, metric = kinds.get(head.kind), final.metric
    pipeline = "token-classification" if kind.labels_words else "text-classification"
    # Meltpoint's own folders add the prefix by themselves.
    adds_prefix = form != "model" and kind.input == "sentence"
    prefix = encoder.prompts.text(cast(Prefix, final.setting.get("prefix", "own"))) if adds_prefix else ""
    scores = {"dev": final.dev_metrics, "test": final.test or {}}
    recorded = {"dev": final.dev, "test": scores["test"].get(metric)}
    own = {split: score for split, score in recorded.items() if score is not None}
    errors = [epoch.dev.get(CALIBRATION) for epoch in final.epochs if epoch.epoch in (1, final.best_epoch)]
    errors = errors if len(errors) == 2 and None not in errors else []
    known = summary.baseline_of(cell)
    setting = yaml.safe_dump(dict(final.setting), sort_keys=False, allow_unicode=True).rstrip()
    return _template("model_card.md.jinja").render(
        front_matter=Markup(_front_matter(cell, form, encoder, pipeline, own)),
        usage=Markup(usage(form, head.kind, prefix)), setting=Markup(setting), name=cell.name,
        sweep=summary.name, cell=cell, head=head, final=final, form=form, kind=kind, encoder=encoder, metric=metric,
        axis=axis_name(metric), own=own, scores=scores, errors=errors,
        fits_head=head.mode in modes.names() and modes.get(head.mode).fits_head,
        calibration=CALIBRATION, baseline=known.best if known is not None and known.metric == metric else None,
        pieces=final.setting.get("max_pieces"), warnings=[guard.text for guard in cell_guards(cell, known)],
        precision=final.hardware.precision if final.hardware else "fp32", again=_again(cell), prefix=prefix,
    )  # fmt: skip


def _front_matter(
    cell: CellSummary, form: Form, encoder: EncoderFacts, pipeline: str, scores: Mapping[str, float]
) -> str:  # fmt: skip
    """The hub's metadata; the scores are those of the model in the folder."""
    from huggingface_hub import EvalResult, ModelCardData  # slow to import

    head = cell.header
    plain = head.metric.partition(".")[0]
    name = HUB_METRICS.get(plain, plain)
    results = [
        EvalResult(
            task_type=pipeline, dataset_type=head.task, dataset_name=head.task, dataset_split=SPLIT_NAMES[split],
            metric_type=name, metric_value=score, metric_name=head.metric,
        )
        for split, score in scores.items()
    ]  # fmt: skip
    data = ModelCardData(
        license=encoder.licence or UNKNOWN, base_model=encoder.hub_id, library_name=LIBRARY[form],
        pipeline_tag=pipeline, tags=["meltpoint", head.mode, head.head], metrics=[name],
        model_name=cell.name if results else None, eval_results=results or None,
    )  # fmt: skip
    return data.to_yaml()


@cache
def _template(name: str) -> Template:
    """A template; each of its values is written as text of Markdown, except for `Markup`."""
    made = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else markdown_text(str(value)),
    )  # fmt: skip
    made.filters |= {"score": score_text, "spread": spread_text, "some": some, "title": title}
    return made.from_string(files("meltpoint.reports").joinpath(name).read_text(encoding="utf-8"))


def export_recommended(ledger: Ledger, known: Recommendation, summary: SweepSummary) -> StoragePath:
    """Write the recommended finalist of a task into the sweep's folder: the only task's where `predict NAME` finds it.

    Raises:
        ValueError: its weights were deleted or are damaged.
    """
    cell = known.winner.cell
    card = cell_card(summary, cell, "model")
    if not summary.has_one_task:
        return export_finalist(ledger, summary, cell.name, ledger.folder / "exports", card=card)
    return export_finalist(ledger, summary, cell.name, ledger.folder, card=card, name=KEPT)


def export_finalists(
    ledger: Ledger, summary: SweepSummary, out: StoragePath, only: str | None, forms: Sequence[Form],
    tell: Callable[[StoragePath], None],
) -> None:  # fmt: skip
    """Write the best finalist of each cell, or of one cell, in the given forms.

    Args:
        only: one cell's name (E.M.T), or None for all.
        tell: called with each folder once it is written.

    Raises:
        ValueError: a finalist cannot be written; the others are still written.
    """
    refused = []
    for form, cell in product(forms, summary.cells if only is None else [summary.named(only)]):
        try:
            tell(export_finalist(ledger, summary, cell.name, out, form, cell_card(summary, cell, form)))
        except ValueError as error:
            refused.append(str(error))
    if refused:
        raise ValueError(" ".join(refused))


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


def _again(cell: CellSummary) -> list[str]:
    """The note on a cell whose test split had been opened before; [] for others."""
    return [searched_again(cell.test_round)] if cell.test_round > 1 else []


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
        notes="; ".join([f"{final.metric} on test, seed {final.seed}", *cell.header.notes, *_again(cell)]),
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
