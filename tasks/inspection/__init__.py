"""Inspection of your files: their contents, and a task file that reads them (`meltpoint new-task`)."""
