"""The search: the next setting, its study, and selection by dev scores. Imports neither Ray nor MLflow."""
