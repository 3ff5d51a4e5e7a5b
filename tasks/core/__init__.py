"""What every task shares: the types, the readers, the sources, the metrics, the locked test split."""
