"""The commands that search: `sweep`, `tune`, `plan` and `demo`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meltpoint.sweeps.command_line.typer_options import AsJson, Group, Name, Verbose, with_sweep_options
from meltpoint.sweeps.machine.terminal import DONE, Screen, again, exit_on_error, print_json, tell
from meltpoint.sweeps.specification.sweep_options import TIMES, SweepOptions, in_units
from meltpoint.tasks.core.wording import some

TUNED_SEEDS = 3
"""Defaults of `tune`, for an answer within minutes on small data; `sweep` takes more of both."""

NOTED = ("columns", "encoding", "file", "splits")
"""The keys of a drafted task whose remarks `tune` prints; the lines Read and Splits say the others."""

DEMO_TASK = "demo_similarity"
DEMO_PAIR = ("the chef dropped a cup in the cellar .", "in the basement , the cook let fall a mug .")
"""The same four facts in other words; the pair is in no split of the task."""

if TYPE_CHECKING:
    from meltpoint.reports.results import SweepResults
    from meltpoint.sweeps.driver.run import Outcome
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.ledger.records import CellKey
    from meltpoint.sweeps.on_ray.cluster import Cluster
    from meltpoint.sweeps.results.summary import SweepSummary
    from meltpoint.sweeps.specification.sweep_options import Resources
    from meltpoint.sweeps.specification.sweep_spec import SweepSpec
    from meltpoint.sweeps.storage.files import StoragePath
    from meltpoint.tasks.core.task import Split


@exit_on_error(goes_on=True)
@with_sweep_options()
def sweep(options: SweepOptions) -> None:
    """Search every cell, re-run its best setting over seeds, score it once on test, export it.

    The cells are encoders × modes × tasks. After Ctrl-C or a reboot, the same command resumes the sweep. With more
    trials, seeds, encoders, modes or tasks under the same name, add --grow.

    Example: meltpoint sweep --name first --encoder minilm --mode feature_extraction,fine_tuning --task sst2,mrpc

    A paper's whole experiment: meltpoint sweep --spec to_tune_or_not --with elmo=FOLDER --data-dir DATA
    """
    from meltpoint.sweeps.command_line.spec_from_options import asked_spec

    outcome, _ = _run(asked_spec(options), options)
    _end_with(outcome)


@exit_on_error(goes_on=True)
@with_sweep_options(
    without=("task", "spec", "replacing", "default_finals", "data_dir", "test_from", "new_test_round"),
    texts={
        "trials": "Settings to try in each cell; auto (default): until more are unlikely to help.",
        "race": "Give no further trials to modes unlikely to come within --margin of the best. Default: --race.",
        "seeds": f"Seeds for each cell's best setting. Default: {TUNED_SEEDS}.",
        "mode": "Modes in `list modes`; ladder for all. Default: ❄, 🔥, ❄🔥; with --time-budget: ❄, 🔥 and what fits.",
        "name": "The sweep's name. Default: from the name of your file.",
        "time_budget": "The longest time for everything, finals included: 90s, 30m, 2h.",
    },
)
def tune(
    options: SweepOptions,
    train: Annotated[Path, typer.Argument(help="Your examples: csv, tsv, jsonl, parquet, conll.", show_default=False)],
    test: Annotated[
        Path | None, typer.Argument(help="Test examples. Default: a part of TRAIN.", show_default=False)
    ] = None,
    dev: Annotated[Path | None, typer.Option(help="Dev examples. Default: a part of TRAIN.")] = None,
    text: Annotated[list[str] | None, typer.Option(help="The text column, twice for pairs. Default: detected.")] = None,
    label: Annotated[str, typer.Option(help="The label column. Default: detected.", show_default=False)] = "",
    kind: Annotated[
        str, typer.Option(help="Task kind, such as pair_classification. Default: detected.", show_default=False)
    ] = "",
    group: Group = "",
) -> None:
    """Decide whether to freeze or fine-tune for your file of examples, and keep the best model.

    It drafts the task, searches each mode, tests once, recommends a mode, and keeps its model for `predict NAME`.
    After Ctrl-C, the same command resumes it. `--time-budget 10m` limits the whole run and decides which modes join ❄
    and 🔥; a trial that would exceed it is stopped.

    Example: meltpoint tune questions.csv --time-budget 10m
    """
    began = time.monotonic()
    from meltpoint.reports.formats import symbol
    from meltpoint.sweeps.command_line.spec_from_options import checked_spec, default_encoder
    from meltpoint.sweeps.ledger.ledger import DATA, TASK, Ledger
    from meltpoint.sweeps.specification.sweep_spec import check_name
    from meltpoint.sweeps.storage.files import is_object_store, storage_path
    from meltpoint.tasks.core import kinds
    from meltpoint.tasks.inspection.new_task import as_read, copy_name, keep, split_sizes, tuned_draft
    from meltpoint.tasks.inspection.roles import Asked

    if is_object_store(options.storage):
        raise ValueError(f"--storage {options.storage}: tune keeps its task in a folder; use new-task and sweep there.")
    if kind:
        kinds.get(kind)
    encoder = options.encoder or [default_encoder()]
    files: dict[Split, Path] = {"train": train}
    files |= {split: path for split, path in (("dev", dev), ("test", test)) if path is not None}  # type: ignore[misc]
    draft = tuned_draft(files, options.name or "", Asked(tuple(text or ()), label, kind, group))
    name = options.name or str(draft.keys["name"])
    check_name(name)
    folder = storage_path(options.storage) / name
    assert isinstance(folder, Path)
    words = [str(path) for path in (train, *([test] if test else []))]
    words += [f"--dev={dev}"] if dev else []
    words += [f"--text={column}" for column in text or ()] + ([f"--label={label}"] if label else [])
    words += [f"--{option}={value}" for option, value in (("kind", kind), ("group", group)) if value]
    copies = {split: folder / copy_name(split, path, DATA) for split, path in files.items()}
    read, sizes = as_read(draft), split_sizes(draft)
    task = keep(draft, files, folder, TASK, DATA, words, begun=Ledger(folder).has_begun("test" in files))
    asked = replace(
        options, name=name, task=[str(task)], encoder=encoder, default_finals=False,
        trials="auto" if options.trials is None else options.trials, race=options.race is not False,
        seeds=TUNED_SEEDS if options.seeds is None else options.seeds,
    )  # fmt: skip
    with _naming_own_files(copies, files):
        if asked.mode is None:
            asked = replace(asked, mode=_modes_within_budget(asked, Ledger(folder)))
        spec = checked_spec(asked)
    resources = replace(asked, budget_began=began)
    budget = f"at most {in_units(options.time_budget, TIMES)}" if options.time_budget else "no --time-budget"
    trials = f"up to {some(spec.trials, 'trial')}" if spec.race or spec.auto_trials else some(spec.trials, "trial")
    tell(f"Read    {train}: {read}", err=True)
    tell(f"Splits  {sizes}", err=True)
    for remark in (text for key in NOTED for text in draft.remarks.get(key, ())):
        tell(f"Note    {remark}", err=True)
    tell(
        f"Search  {', '.join(spec.encoders)} × {' '.join(map(symbol, spec.modes))}; {trials} and "
        f"{some(spec.seeds, 'seed')} each; {budget}. The task: {task}",
        err=True,
    )
    if options.mode is None and options.time_budget:
        tell("Note    The modes were chosen to fit the time budget; --mode names others.", err=True)
    with _naming_own_files(copies, files):
        outcome, results = _run(spec, resources)
    if results.recommendations or outcome.state == "done":
        _keep_model(results, folder)
    _end_with(outcome)  # other cells may have failed


def _modes_within_budget(asked: SweepOptions, ledger: Ledger) -> list[str] | None:
    """The modes of `tune` where none is named; None for the usual ones.

    With a time budget, these are all that it allows, the cheapest first, by the plan's estimate; ❄ and 🔥 always take
    part, since they are the question. A sweep that has begun keeps its modes.
    """
    from meltpoint.adapters import modes
    from meltpoint.sweeps.command_line.spec_from_options import checked_spec
    from meltpoint.sweeps.results.sweep_file import read_sweep

    if ledger.specification.exists():
        return list(dict.fromkeys(mode for block in read_sweep(ledger).spec.products() for mode in block.modes))
    if asked.time_budget is None:
        return None
    from meltpoint.sweeps.driver.plan import plan_sweep, wall_seconds  # torch, which takes seconds

    rungs, taken, work = modes.expanded([modes.LADDER]), {"feature_extraction", "fine_tuning"}, 0.0
    planned = {}
    for name in rungs:
        with suppress(ValueError):  # not with this encoder, head or space
            planned[name] = plan_sweep(checked_spec(replace(asked, mode=[name])), asked)
    for name, one in sorted(planned.items(), key=lambda item: item[1].estimated_seconds):
        work += sum(cell.estimated_seconds for cell in one.cells)
        if wall_seconds([work], one.workers) <= asked.time_budget:
            taken.add(name)
    return [name for name in rungs if name in taken]


@contextmanager
def _naming_own_files(copies: Mapping[Split, Path], files: Mapping[Split, Path]) -> Iterator[None]:
    """Errors about rows name your file, not its copy in the sweep's folder."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        for split, path in files.items():
            for copy in (copies[split], copies[split].resolve()):
                message = message.replace(str(copy), str(path))
        raise ValueError(message) from None


def _end_with(outcome: Outcome) -> None:
    if outcome.exit_status != DONE:
        raise typer.Exit(outcome.exit_status)


def _keep_model(results: SweepResults, folder: StoragePath) -> StoragePath:
    """Write the recommended model of the sweep's first task into the sweep's folder, and say how to use it."""
    from meltpoint.reports.exports import export_recommended
    from meltpoint.sweeps.ledger.ledger import Ledger

    if not results.recommendations:
        raise ValueError(f"No mode has a result; `meltpoint status {results.summary.name}` says why.")
    kept = export_recommended(Ledger(folder), results.recommendations[0], results.summary)
    storage = [] if str(folder.parent) in ("runs", str(Path("runs").absolute())) else ["--storage", str(folder.parent)]
    tell(f"Model {kept}", err=True)
    tell(f"      {shlex.join(['meltpoint', 'predict', results.summary.name, 'new.csv', *storage])}", err=True)
    return kept


def _run(spec: SweepSpec, resources: Resources) -> tuple[Outcome, SweepResults]:
    """Run a sweep and show its table; exit with its status if it was stopped."""
    from meltpoint.sweeps.machine.signals import StopRequest, end_now, stoppable
    from meltpoint.sweeps.results.removal import trim

    rendered: list[SweepResults] = []

    def render(summary: SweepSummary) -> dict[str, str]:
        rendered.append(results_of(summary))
        return kept_files(rendered[-1])

    def note(summary: SweepSummary) -> str:
        return "\n\n".join(f"**{one.sentence}**" for one in rendered[-1].recommendations)

    def recommended(summary: SweepSummary) -> list[CellKey]:
        return [one.winner.cell.header.key for one in rendered[-1].recommendations]

    def leave(outcome: Outcome) -> None:
        _show(outcome, resources, rendered)
        end_now(outcome.exit_status)

    with stoppable(), _cluster(spec, resources) as cluster:  # Ray starts while Python imports the rest
        from meltpoint.reports.report import kept_files
        from meltpoint.reports.results import results_of
        from meltpoint.sweeps.driver.run import Writers
        from meltpoint.sweeps.driver.run import sweep as run_sweep

        writers = Writers(render, note, recommended)
        try:
            outcome = run_sweep(spec, resources, Screen(stderr=True), writers, cluster, leave)
        except (Exception, StopRequest) as error:
            _notify(resources, {"sweep": spec.name, "state": "failed", "text": f"{spec.name} failed: {error}"})
            raise
    if outcome.state == "done":  # the workers that had the cache open have exited
        trim(resources)
    _show(outcome, resources, rendered)
    if outcome.state == "stopped":
        _end_with(outcome)
    return outcome, rendered[-1]


def _cluster(spec: SweepSpec, resources: Resources) -> Cluster:
    """A sweep's cluster; it starts at once for a new sweep, which is sure to have trials to run.

    Raises:
        ValueError: an unknown name, a missing file or a storage that is not writable; found before torch is imported.
    """
    from meltpoint.sweeps.command_line.spec_from_options import check_spec
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.on_ray.cluster import Cluster
    from meltpoint.sweeps.specification.tracking_uri import default_uri
    from meltpoint.sweeps.storage.files import storage_folder
    from meltpoint.sweeps.tracking import loggers

    check_spec(spec)
    loggers.check(resources.loggers)
    storage, cluster = storage_folder(resources.storage), Cluster(resources.address)
    if resources.tracking_uri is None:
        default_uri(storage)  # refuses an object store
    is_new = not Ledger(storage / spec.name).specification.exists()
    cells = some(sum(len(block.keys()) for block in spec.products()), "cell")
    tell(f"{spec.name}: opening {cells}; torch, Ray and MLflow take some seconds to start.", err=True)
    if is_new:
        cluster.begin()
    return cluster


def _show(outcome: Outcome, resources: Resources, rendered: Sequence[SweepResults]) -> None:
    """Show an outcome, reusing its rendered results, which take seconds to compute."""
    from meltpoint.reports.screen import show_outcome

    results = next((one for one in rendered if one.summary is outcome.summary), None)
    with suppress(BrokenPipeError):  # nobody reads the table; the message and the model are still made
        show_outcome(outcome, resources, again(), Screen(), results)
    advice = [one.sentence for one in results.recommendations] if results else []
    name, state = outcome.summary.name, outcome.state
    _notify(resources, {
        "sweep": name, "state": state, "text": "\n".join([f"{name}: {state}.", *advice, *outcome.troubles]),
        "recommendations": advice, "troubles": outcome.troubles, "folder": str(outcome.folder),
    })  # fmt: skip


def _notify(resources: Resources, message: Mapping[str, object]) -> None:
    """Send how the command ended to the address of `--notify`."""
    from meltpoint.sweeps.machine.services import notify

    if resources.notify is not None and (trouble := notify(resources.notify, message)):
        tell(trouble, err=True)


@exit_on_error()
@with_sweep_options()
def plan(options: SweepOptions, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Show what `sweep` with the same options would do and cost; trains nothing."""
    from meltpoint.sweeps.command_line.spec_from_options import checked_spec

    spec = checked_spec(options)
    from meltpoint.sweeps.driver.plan import plan_sweep  # torch, which takes seconds

    planned = plan_sweep(spec, options)
    if as_json:
        print_json(planned.as_json())
        return
    from meltpoint.reports.screen import show_plan

    show_plan(planned, Screen(), verbose)


@exit_on_error(goes_on=True)
@with_sweep_options(only=("storage", "cpus_per_trial", "gpus_per_trial", "mix_code_versions"))
def demo(options: SweepOptions, name: Name = "demo") -> None:
    """Run a small offline sweep: freeze or fine-tune? It recommends a mode, keeps the model and predicts with it.

    Two modes of the embedded encoder on a generated task of sentence similarity; a minute or two.
    """
    from meltpoint.sweeps.storage.files import is_object_store, storage_path, sweep_folder

    if is_object_store(options.storage):
        raise ValueError(f"--storage {options.storage}: the demo keeps its model in a folder; name one.")
    spec = demo_spec(name)
    outcome, results = _run(spec, options)
    folder = _keep_model(results, sweep_folder(storage_path(options.storage), name))
    _end_with(outcome)
    from meltpoint.adapters.exported_model import load_folder

    (score,) = load_folder(str(folder)).predict([DEMO_PAIR])
    tell(f"Prediction  {score:.1f} of 5: how similar are “{DEMO_PAIR[0]}” and “{DEMO_PAIR[1]}”")
    tell("Next        meltpoint tune train.csv")


def demo_spec(name: str) -> SweepSpec:
    """`minilm`, frozen and fine-tuned, on one small task; two settings per cell, two seeds.

    The frozen cell has a `bilstm`, the quickest to train of the heads that read words; the papers' own head takes
    several times as long. Four epochs are 100 steps of fine-tuning, enough that no guard calls it undertrained.
    """
    from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec

    frozen = Block(
        name="feature_extraction", encoders=("minilm",), modes=("feature_extraction",), tasks=(DEMO_TASK,),
        head="bilstm", trials=2, seeds=2,
    )  # fmt: skip
    tuned = Block(
        name="fine_tuning", encoders=("minilm",), modes=("fine_tuning",), tasks=(DEMO_TASK,), head="linear", trials=2,
        seeds=2, overrides=("epochs=4", "batch_size=8"),
    )  # fmt: skip
    return SweepSpec(name=name, blocks=(frozen, tuned), max_train_examples=200)
