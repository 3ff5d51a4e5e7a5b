"""Inspection of a person's files: what they hold, and a task file that reads them (`meltpoint new-task`)."""
