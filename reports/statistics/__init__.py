"""Statistics of sweeps: tests of differences, cost; read from the ledger, nothing is trained."""
