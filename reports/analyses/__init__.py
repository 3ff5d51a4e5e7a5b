"""The analyses of Peters, Ruder & Smith 2019 (P1), ready-made, one file an analysis.

A file's name is its word behind `analyse`. An analysis exports `ANALYSIS`; what they share lies in `core`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from meltpoint.reports.analyses.core.analysis import FORMATS, Analysis, Options
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import summarise
from meltpoint.tasks.core import registry

__all__ = ["NO_SWEEP", "analyse", "get", "names"]

NO_SWEEP = "-"
"""In place of a sweep's name: the analyses that can do without one."""


def names() -> list[str]:
    """The analyses, by their words on the command line."""
    return registry.names(sys.modules[__name__])


def get(word: str) -> Analysis:
    """The analysis of a word.

    Raises:
        ValueError: nobody knows the word; near misses are named.
    """
    found = registry.load(sys.modules[__name__], word, "analysis").ANALYSIS
    assert isinstance(found, Analysis)
    return found


def analyse(
    name: str, chosen: Sequence[str], storage: Path, *, encoders: Sequence[str] = (), tasks: Sequence[str] = (),
    model: Path | None = None, corpus: Path | None = None, data_dir: str | None = None,
    max_train_examples: int | None = None, out: Path | None = None, formats: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> list[Path]:  # fmt: skip
    """Run analyses of a sweep, or of encoders and tasks alone, one after the other.

    Args:
        name: the sweep, or `-` for none.
        chosen: names of analyses.
        storage: the folder of all sweeps.
        out: where to write; `analyses/` in the sweep's folder (or in the storage, without a sweep) where None.
        formats: of `md, csv, tex, svg, png`; all where empty.

    Returns:
        The files that were written.

    Raises:
        ValueError: an unknown word, a missing sweep, or whatever an analysis lacks; one line with the remedy.
    """
    for word in chosen:
        if word not in names():
            raise registry.unknown(word, "analysis", names())
    for form in formats:
        if form not in FORMATS:
            raise registry.unknown(form, "format", FORMATS)
    if model is not None and (len(encoders), len(tasks)) != (1, 1):
        raise ValueError("--model is one encoder tuned on one task; say which with one --encoder and one --task.")
    ledger = None if name == NO_SWEEP else Ledger(storage / name)
    options = Options(
        sweep=summarise(ledger) if ledger else None, ledger=ledger,
        out=out or (ledger.folder if ledger else storage) / "analyses", encoders=tuple(encoders), tasks=tuple(tasks),
        model=model, corpus=corpus, data_dir=data_dir, max_train_examples=max_train_examples,
        formats=tuple(formats) or FORMATS, tell=tell,
    )  # fmt: skip
    options.check_words()
    wanted = [get(word) for word in chosen]  # they import torch: after all that can be refused without it
    return [path for analysis in wanted for path in analysis.run(options)]
