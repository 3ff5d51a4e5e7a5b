"""Encoders of Hugging Face transformers: their files, checks, loading, and attention."""
