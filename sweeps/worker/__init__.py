"""The trial worker: what it is told, what it trains, and what it reports; scoring of finalists on test."""
