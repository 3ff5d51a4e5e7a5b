"""All data sets in their original layouts, by name."""

from __future__ import annotations

from meltpoint.tests.tasks.pair_layouts import ONTONOTES, SNLI, SPLIT_COLUMN, STSB, WIC
from meltpoint.tests.tasks.score_and_label_layouts import GOEMOTIONS, GOEMOTIONS_COLUMNS, POLITENESS, STARS, TOPICS
from meltpoint.tests.tasks.sentence_layouts import (
    AG_NEWS,
    AMAZON,
    BANKING,
    IMDB,
    KAGGLE,
    NESTED,
    NEWSGROUPS,
    SEMICOLONS,
    TREC,
    TWEETS,
)

LAYOUTS = {
    "imdb": IMDB, "amazon_polarity": AMAZON, "newsgroups": NEWSGROUPS, "banking77": BANKING, "snli": SNLI, "wic": WIC,
    "ontonotes": ONTONOTES, "kaggle": KAGGLE, "semicolons": SEMICOLONS, "nested": NESTED, "trec": TREC,
    "ag_news": AG_NEWS, "tweets": TWEETS, "split_column": SPLIT_COLUMN, "stsb": STSB,
    "politeness": POLITENESS, "goemotions": GOEMOTIONS, "goemotions_columns": GOEMOTIONS_COLUMNS, "topics": TOPICS,
    "stars": STARS,
}  # fmt: skip
