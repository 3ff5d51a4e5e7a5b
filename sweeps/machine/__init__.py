"""The machine: its limits, the services that a sweep needs, and `doctor`."""
