"""Search spaces: YAML files, and the code that loads, validates, samples and writes them."""
