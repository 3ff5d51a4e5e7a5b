"""Alternatives to Meltpoint, each as a program that takes a job and returns the dev score of every rate."""
