"""LaTeX output: escaped text, and tables for booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--", "±": r"$\pm$", "Δ": r"$\Delta$",
    "≈": r"$\approx$", "×": r"$\times$", "<": r"$<$", ">": r"$>$", "❄": "frozen", "🔥": "tuned",
    "↳": r"$\hookrightarrow$", "★": r"$\star$",
}  # fmt: skip
"""Replacements of characters that are special in LaTeX or missing from its usual fonts."""


def latex_text(text: str) -> str:
    """Escape text for LaTeX. Both modes' symbols together (❄🔥) become `frozen + tuned`."""
    one_line = " ".join(text.split()).replace("❄🔥", "❄ + 🔥")
    return "".join(_SIGNS.get(sign, sign) for sign in one_line)


def booktabs(
    sides: str, heads: Sequence[str], parts: Sequence[Sequence[Sequence[str]]], caption: str, label: str,
    notes: Iterable[str] = (),
) -> str:  # fmt: skip
    """A `table` for booktabs; the notes are comments below it.

    Args:
        sides: `l` or `r` per column.
        heads: the columns' names; LaTeX code, like all cells.
        parts: groups of rows, with a rule between groups.
        caption: plain text.
        label: the label of `\\ref{tab:…}`.
        notes: plain text, one line each.
    """
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{sides}}}", r"\toprule", _ended(heads)]
    for rows in parts:
        lines += [r"\midrule", *map(_ended, rows)] if rows else []
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{latex_text(caption)}}}"]
    lines += [rf"\label{{tab:{label}}}", r"\end{table}"]
    return "\n".join([*lines, *(f"% {' '.join(note.split())}" for note in notes)]) + "\n"


def _ended(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
