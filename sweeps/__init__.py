"""Who tries it, where, and what is kept: cells, searcher, worker, ledger, tracking, selection, finals, export."""
