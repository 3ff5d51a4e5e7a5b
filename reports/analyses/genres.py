"""P1, table 6: each genre of MultiNLI, its divergence from a reference corpus, and the score of each mode.

P1 trained and evaluated BERT-base on one genre at a time, as cells of `mnli:GENRE` do. Cells of the whole `mnli` or of
several genres are scored per genre from the stored dev predictions of their finalists; the table has a column for the
training data of each model. The divergence is between the corpus (for P1: books and Wikipedia) and both sentences of
the genre's training pairs.

P1 follows Ruder & Plank 2017, whose code has details that neither paper states: words are lower-cased, the vocabulary
is the 10 000 most frequent words of all texts together, and logarithms are natural, so that the maximum is
ln 2 = 0.693. (That code adds KL(P‖M) twice where KL(P‖M) and KL(Q‖M) belong; here it is the divergence itself.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.analyses.core.analysis import Analysis, AnalysisOptions, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Value, figures, points
from meltpoint.reports.table_values import FROZEN, TUNED, difference_of
from meltpoint.sweeps.ledger.predictions import predictions_path, read_predictions
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import Spread, spread
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example
from meltpoint.tasks.core.wording import some

VOCABULARY = 10_000
"""Ruder & Plank's `max_vocab_size`."""

NAME, TASK = "genres", "mnli"

COLUMNS = (
    Column("genre"), figures("divergence", ".2f"), Column("encoder"), Column("trained on"), points("❄"),
    points("❄ std"), points("🔥"), points("🔥 std"), points("Δ", "+.1f"), points("Δ error"), figures("train", "d"),
    figures("dev", "d"),
)  # fmt: skip
METHOD = (
    f"Divergence: Jensen–Shannon, in nats (at most 0.693), of lower-cased words and punctuation marks between the "
    f"reference corpus and both sentences of the genre's training pairs; vocabulary: the {VOCABULARY} most frequent of "
    "all these texts together (Ruder & Plank 2017).",
    "❄, 🔥: mean dev accuracy over the finals' seeds ×100 and its standard deviation; Δ = 🔥 − ❄ with its standard "
    "error.",
    "`trained on` its genre is P1's table 6; `all genres` is one model for all, scored on the genre's part of dev. "
    "`train` counts the pairs behind the divergence; a sweep may have trained on a sample of them.",
    "P1, BERT-base (telephone, government, travel, fiction, slate): 🔥 84.4 86.7 86.1 84.5 80.9; Δ −1.1 −0.2 −0.6 "
    "0.4 −0.6; divergence 0.21 0.18 0.14 0.09 0.09.",
)


@dataclass(frozen=True)
class GenreScore:
    """A mode's dev accuracy on one genre, over seeds."""

    encoder: str
    trained_on: str
    mode: str
    genre: str
    over: Spread


def run(options: AnalysisOptions) -> list[Path]:
    """Write the table: divergences if there is a corpus, accuracies if there is a sweep.

    Raises:
        ValueError: neither a corpus nor a sweep with a cell of MultiNLI, or missing data, predictions or corpus.
    """
    if options.corpus is None and options.sweep is None:
        raise ValueError(f"{NAME} needs a reference corpus (--corpus FILE.txt), a sweep with cells of {TASK}, or both.")
    cells = genre_cells(options)
    data = load_training_data(texts_of(options))
    train, dev = by_genre(data.train), by_genre(data.dev)
    genres = [genre for genre in train if genre in dev]
    distances = divergences(options.corpus, {genre: train[genre] for genre in genres}) if options.corpus else {}
    scored = [one for cell in cells for one in _scores(options, cell, data.dev, genres)]
    rows = _rows(genres, distances, scored, {genre: (len(train[genre]), len(dev[genre])) for genre in genres})
    notes = [*METHOD, *(f"Data: {note}." for note in data.notes)]
    if options.corpus is not None:
        notes.append(f"Reference corpus: {options.corpus.name}.")
    notes += _correlation(rows)
    table = AnalysisTable(NAME, "MultiNLI by genre", COLUMNS, tuple(rows), tuple(notes))
    return write_table(table, options)


def texts_of(options: AnalysisOptions) -> DataSpec:
    """The whole of MultiNLI, even if the sweep used less: the divergence is computed from all texts of a genre."""
    return DataSpec(TASK, options.data(TASK).data_dir, options.max_train_examples)


def genre_cells(options: AnalysisOptions) -> list[CellSummary]:
    """The sweep's cells of MultiNLI, whole or by genre.

    Raises:
        ValueError: the sweep has none, or not the given encoders or tasks.
    """
    if options.sweep is None:
        return []
    pairs = [(encoder, task) for encoder, task in options.pairs() if task.partition(":")[0] == TASK]
    cells = [cell for pair in pairs for cell in options.cells(*pair)]
    if not cells:
        raise ValueError(f"Sweep '{options.sweep.name}' has no cell of {TASK}; sweep --task {TASK}:fiction and so on.")
    return cells


def by_genre(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """Genre → its examples, in order of appearance."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.group, []).append(example)
    return groups


def divergences(corpus: Path, genres: Mapping[str, Sequence[Example]]) -> dict[str, float]:
    """Each genre's divergence from the corpus."""
    reference = count_file(corpus)
    counts = {
        genre: count_terms(text for example in examples for text in example.texts) for genre, examples in genres.items()
    }
    words = vocabulary([reference, *counts.values()])
    shares = distribution(reference, words)
    return {genre: jensen_shannon(shares, distribution(terms, words)) for genre, terms in counts.items()}


_TERM = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def terms(text: str) -> list[str]:
    """Lower-cased words and punctuation marks; `don't` is one word."""
    return _TERM.findall(text.lower())


def count_terms(texts: Iterable[str]) -> Counter[str]:
    """Term → its number of occurrences."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(terms(text))
    return counts


def count_file(path: Path) -> Counter[str]:
    """Term counts of a reference corpus (UTF-8 text), read line by line, since it may be larger than memory.

    Raises:
        ValueError: the file is missing, is not UTF-8, or has no words.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            counts = count_terms(lines)
    except OSError as error:
        raise ValueError(f"--corpus {path} cannot be read ({error.strerror}); name a text file.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--corpus {path} is not UTF-8 (byte {error.start} of a block); convert it.") from None
    if not counts:
        raise ValueError(f"--corpus {path} has no words in it; name a text file with the encoder's kind of text.")
    return counts


def vocabulary(counts: Iterable[Mapping[str, int]], size: int = VOCABULARY) -> list[str]:
    """The most frequent terms of all texts together, most frequent first; ties in alphabetical order."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return sorted(total, key=lambda term: (-total[term], term))[:size]


def distribution(counts: Mapping[str, int], words: list[str]) -> NDArray[np.float64]:
    """The relative frequencies of the vocabulary's words in a text: (words,).

    Raises:
        ValueError: the text has none of the words.
    """
    frequencies = np.array([counts.get(word, 0) for word in words], dtype=np.float64)
    if not frequencies.any():
        raise ValueError("a text without any word of the vocabulary has no term distribution; give more of it.")
    shares: NDArray[np.float64] = frequencies / frequencies.sum()
    return shares


def jensen_shannon(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """½ KL(P‖M) + ½ KL(Q‖M), M = ½ (P + Q), in nats: 0 for equal distributions, ln 2 if no word is shared.

    Args:
        left, right: (words,) shares that sum to 1.
    """
    from scipy.special import rel_entr  # takes a second to import

    middle = (left + right) / 2
    return float((rel_entr(left, middle) + rel_entr(right, middle)).sum()) / 2


def _scores(
    options: AnalysisOptions, cell: CellSummary, dev: Sequence[Example], genres: Sequence[str]
) -> list[GenreScore]:  # fmt: skip
    """A cell's accuracy on each of its genres, over its seeds."""
    assert options.ledger is not None
    head, variant = cell.header, cell.header.task.partition(":")[2]
    if not cell.finals:
        raise ValueError(f"Cell '{cell_name(*head.key)}' has no finals yet; finish the sweep.")
    if variant in genres:
        over = spread([final.dev for final in cell.finals if final.dev is not None])
        assert over is not None, "a finished final has a dev score"
        return [GenreScore(head.encoder, "its genre", head.mode, variant, over)]
    groups = {example.id: example.group for example in dev}
    by_seed = [
        accuracies(predictions_path(options.ledger.folder, cell_name(*head.key), final, "dev"), groups)
        for final in cell.finals
    ]
    spreads = {genre: spread([scores[genre] for scores in by_seed if genre in scores]) for genre in genres}
    trained_on = variant or "all genres"
    return [GenreScore(head.encoder, trained_on, head.mode, genre, over) for genre, over in spreads.items() if over]


def accuracies(path: StoragePath, groups: Mapping[str, str]) -> dict[str, float]:
    """The accuracy per genre of a finalist's stored predictions.

    Args:
        groups: example id → genre.

    Raises:
        ValueError: the file is missing or broken, or has examples that are not in the data.
    """
    hits: dict[str, list[bool]] = {}
    try:
        found = read_predictions(path)
        for example, is_right in zip(found.ids, found.gold == found.predicted, strict=True):
            hits.setdefault(groups[example], []).append(bool(is_right))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} does not hold the dev predictions ({error}); run the sweep's finals again.") from None
    return {genre: sum(values) / len(values) for genre, values in hits.items()}


def _rows(
    genres: Sequence[str], distances: Mapping[str, float], scored: Sequence[GenreScore],
    sizes: Mapping[str, tuple[int, int]],
) -> list[tuple[Value, ...]]:  # fmt: skip
    """One row per genre, encoder and training data; one row per genre if there are no scores."""
    ways = list(dict.fromkeys((one.encoder, one.trained_on) for one in scored))
    overs = {(one.encoder, one.trained_on, one.mode, one.genre): one.over for one in scored}
    rows: list[tuple[Value, ...]] = []
    for genre in genres:
        if not ways:
            rows.append((genre, distances.get(genre), *(None,) * 8, *sizes[genre]))
        for encoder, trained_on in ways:
            frozen, tuned = (overs.get((encoder, trained_on, mode, genre)) for mode in (FROZEN, TUNED))
            if frozen or tuned:
                delta = difference_of(tuned, frozen, "dev") if frozen and tuned else None
                rows.append(
                    (genre, distances.get(genre), encoder, trained_on, *_both(frozen), *_both(tuned),
                     delta.mean if delta else None, delta.error if delta else None, *sizes[genre])
                )  # fmt: skip
    return rows


def _both(over: Spread | None) -> tuple[float | None, float | None]:
    return (over.mean, over.std) if over else (None, None)


def _correlation(rows: Sequence[tuple[Value, ...]]) -> list[str]:
    """Notes on the correlation of Δ and divergence, per encoder and training data; P1 reports no significant one."""
    from scipy.stats import pearsonr  # takes a second to import

    notes = []
    for encoder, trained_on in dict.fromkeys((row[2], row[3]) for row in rows if row[8] is not None):
        points_of = [(row[1], row[8]) for row in rows if (row[2], row[3]) == (encoder, trained_on)]
        known = [(float(x), float(y)) for x, y in points_of if x is not None and y is not None]
        if len(known) > 2:
            result = pearsonr([x for x, _ in known], [y for _, y in known])
            notes.append(
                f"Δ and divergence, {encoder} trained on {trained_on}: Pearson {result.statistic:.2f} over "
                f"{some(len(known), 'genre')}, p = {result.pvalue:.2f} (P1: no significant correlation)."
            )
    return notes


ANALYSIS = Analysis(
    NAME, "table 6: MultiNLI by genre, with each genre's divergence from a reference corpus", run, frozenset({"corpus"})
)
