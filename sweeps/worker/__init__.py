"""The trial worker: its orders, its training and its reports; scoring of finalists on test."""
