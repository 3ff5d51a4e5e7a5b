"""The driver: runs a sweep from its specification to its table, or plans one."""
