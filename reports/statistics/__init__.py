"""Statistics of sweeps: tests of differences, tuning curves, cost; read from the ledger, nothing is trained."""
