"""`report --format html`: one page with all of a sweep's results; it needs no other file and no network."""
