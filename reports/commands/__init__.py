"""The commands, one file per panel of the help; each imports heavy modules when it is called."""
