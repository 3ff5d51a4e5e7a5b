"""Regular expressions of task files: a line's named groups, matched in bounded time.

Backtracking may take time that grows exponentially with a line. The engine is `regex`, which transformers needs too:
it reads what `re` reads, and stops after a time that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import regex

from meltpoint.tasks.core.counts import some

LONGEST_PATTERN = 2_000
"""The most characters of a pattern."""
MOST_SECONDS = 1.0
"""The longest time for one line; a pattern without nested repeats takes some microseconds."""


def compiled(pattern: str) -> regex.Pattern[str]:
    """A pattern, compiled.

    Raises:
        ValueError: it is no regular expression, or a long one; without the file.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"pattern: longer than {LONGEST_PATTERN} characters. Shorten it.")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern: not a regular expression ({error}). See docs/tasks.md for one.") from None


def check_groups(pattern: str, needed: Collection[str]) -> None:
    """Check that a pattern is one, and has all the named groups that a task needs.

    Raises:
        ValueError: it is not, or lacks one.
    """
    groups = compiled(pattern).groupindex
    lacking = next((name for name in needed if name not in groups), None)
    if lacking is not None:
        has = ", ".join(groups) or "none"
        raise ValueError(f"pattern: the group '{lacking}' is missing (it has: {has}). Write (?P<{lacking}>.+).")


def matched(
    pattern: regex.Pattern[str], line: str, place: str, seconds: float = MOST_SECONDS
) -> Mapping[str, str | None]:
    """The named groups of a line that the whole pattern matches.

    Raises:
        ValueError: it does not match, or takes too long; `place` says where.
    """
    try:
        match = pattern.fullmatch(line, timeout=seconds)
    except TimeoutError:
        raise ValueError(
            f"{place}: the pattern takes more than {some(math.ceil(seconds), 'second')} on this line. "
            "Write it without a repeat inside a repeat, such as (a+)+."
        ) from None
    if match is None:
        raise ValueError(f"{place}: {line[:60]!r} does not match the pattern. Correct the line or the pattern.")
    groups: Mapping[str, str | None] = match.groupdict()
    return groups
