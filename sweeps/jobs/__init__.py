"""Sweeps as Ray jobs: sent to a cluster, followed and stopped from any machine that can reach it."""

ADDRESS = "RAY_API_SERVER_ADDRESS"
"""Ray's environment variable for a cluster's job server."""
