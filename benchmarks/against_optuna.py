"""Meltpoint against Optuna alone: `study.optimize` in one process that has every core."""

from meltpoint.benchmarks.against import command

if __name__ == "__main__":
    command("against_optuna", __doc__, "plain_optuna", "Optuna")
