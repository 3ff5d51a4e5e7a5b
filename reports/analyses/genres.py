"""P1, table 6: each genre of MultiNLI, its divergence from a reference corpus, and the score of each mode.

P1 trained and evaluated BERT-base on one genre at a time, as cells of `mnli:GENRE` do. The divergence is between the
corpus (for P1: books and Wikipedia) and both sentences of the genre's training pairs.

P1 follows Ruder & Plank 2017, whose code has details that neither paper states: words are lower-cased, the vocabulary
is the 10 000 most frequent words of all texts together, and logarithms are natural, so that the maximum is
ln 2 = 0.693. (That code adds KL(P‖M) twice where KL(P‖M) and KL(Q‖M) belong; here it is the divergence itself.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from meltpoint.reports.analyses.core.analysis import AnalysisOptions, write_table
from meltpoint.reports.analyses.core.output import AnalysisTable, Column, Value, figures, points
from meltpoint.reports.table_values import FROZEN, TUNED, difference_of
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tasks.core.readers import read_lines
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example
from meltpoint.tasks.core.wording import some
from meltpoint.tasks.mnli import GENRES

VOCABULARY = 10_000
"""Ruder & Plank's `max_vocab_size`."""

NAME, TASK = "genres", "mnli"
GENRE_TASKS = {f"{TASK}:{genre}" for genre in GENRES}

COLUMNS = (
    Column("genre"), figures("divergence", ".2f"), Column("encoder"), points("❄"), points("❄ std"), points("🔥"),
    points("🔥 std"), points("Δ", "+.1f"), points("Δ error"), figures("train", "d"), figures("dev", "d"),
)  # fmt: skip
METHOD = (
    f"Divergence: Jensen–Shannon, in nats (at most 0.693), of lower-cased words and punctuation marks between the "
    f"reference corpus and both sentences of the genre's training pairs; vocabulary: the {VOCABULARY} most frequent of "
    "all these texts together (Ruder & Plank 2017).",
    "❄, 🔥: mean dev accuracy over the finals' seeds ×100 and its standard deviation; Δ = 🔥 − ❄ with its standard "
    "error.",
    "`train` counts the pairs behind the divergence; a sweep may have trained on a sample of them.",
    "P1, BERT-base (telephone, government, travel, fiction, slate): 🔥 84.4 86.7 86.1 84.5 80.9; Δ −1.1 −0.2 −0.6 "
    "0.4 −0.6; divergence 0.21 0.18 0.14 0.09 0.09.",
)


def run(options: AnalysisOptions) -> list[Path]:
    """Write the table: divergences if there is a corpus, accuracies if there is a sweep.

    Raises:
        ValueError: neither a corpus nor a sweep with a cell of a genre, or missing data, finals or corpus.
    """
    if options.corpus is None and options.sweep is None:
        raise ValueError(
            f"{NAME} needs a reference corpus (--corpus FILE.txt), a sweep with cells of {TASK}:GENRE, or both."
        )
    cells = genre_cells(options)
    data = load_training_data(texts_of(options))
    train, dev = by_genre(data.train), by_genre(data.dev)
    genres = [genre for genre in train if genre in dev]
    distances = divergences(options.corpus, {genre: train[genre] for genre in genres}) if options.corpus else {}
    rows = _rows(genres, distances, cells, {genre: (len(train[genre]), len(dev[genre])) for genre in genres})
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
    """The sweep's cells of one genre of MultiNLI each, with finals.

    Raises:
        ValueError: the sweep has none, not the given encoders or tasks, or no finals of a cell.
    """
    if options.sweep is None:
        return []
    cells = [cell for cell in options.chosen_cells(NAME) if cell.header.task in GENRE_TASKS]
    if not cells:
        raise ValueError(f"Sweep '{options.sweep.name}' has no cell of a genre; sweep --task {TASK}:fiction and so on.")
    for cell in cells:
        if cell.dev is None:
            raise ValueError(f"Cell '{cell.name}' has no finals yet; finish the sweep.")
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
    return {genre: divergence(reference, terms, words) for genre, terms in counts.items()}


_TERM = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def terms(text: str) -> list[str]:
    """Lower-cased words and punctuation marks; `don't` is one word."""
    return _TERM.findall(text.lower())


def count_terms(texts: Iterable[str]) -> Counter[str]:
    """Term → its number of occurrences."""
    return Counter(term for text in texts for term in terms(text))


def count_file(path: Path) -> Counter[str]:
    """Term counts of a reference corpus (UTF-8 text), read line by line, since it may be larger than memory.

    Raises:
        ValueError: the file is missing, is not UTF-8, or has no words.
    """
    counts = count_terms(read_lines(path))
    if not counts:
        raise ValueError(f"--corpus {path} has no words in it; name a text file with the encoder's kind of text.")
    return counts


def vocabulary(counts: Iterable[Mapping[str, int]], size: int = VOCABULARY) -> list[str]:
    """The most frequent terms of all texts together, most frequent first; ties in alphabetical order."""
    total = sum(map(Counter, counts), Counter[str]())
    return sorted(total, key=lambda term: (-total[term], term))[:size]


def divergence(left: Mapping[str, int], right: Mapping[str, int], words: Sequence[str]) -> float:
    """The Jensen–Shannon divergence of two texts over a vocabulary, in nats: 0 to ln 2.

    Raises:
        ValueError: a text has none of the words.
    """
    from scipy.spatial.distance import jensenshannon  # takes a second to import

    counts = [[text.get(word, 0) for word in words] for text in (left, right)]
    if not all(map(any, counts)):
        raise ValueError("a text without any word of the vocabulary has no term distribution; give more of it.")
    return float(jensenshannon(*counts)) ** 2


def _rows(
    genres: Sequence[str], distances: Mapping[str, float], cells: Sequence[CellSummary],
    sizes: Mapping[str, tuple[int, int]],
) -> list[tuple[Value, ...]]:  # fmt: skip
    """One row per genre and encoder; one row per genre without a sweep."""
    overs = {(cell.header.encoder, cell.header.mode, cell.header.task): cell.dev for cell in cells}
    rows: list[tuple[Value, ...]] = []
    for genre in genres:
        if not cells:
            rows.append((genre, distances.get(genre), *(None,) * 7, *sizes[genre]))
        for encoder in dict.fromkeys(cell.header.encoder for cell in cells):
            frozen, tuned = (overs.get((encoder, mode, f"{TASK}:{genre}")) for mode in (FROZEN, TUNED))
            if frozen or tuned:
                delta = difference_of(tuned, frozen, "dev") if frozen and tuned else None
                scores = [(over.mean, over.std) if over else (None, None) for over in (frozen, tuned)]
                change = (delta.mean, delta.error) if delta else (None, None)
                rows.append((genre, distances.get(genre), encoder, *scores[0], *scores[1], *change, *sizes[genre]))
    return rows


def _correlation(rows: Sequence[tuple[Value, ...]]) -> list[str]:
    """Notes on the correlation of Δ and divergence, per encoder; P1 reports no significant one."""
    from scipy.stats import pearsonr  # takes a second to import

    notes = []
    for encoder in dict.fromkeys(row[2] for row in rows if row[7] is not None):
        known = [(row[1], row[7]) for row in rows if row[2] == encoder and None not in (row[1], row[7])]
        if len(known) > 2:
            result = pearsonr(*np.array(known, dtype=np.float64).T)
            notes.append(
                f"Δ and divergence, {encoder}: Pearson {result.statistic:.2f} over {some(len(known), 'genre')}, "
                f"p = {result.pvalue:.2f} (P1: no significant correlation)."
            )
    return notes
