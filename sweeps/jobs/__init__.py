"""Sweeps as Ray jobs: sent to a cluster, watched and stopped from any machine that has its address."""
