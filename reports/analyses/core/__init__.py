"""Shared code of the analyses: estimators, hidden states, tables and figures."""
