"""The search service: specification, search, driver, workers on Ray, ledger, MLflow, results, command line."""
