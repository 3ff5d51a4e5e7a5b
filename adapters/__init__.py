"""How a pretrained encoder is adapted: encoders, heads, modes, tricks, batching and the one training loop."""
