"""What may be tried: YAML spaces, and `space.py` that loads, validates, samples and dumps them."""
