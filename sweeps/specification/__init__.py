"""The specification of a sweep, its cells, and the checks before the first trial."""
