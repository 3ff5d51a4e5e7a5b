"""The modes: one file a mode, each exporting `MODE`."""
