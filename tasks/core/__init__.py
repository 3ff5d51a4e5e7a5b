"""Shared code of the tasks: types, file readers, data sources, metrics and the locked test split."""
