"""The heads: one file a head, each exporting `HEAD`."""
