"""LaTeX: text that it prints as it is, and tables for booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--", "±": r"$\pm$", "Δ": r"$\Delta$",
    "≈": r"$\approx$", "×": r"$\times$", "<": r"$<$", ">": r"$>$", "❄": "frozen", "🔥": "tuned",
    "↳": r"$\hookrightarrow$",
}  # fmt: skip
"""What LaTeX would read as a command, or has no sign for in its usual fonts."""


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is. Both modes' signs together (❄🔥) are words with a plus between them."""
    one_line = " ".join(text.split()).replace("❄🔥", "❄ + 🔥")
    return "".join(_SIGNS.get(sign, sign) for sign in one_line)


def booktabs(
    sides: str, heads: Sequence[str], parts: Sequence[Sequence[Sequence[str]]], caption: str, label: str,
    notes: Iterable[str] = (),
) -> str:  # fmt: skip
    """A `table` for booktabs; the notes are comments below it.

    Args:
        sides: `l` or `r`, a column.
        heads: the columns' names, LaTeX already, as all cells are.
        parts: rows, in groups with a rule between them.
        caption: plain text.
        label: what `\\ref{tab:…}` names.
        notes: plain text, a line each.
    """
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{sides}}}", r"\toprule", _ended(heads)]
    for rows in parts:
        lines += [r"\midrule", *map(_ended, rows)] if rows else []
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{latex_text(caption)}}}"]
    lines += [rf"\label{{tab:{label}}}", r"\end{table}"]
    return "\n".join([*lines, *(f"% {' '.join(note.split())}" for note in notes)]) + "\n"


def _ended(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
