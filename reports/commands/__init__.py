"""The commands of the command line, a file per panel of its help; each imports what is heavy when it is called."""
