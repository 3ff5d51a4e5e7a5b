"""Adaptation of pretrained encoders: encoders, heads, modes, tricks, batching and the training loop."""
