"""Sweeps as Ray jobs: sent to a cluster, watched and stopped from any machine that has its address."""

ADDRESS = "RAY_API_SERVER_ADDRESS"
"""The environment variable of Ray that names a cluster's job server."""
