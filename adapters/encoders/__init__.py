"""The encoders: one file a name; any other Hugging Face encoder goes by `hf:`."""
