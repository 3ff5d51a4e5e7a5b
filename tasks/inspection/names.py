"""Names that columns of public data sets have, and what they say of a column."""

from __future__ import annotations

LABEL_NAMES = (
    "gold_label", "label", "labels", "category", "class", "target", "sentiment", "intent", "verdict", "topic", "stars",
    "rating", "is_duplicate", "similarity", "score", "relatedness_score", "entailment_judgment", "y", "gold",
    "polarity", "emotion", "label_text", "coarse_label", "note", "answer_label",
)  # fmt: skip
"""The names of a column of labels or scores, the likeliest first."""

TEXT_NAMES = (
    "text", "sentence", "review", "comment_text", "comment", "body", "content", "tweet", "utterance", "query",
    "question", "message", "document", "description", "title", "headline", "abstract", "summary", "reviewtext", "texte",
    "premise", "hypothesis", "answer", "passage", "context",
)  # fmt: skip
"""The names of a column of texts."""

PAIR_NAMES = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b"),
    ("question", "answer"), ("question", "sentence"), ("query", "passage"), ("sentence_a", "sentence_b"),
    ("text1", "text2"), ("q1", "q2"), ("s1", "s2"), ("q", "a"), ("left", "right"), ("string1", "string2"),
    ("#1 string", "#2 string"),
)  # fmt: skip
"""The names of the two columns of a pair."""

JOINED_NAMES = (
    ("title", "description"),
    ("title", "body"),
    ("title", "content"),
    ("title", "text"),
    ("title", "review"),
)
"""The names of two columns that are one text."""

WORDS_NAMES = ("tokens", "words", "sentence", "token")
TAGS_NAMES = ("ner_tags", "tags", "ner", "labels", "bio_tags", "iob", "ner_labels")
SPLIT_NAMES = ("split", "set", "partition", "subset", "fold", "dataset_split", "splitset_label")

NO_LABELS = ("-", "", "unsup", "n/a", "na", "nan", "none", "null")
"""Spellings that say that a row has no label."""
