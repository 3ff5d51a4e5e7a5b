"""BERT-base (Devlin et al. 2019): 12 layers of 768; cased for labels of words, uncased otherwise.

Peters, Ruder & Smith 2019, section 3: "uncased for all tasks except NER".
"""

from __future__ import annotations

from meltpoint.adapters.families import EncoderReference
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

SUMMARY = "BERT-base, 12 layers of 768, from the hub; cased for labels of words, uncased otherwise"

UNCASED = EncoderReference("bert-base", "google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594")
CASED = EncoderReference("bert-base", "google-bert/bert-base-cased", "cd5ef92a9fb2f889e972770a36d4ed042daf221e")


def reference(kind: Kind) -> EncoderReference:
    """The location of the weights for a kind of task."""
    return CASED if kinds.get(kind).labels_words else UNCASED
