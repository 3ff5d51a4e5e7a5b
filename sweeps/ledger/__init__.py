"""The ledger: one file a trial, and the finalists' predictions."""
