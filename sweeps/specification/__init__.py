"""What a sweep is asked to do: specification, cells, and the checks before the first trial."""
