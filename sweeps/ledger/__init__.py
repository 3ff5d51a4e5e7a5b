"""The ledger: one file per trial, and the finalists' predictions."""
