"""MLflow: the runs of a sweep, written by the driver, and the dashboard."""
