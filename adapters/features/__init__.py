"""What a frozen encoder says of a split, computed once and shared by all trials, processes and machines.

`opening.open_features` opens an entry and encodes what is missing, `reading.Features.gather` reads a batch of it,
`budget.choose` says whether an entry may be kept at all, and `entries` lists and removes what there is.
"""
