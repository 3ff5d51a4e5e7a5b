"""Statistics of sweeps: intervals and tests of differences, tuning curves, cost; read from the ledger, trains nothing."""
