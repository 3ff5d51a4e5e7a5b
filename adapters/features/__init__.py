"""The feature cache: a frozen encoder's hidden states of a split, shared by all trials, processes and machines.

`reading.open_features` opens a cache entry and encodes its missing part, `reading.Features.gather` reads a batch from
it, `reading.choose` decides whether an entry fits into the cache, and `entries` lists and removes entries.
"""
