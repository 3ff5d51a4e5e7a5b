"""Meltpoint against raw Ray Tune around Meltpoint's own loop, without what the service shares between trials."""

from meltpoint.benchmarks.against import command

if __name__ == "__main__":
    command("against_raw_ray", __doc__, "raw_ray", "raw Ray Tune")
