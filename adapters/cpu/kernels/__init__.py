"""Compiled loops for a CPU, where one pass over memory does what torch needs five to ten operations for.

They are Python that numba compiles for the machine at hand when they are first called (a second or two, then kept on
disk), so nobody needs a compiler. They compute in float32 whatever they read and write, and give the same numbers for
any number of threads.
"""

LANES = 16
"""Columns and queries come in multiples of this: float32 numbers in one AVX-512 register."""

DROPOUT_STEPS = 1 << 16
"""16 random bits decide on an element: a dropout ratio is rounded to a multiple of 1/65536."""
