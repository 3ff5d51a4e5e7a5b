"""`report --format html`: one page with everything that a sweep shows, which needs no other file and no network."""
