"""Examples to batches: tokenisation, document context, pairs, padded and unpadded batches."""
