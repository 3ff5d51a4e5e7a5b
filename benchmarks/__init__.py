"""Each claim of speed as a script: both sides run in turn in one process tree, with the ratio and its spread."""
