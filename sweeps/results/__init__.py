"""Results of a sweep: summary, export, ensembles, and management of the feature cache."""
