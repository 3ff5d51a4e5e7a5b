"""Formatting for tables: percent points, durations, settings, footnote marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from meltpoint.adapters import modes
from meltpoint.adapters.hyperparameters import Value
from meltpoint.search_spaces import documents
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.tasks.core.scoring import difference_text, score_text
from meltpoint.tasks.core.wording import printable

QUOTED = "quoted"
"""Marks a number that a paper quotes from elsewhere."""

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


UNITS = (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1))
"""(unit, the next smaller unit, seconds of both)."""


def markdown_text(text: str) -> str:
    """A text as one line of Markdown that is no HTML, heading or quotation; `p < 0.05` stays as it is."""
    line = re.sub("^(?=[#>])", r"\\", printable(" ".join(text.split())))
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"&(?=#|\w+;)", "&amp;", line))


def percent(fraction: float) -> str:
    """A fraction ×100 with one decimal."""
    return signed(f"{100 * fraction:.1f}")


def difference_over_seeds(mean: float, error: float | None, metric: str) -> str:
    """`+1.2 ± 0.5`; without the error if it is unknown."""
    return difference_text(mean, metric) + ("" if error is None else f" ± {score_text(error, metric)}")


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
    space = documents.parse(header.space, f"the space of {'.'.join(header.key)}")
    entries = space.get("parameters") if isinstance(space, dict) else None
    return [name for name, entry in entries.items() if _is_searched(entry)] if isinstance(entries, dict) else []


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
