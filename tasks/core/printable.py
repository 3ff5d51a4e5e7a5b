"""Text of any origin made harmless for a terminal: names of files, labels, configurations, what other programs say."""

from __future__ import annotations

CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
"""C0 but the tab, DEL and C1, which terminals take for commands; Unicode's separators of lines and paragraphs."""
DIRECTIONS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Unicode's embeddings, overrides and isolates, which show a text in another order than it has."""

_VISIBLE = {code: f"\\u{code:04x}" for code in [*CONTROLS, *DIRECTIONS] if code != ord("\t")}
_OF_LINES = {code: text for code, text in _VISIBLE.items() if code != ord("\n")}


def printable(text: str) -> str:
    r"""A text as one line: each control character as `\u001b`, which is its escape in JSON too."""
    return text.translate(_VISIBLE)


def printable_lines(text: str) -> str:
    """The same of a text of several lines."""
    return text.translate(_OF_LINES)
