"""Model cards: the `README.md` of an exported or trained folder."""
