"""The layers that heads are made of, for all trials of a bundle at once (`bundle`)."""
