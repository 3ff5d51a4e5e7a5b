"""Formats of numbers, symbols, JSON and LaTeX text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meltpoint.adapters import modes
from meltpoint.adapters.hyperparameters import Value
from meltpoint.tasks.core.scoring import difference_text
from meltpoint.tasks.core.wording import printable

if TYPE_CHECKING:  # `list` does not import the ledger
    from meltpoint.sweeps.results.summary import CellSummary
    from meltpoint.sweeps.results.sweep_file import CellHeader

QUOTED = "quoted"
"""Marks a number that a paper quotes from elsewhere."""

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


UNITS = (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1))
"""(unit, the next smaller unit, seconds of both)."""


def trials_text(counts: Mapping[str, int]) -> str:
    """`14/16 (1 stopped, 1 failed)`: finished of planned, and the states of the others."""
    others = [f"{counts[state]} {state}" for state in ("stopped", "failed", "running") if counts[state]]
    return f"{counts['finished']}/{counts['planned']}" + (f" ({', '.join(others)})" if others else "")


def markdown_text(text: str) -> str:
    """A text as one line of Markdown that is not read as HTML, a heading or a quotation; `p < 0.05` is unchanged."""
    line = re.sub("^(?=[#>])", r"\\", printable(" ".join(text.split())))
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"&(?=#|\w+;)", "&amp;", line))


def percent(fraction: float) -> str:
    """A fraction ×100 with one decimal."""
    return signed(f"{100 * fraction:.1f}")


def interval_text(delta: float, low: float, high: float, metric: str) -> str:
    """`+8.2 [+6.5, +9.9]`: a difference with its interval."""
    return f"{difference_text(delta, metric)} {bounds_text(low, high, metric)}"


def bounds_text(low: float, high: float, metric: str) -> str:
    """`[+6.5, +9.9]`: the bounds of a difference."""
    return f"[{difference_text(low, metric)}, {difference_text(high, metric)}]"


def p_text(p: float) -> str:
    """A p-value with three decimals: `0.013`, or `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def signed(text: str) -> str:
    """The number with a typographic minus, and no sign if it rounds to zero."""
    return "0.0" if text in ("-0.0", "+0.0") else text.replace("-", "−")


def symbol(mode: str) -> str:
    """A mode's symbol (❄, 🔥, ❄🔥), or its name if this version does not know the mode."""
    return modes.get(mode).symbol if mode in modes.names() else mode


def title(mode: str) -> str:
    """A mode's symbol and name."""
    return mode if symbol(mode) == mode else f"{symbol(mode)} {mode}"


def name_of(cell: CellSummary) -> list[str]:
    """The texts that identify a cell: encoder, mode, task, and its variant or ""."""
    head = cell.header
    return [head.encoder, title(head.mode), head.task, head.variant]


def duration(seconds: float) -> str:
    """A readable duration: `45 s`, `9 min 30 s`, `1 h 20 min`, `2 d 3 h`; two units at most."""
    total = round(seconds)
    step = next((step for _, _, size, step in UNITS if total >= size), 1)
    total = round(total / step) * step  # rounded before the unit is chosen: 23 h 59 min 59 s is 1 d
    for unit, smaller, size, step in UNITS:
        if total >= size:
            rest = total % size // step
            return f"{total // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{total} s"


def value_text(value: Value) -> str:
    """A hyperparameter's value in short form: three digits, `5e-5` and not `5e-05`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return re.sub(r"e([-+])0*(\d)", r"e\1\2", f"{value:.3g}")
    return str(value)


def setting_text(setting: Mapping[str, Value], names: Iterable[str]) -> str:
    """`learning_rate 5e-5, epochs 3`: the named hyperparameters that the setting has."""
    return ", ".join(f"{name} {value_text(setting[name])}" for name in names if name in setting)


def searched_names(header: CellHeader) -> list[str]:
    """The searched hyperparameters of a cell's space, in the space's order.

    Raises:
        ValueError: the space in `sweep.json` is not YAML.
    """
    return [name for name, entry in header.space_entries().items() if _is_searched(entry)]


def _is_searched(entry: object) -> bool:
    if not isinstance(entry, Mapping) or "fixed" in entry:
        return False
    choices = entry.get("choice")
    return not (isinstance(choices, list) and len(choices) == 1)


def marks(numbers: Iterable[int]) -> str:
    """Footnote marks in superscript: `¹`, or `¹,²` for two."""
    return ",".join(str(number) for number in numbers).translate(SUPERSCRIPTS)


def listed(items: Iterable[object]) -> str:
    """The items separated by commas, without repeats, in order."""
    return ", ".join(dict.fromkeys(str(item) for item in items))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], sides: str) -> str:
    """A table in Markdown, in which no text breaks a row.

    Args:
        sides: `l` or `r` per column.
    """
    rules = ["---:" if side == "r" else "---" for side in sides]
    shown = ([markdown_text(text).replace("|", "\\|") for text in row] for row in (heads, *rows))
    head, *below = (f"| {' | '.join(row)} |" for row in shown)
    return "\n".join([head, f"| {' | '.join(rules)} |", *below])


def bullets(lines: Iterable[str]) -> str:
    """A list in Markdown."""
    return "\n".join(f"- {markdown_text(line)}" for line in lines)


_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--", "±": r"$\pm$", "Δ": r"$\Delta$",
    "≈": r"$\approx$", "×": r"$\times$", "<": r"$<$", ">": r"$>$", "❄": "frozen", "🔥": "tuned",
    "🔍": "probe", "🧩": "LoRA", "⚖": "norms", "🔝": "top", "↳": r"$\hookrightarrow$", "★": r"$\star$",
    **{sign: rf"\textsuperscript{{{number}}}" for number, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}  # fmt: skip
"""Replacements of characters that are special in LaTeX or missing from its usual fonts."""


def latex_text(text: str) -> str:
    """Escape text for LaTeX. Two modes' symbols together (❄🔥) become `frozen + tuned`."""
    one_line = " ".join(text.split()).replace("❄🔥", "❄ + 🔥").replace("🔍🔥", "🔍 + 🔥")
    return "".join(_SIGNS.get(sign, sign) for sign in one_line)


def booktabs(
    sides: str, heads: Sequence[str], parts: Sequence[Sequence[Sequence[str]]], caption: str, label: str,
    notes: Iterable[str] = (),
) -> str:  # fmt: skip
    """A `table` for booktabs; the notes are comments below it.

    Args:
        sides: `l` or `r` per column.
        heads: the columns' names, as plain text like everything here.
        parts: groups of rows, with a rule between groups.
        label: the label of `\\ref{tab:…}`.
        notes: one line each.
    """
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{sides}}}", r"\toprule", _ended(heads)]
    for rows in parts:
        lines += [r"\midrule", *map(_ended, rows)] if rows else []
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{latex_text(caption)}}}"]
    lines += [rf"\label{{tab:{label}}}", r"\end{table}"]
    return "\n".join([*lines, *(f"% {' '.join(note.split())}" for note in notes)]) + "\n"


def _ended(cells: Iterable[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


def finite(value: Any) -> Any:
    """The value with null in place of every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
