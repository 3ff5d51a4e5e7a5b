"""Benchmarks of the training loop against hardware limits and against the Trainer, without Ray and MLflow."""
