"""Tokenise examples into rows: special tokens, truncation (counted), and windows of sentences that are too long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import Any

from meltpoint.adapters.data.batch import EncodedSplit, Row
from meltpoint.adapters.data.document_context import Surroundings, documents
from meltpoint.adapters.data.input_format import InputFormat, Prompts, Span, Tokenizer, pair_statistics, separate_words
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Example, Kind, Label

_PROBE = "a"
_PROBE_WORDS = ("the", "London", "x1", ",")


@dataclass(frozen=True)
class _Template:
    """The positions of a tokenizer's special tokens around one or two texts, taken from its post-processor's output.

    Attributes:
        specials: (piece, segment) of the special tokens before each text and after the last one.
        segments: the token type of each text.
    """

    specials: tuple[tuple[tuple[int, int], ...], ...]
    segments: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(len(group) for group in self.specials)

    def fill(self, *texts: Sequence[int]) -> tuple[list[int], list[int]]:
        """(pieces, segments) of the texts with the special tokens around them."""
        pieces = [piece for piece, _ in self.specials[0]]
        segments = [segment for _, segment in self.specials[0]]
        for text, text_segment, after in zip(texts, self.segments, self.specials[1:], strict=True):
            pieces.extend(text)
            segments.extend([text_segment] * len(text))
            pieces.extend(piece for piece, _ in after)
            segments.extend(segment for _, segment in after)
        return pieces, segments

    def spans(self, first: int, second: int) -> tuple[Span, Span]:
        """(start, stop) of each of two texts, given their numbers of pieces."""
        start, between = len(self.specials[0]), len(self.specials[1])
        return (start, start + first), (start + first + between, start + first + between + second)


class PieceTokenizer:
    """A Hugging Face tokenizer as Meltpoint's `Tokenizer`.

    Uses the tokenizer's Rust backend: the special tokens are determined once, and texts are encoded without them, so
    that truncation is exact. The backend's padding and truncation (both enabled in all-MiniLM's file) are turned off.

    Args:
        tokenizer: a fast tokenizer of transformers.
        max_pieces: the longest input of its encoder, special tokens included.
        token_types: whether the encoder has an embedding for a second segment.
        prompts: the encoder's prefixes.
    """

    def __init__(self, tokenizer: Any, max_pieces: int, token_types: bool, prompts: Prompts | None = None) -> None:
        self._source = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.joins_pairs = True
        self.prompts = prompts or Prompts()
        self.max_pieces = max_pieces
        self._token_types = token_types and "token_type_ids" in tokenizer.model_input_names
        self._single = _template(self._backend.encode(_PROBE))
        self._pair = _template(self._backend.encode(_PROBE, _PROBE))
        self.word_prefix = self._find_word_prefix()
        candidates = (tokenizer.unk_token_id, tokenizer.mask_token_id, tokenizer.sep_token_id)
        self._unknown = next((piece for piece in candidates if piece is not None), 0)
        self._cuts_start = tokenizer.truncation_side == "left"
        self.pad_piece = int(tokenizer.pad_token_id or 0)  # padded positions are masked, so any piece works

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, segments or [], number of pieces cut) of one sentence of at most `limit` pieces."""
        pieces = self._text(text)
        room = limit - self._single.size
        framed, segments = self._single.fill(self._kept(pieces, room))
        return framed, segments if self._token_types else [], max(0, len(pieces) - room)

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """(pieces, segments or [], each sentence's span, number of pieces cut) of a pair, encoded jointly.

        The longer sentence is truncated first.
        """
        one, two = self._text(first), self._text(second)
        kept_one, kept_two = longest_first(len(one), len(two), limit - self._pair.size)
        framed, segments = self._pair.fill(self._kept(one, kept_one), self._kept(two, kept_two))
        cut = len(one) - kept_one + len(two) - kept_two
        return framed, segments if self._token_types else [], self._pair.spans(kept_one, kept_two), cut

    def word(self, word: str) -> list[int]:
        """The pieces of one word in the middle of a sentence, without special tokens; never empty.

        A word that the tokenizer drops (a control character, U+00A0) becomes the unknown piece.
        """
        return self._pieces(self.word_prefix + word) or [self._unknown]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(pieces with special tokens, segments or [], number of special tokens before the first piece)."""
        framed, segments = self._single.fill(pieces)
        return framed, segments if self._token_types else [], len(self._single.specials[0])

    def save(self, folder: Path) -> None:
        """Write the tokenizer in the layout of the Hugging Face hub."""
        self._source.save_pretrained(folder)

    def _pieces(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def _text(self, text: str) -> list[int]:
        """The pieces of a text; the unknown piece for an empty text without special tokens, so that no row is empty."""
        return self._pieces(text) or ([] if self._single.size else [self._unknown])

    def _kept(self, pieces: list[int], room: int) -> list[int]:
        """As many pieces of a text as fit: its start, or its end if the tokenizer truncates on the left."""
        start = max(0, len(pieces) - room) if self._cuts_start else 0
        return pieces[start : start + room]

    def _find_word_prefix(self) -> str:
        """The prefix that makes a lone word tokenise as in mid-sentence: a space for byte-level BPE, otherwise none."""
        for prefix in ("", " "):
            if all(self._pieces(f"a {w}") == self._pieces("a") + self._pieces(prefix + w) for w in _PROBE_WORDS):
                return prefix
        return " "


def _template(encoding: Any) -> _Template:
    """The special tokens in the encoding of probe texts."""
    texts = len({number for number in encoding.sequence_ids if number is not None})
    specials: list[list[tuple[int, int]]] = [[] for _ in range(texts + 1)]
    segments = [0] * texts
    seen = 0
    for piece, segment, number in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if number is None:
            specials[seen].append((piece, segment))
        else:
            seen, segments[number] = number + 1, segment
    return _Template(tuple(tuple(group) for group in specials), tuple(segments))


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """The number of pieces that each of two sentences keeps, as with `longest_first` of the `tokenizers` library.

    The shorter sentence is kept whole if it fits into half of `room`. If neither does, each keeps half; an odd piece
    goes to the longer sentence, or to the second if they are equally long.
    """
    if first + second <= room:
        return first, second
    short, long = min(first, second), room - min(first, second)
    if long < short:
        short, long = room // 2, room - room // 2
    return (long, short) if first > second else (short, long)


def encode_split(
    kind: Kind, examples: Sequence[Example], tokenizer: Tokenizer, max_pieces: int,
    input_format: InputFormat | None = None, sampled_from: Sequence[Example] | None = None,
) -> EncodedSplit:  # fmt: skip
    """Tokenise a split.

    Sentences to label are never truncated: a sentence that is too long is cut at word boundaries into consecutive
    windows, with each word in exactly one window; only a single word longer than a window loses its last pieces.
    A sentence without words has no rows.

    Args:
        kind: the task's kind.
        examples: the split's examples.
        tokenizer: the encoder's tokenizer.
        max_pieces: the longest input, special tokens included.
        input_format: None for the defaults.
        sampled_from: the split that the examples are a sample of, for document context; None for a whole split.

    Raises:
        ValueError: `max_pieces` is more than the encoder takes, or the encoder cannot encode joint pairs.
    """
    if max_pieces > tokenizer.max_pieces:
        raise ValueError(f"max_pieces is {max_pieces}; this encoder takes at most {tokenizer.max_pieces}.")
    input_format = input_format or InputFormat()
    if kinds.get(kind).labels_words:
        return _encode_words(examples, tokenizer, max_pieces, input_format, sampled_from)
    rows: list[Row] = []
    cuts: list[tuple[int, ...]] = []
    for position, example in enumerate(examples):
        row, cut = _text_row(position, example, tokenizer, max_pieces, input_format)
        rows.append(row)
        cuts.append(cut)
    lengths = [max(map(add, map(len, row.inputs), cut)) for row, cut in zip(rows, cuts, strict=True)]
    return EncodedSplit(rows, len(rows), sum(map(any, cuts)), whole=lengths, pieces_cut=sum(map(sum, cuts)))


def _text_row(
    position: int, example: Example, tokenizer: Tokenizer, max_pieces: int, input_format: InputFormat
) -> tuple[Row, tuple[int, ...]]:
    """The row of a sentence or a pair, and the number of pieces cut off each of its inputs."""
    texts = [separate_words(text, input_format.word_tokenizer) for text in example.texts]
    prefix = tokenizer.prompts.text(input_format.prefix)
    if len(texts) == 1:
        pieces, segments, cut = tokenizer.sentence(prefix + texts[0], max_pieces)
        return Row(position, 0, tuple(pieces), tuple(segments), (), example.label), (cut,)
    if input_format.pairing == "separate" or not tokenizer.joins_pairs:
        if input_format.pairing == "joint":
            raise ValueError("pairing is joint; this encoder reads one sentence at a time; use separate or auto.")
        row, cuts = _separate_row(position, [prefix + text for text in texts], example.label, tokenizer, max_pieces)
        return replace(row, statistics=pair_statistics(*example.texts)) if input_format.statistics else row, cuts
    pieces, segments, spans, cut = tokenizer.pair(texts[0], texts[1], max_pieces)
    return Row(position, 0, tuple(pieces), tuple(segments), (), example.label, spans), (cut,)


def _separate_row(
    position: int, texts: Sequence[str], label: Label, tokenizer: Tokenizer, max_pieces: int
) -> tuple[Row, tuple[int, ...]]:  # fmt: skip
    """The row of a pair whose sentences are two separate inputs, and the number of pieces cut off each."""
    (one, first, cut_one), (two, second, cut_two) = (tokenizer.sentence(text, max_pieces) for text in texts)
    framed, _, before = tokenizer.frame(())
    after = len(framed) - before
    spans = ((before, len(one) - after), (len(one) + before, len(one) + len(two) - after))
    row = Row(position, 0, (*one, *two), (*first, *second), (), label, spans, cut=len(one))
    return row, (cut_one, cut_two)


def _encode_words(
    examples: Sequence[Example], tokenizer: Tokenizer, max_pieces: int, input_format: InputFormat,
    sampled_from: Sequence[Example] | None,
) -> EncodedSplit:  # fmt: skip
    """Rows of a sequence-labelling split."""
    specials = len(tokenizer.frame(())[0])
    room = max_pieces - specials
    uncut = _pieces_of_words(examples, tokenizer)
    sentences = _cut(uncut, room)
    windows = [split_windows([len(pieces) for pieces in words], room) for words in sentences]
    around: list[Surroundings] | None = None
    if input_format.context == "document":
        every = sentences if sampled_from is None else _cut(_pieces_of_words(sampled_from, tokenizer), room)
        around = documents(examples, every, sampled_from)
    rows = [
        _window_row(position, example.label, sentences[position], window, tokenizer)
        if around is None
        else _row_in_context(position, example.label, around[position], window, tokenizer, room)
        for position, example in enumerate(examples)
        for window in windows[position]
    ]
    counts = [len(example.words) for example in examples]
    lost = [sum(max(0, len(pieces) - room) for pieces in words) for words in uncut]
    windowed = sum(len(sentence_windows) > 1 for sentence_windows in windows)
    lengths = [specials + sum(map(len, words)) for words in uncut]
    split = EncodedSplit(
        rows, len(examples), sum(map(bool, lost)), windowed, counts, whole=lengths, pieces_cut=sum(lost)
    )  # fmt: skip
    if around is None:
        return split
    documented = [specials + sentence.ends[-1] for sentence in around]
    narrowed = sum(length > max_pieces for length in documented)
    return replace(split, alone=sum(sentence.is_alone for sentence in around), whole=documented, narrowed=narrowed)


def _cut(sentences: Sequence[Sequence[list[int]]], room: int) -> list[list[list[int]]]:
    """The pieces of each word of each sentence, each word truncated to the length of an input."""
    return [[pieces[:room] for pieces in words] for words in sentences]


def _pieces_of_words(examples: Sequence[Example], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """The pieces of each word of each sentence; a repeated word is tokenised once."""
    cache: dict[str, list[int]] = {}
    return [
        [cache.get(word) or cache.setdefault(word, tokenizer.word(word)) for word in example.words]
        for example in examples
    ]


def _window_row(
    position: int, label: Label, words: Sequence[Sequence[int]], window: range, tokenizer: Tokenizer
) -> Row:
    """The row of the words `window` of a sentence, with special tokens."""
    inside = [words[index] for index in window]
    pieces, segments, before = tokenizer.frame([piece for word in inside for piece in word])
    starts = tuple(accumulate((len(word) for word in inside[:-1]), initial=before))
    return Row(position, window.start, tuple(pieces), tuple(segments), starts, _labels(label, window))


def _row_in_context(
    position: int, label: Label, around: Surroundings, window: range, tokenizer: Tokenizer, room: int
) -> Row:
    """The row of `window` with its document context, and the special tokens around both.

    Context and special tokens go into `before` and `after`, so that heads read the sentence's pieces only.
    """
    inside = [around.words[around.first + index] for index in window]
    before, after = around.of(window, room)
    framed, segments, specials = tokenizer.frame(())
    pieces = tuple(piece for word in inside for piece in word)
    starts = tuple(accumulate((len(word) for word in inside[:-1]), initial=0))
    return Row(
        position, window.start, pieces, (0,) * len(pieces) if segments else (), starts, _labels(label, window),
        before=(*framed[:specials], *before), after=(*after, *framed[specials:]),
    )  # fmt: skip


def _labels(label: Label, window: range) -> Label:
    return label[window.start : window.stop] if isinstance(label, tuple) else None


def split_windows(sizes: Sequence[int], room: int) -> list[range]:
    """Cut a sentence into consecutive windows of at most `room` pieces, of about equal length.

    Cutting at the word boundary nearest to an even share gives windows of about `room / 2` pieces or more; filling
    windows from the left could leave a last window of one or two words without context.

    Args:
        sizes: number of pieces of each word, each at most `room`.
        room: maximum number of pieces of a window, special tokens not counted.
    """
    ends = [0, *accumulate(sizes)]

    def cut(start: int, stop: int) -> list[range]:
        total = ends[stop] - ends[start]
        if total <= room:
            return [range(start, stop)] if stop > start else []
        shares = -(-total // room)
        target = ends[start] + total * (shares // 2) / shares
        middle = bisect_left(ends, target, start + 1, stop)
        if middle > start + 1 and target - ends[middle - 1] <= ends[middle] - target:
            middle -= 1
        middle = min(middle, stop - 1)
        return cut(start, middle) + cut(middle, stop)

    return cut(0, len(sizes))
