"""Meltpoint: hyperparameter search for adapting pretrained encoders."""

__version__ = "0.1.0"
