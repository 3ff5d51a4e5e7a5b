"""The analyses, one module each: the tables and figures of Peters, Ruder & Smith 2019 (P1), and others.

A module's name is its name in `meltpoint analyse`. Each exports `run`, from the options to the written files; shared
code is in `core`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from meltpoint.reports.analyses.core.analysis import FORMATS, AnalysisOptions
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.storage.files import StoragePath, sweep_folder
from meltpoint.tasks.core import registry

NO_SWEEP = "-"
"""The placeholder for a sweep's name, for analyses that need no sweep."""


def names() -> list[str]:
    """The names of the analyses, as written on the command line."""
    return registry.names(sys.modules[__name__])


def analyse(
    name: str, chosen: Sequence[str], storage: StoragePath, *, encoders: Sequence[str] = (), tasks: Sequence[str] = (),
    corpus: Path | None = None, data_dir: str | None = None,
    max_train_examples: int | None = None, out: Path | None = None, formats: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> list[Path]:  # fmt: skip
    """Run analyses of a sweep, or of encoders and tasks without a sweep, one after the other.

    Args:
        name: the sweep's name, or `-` for none.
        chosen: names of analyses.
        storage: the folder of all sweeps, or an object store, which requires `out`.
        out: the output folder; None for `analyses/` in the sweep's folder, or in the storage without a sweep.
        formats: some of `md, csv, tex, svg, png`; all if empty.

    Returns:
        The written files.

    Raises:
        ValueError: an unknown name, a missing sweep, or missing data of an analysis; one line with the remedy.
    """
    if not chosen:
        raise ValueError(f"Name an analysis: {', '.join(names())}.")
    for analysis_name in chosen:
        if analysis_name not in names():
            raise registry.unknown(analysis_name, "analysis", names())
    for form in formats:
        if form not in FORMATS:
            raise registry.unknown(form, "format", FORMATS)
    ledger = None if name == NO_SWEEP else Ledger(sweep_folder(storage, name))
    target = out or (ledger.folder if ledger else storage) / "analyses"
    if not isinstance(target, Path):
        raise ValueError(f"--storage {storage}: analyses are written into a folder; name one with --out DIR.")
    options = AnalysisOptions(
        sweep=summarise(ledger) if ledger else None, ledger=ledger,
        out=target, encoders=tuple(encoders), tasks=tuple(tasks),
        corpus=corpus, data_dir=data_dir, max_train_examples=max_train_examples,
        formats=tuple(formats) or FORMATS, tell=tell,
    )  # fmt: skip
    options.check_names()
    modules = [registry.load(sys.modules[__name__], analysis_name, "analysis") for analysis_name in chosen]
    return [path for module in modules for path in module.run(options)]
