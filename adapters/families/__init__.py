"""Families of pretrained encoders: Hugging Face transformers, ELMo, Skip-thoughts."""
