"""The training loop, its optimisers, and evaluation."""
