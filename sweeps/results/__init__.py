"""Results of a sweep: summary, export, ensembles, and the feature cache."""
