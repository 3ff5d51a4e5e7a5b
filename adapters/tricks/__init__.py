"""The tricks: one file a trick, each exporting `TRICK`."""
